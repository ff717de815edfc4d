"""`kvcheck layouts from-config`: what it prints can be given to other commands."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from kvcheck.cli.main import run
from kvcheck.files import read_layout
from kvcheck.layouts.presets import PRESETS
from kvcheck.targets.loading import load_target

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "tests/configs"


def test_the_layout_goes_to_stdout_and_the_story_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["layouts", "from-config", str(CONFIGS / "gpt-oss-20b.json")]) == 0
    printed = capsys.readouterr()
    file = tmp_path / "layout.json"
    file.write_text(printed.out, encoding="utf-8")
    layout = read_layout(file)
    assert layout.groups == PRESETS["gptoss"].groups
    assert load_target("model").supports(layout) == ""
    assert "group    sliding window 16 window 128: 12 layers" in printed.err


def test_or_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "layout.json"
    config = str(CONFIGS / "qwen3-next-80b-a3b.json")
    args = "-tp 4 --speculative-config.method mtp --speculative-config.num_speculative_tokens 1 --port 80"
    assert run(["layouts", "from-config", config, "--server-args", args, "--full-size", "--json", str(file)]) == 0
    layout = read_layout(file)
    assert {group.block_size for group in layout.groups} == {272}
    assert layout.max_model_len == 262144
    told = capsys.readouterr().out
    assert "note     not looked at, no layout depends on it: --port 80" in told


def test_the_story_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    guide = (ROOT / "docs/reported-crash.md").read_text(encoding="utf-8")
    shown = guide.split("    $ kvcheck layouts from-config")[1].split("\n\n")[0].splitlines()
    args = shown[0].split('"')[1]
    config = str(CONFIGS / "qwen3-next-80b-a3b.json")
    assert run(["layouts", "from-config", config, "--server-args", args]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line.strip() for line in shown[1:]] == told


def test_arguments_that_are_given_in_parts_all_count(capsys: pytest.CaptureFixture[str]) -> None:
    config = str(CONFIGS / "qwen3-next-80b-a3b.json")
    assert run(["layouts", "from-config", config, "--server-args", "-tp 4", "--server-args", "--port 80"]) == 0
    told = capsys.readouterr().err
    assert "group    mamba 272: 12 layers" in told
    assert "--port 80" in told


def test_the_model_of_a_release_resolves_as_that_release(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = str(CONFIGS / "nemotron-h-8b.json")
    kept = {}
    for release in ("0.28.0", "0.33.0"):
        file = tmp_path / release
        assert run(["layouts", "from-config", config, "--target", f"model@{release}", "--json", str(file)]) == 0
        kept[release] = {group.checkpoint_blocks for group in read_layout(file).groups if group.kind == "mamba"}
    assert kept == {"0.28.0": {0}, "0.33.0": {1}}


def test_a_config_is_read_from_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for text, status in ((b'{"architectures": ["NewForCausalLM"]}', 3), ((CONFIGS / "phi-4.json").read_bytes(), 0)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
        assert run(["layouts", "from-config", "-"]) == status
    assert json.loads(capsys.readouterr().out)["groups"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"architectures": ["NewForCausalLM"]}', "NewForCausalLM is not known here"),
        ("{}", "config.json: the config names no architecture"),
        ("[]", "not a JSON object"),
        ("{", "config.json"),
    ],
)
def test_what_cannot_be_is_one_line(
    text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    assert run(["layouts", "from-config", str(tmp_path / "config.json")]) == 3
    told = capsys.readouterr()
    assert complaint in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""
