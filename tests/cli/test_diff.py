"""kvcheck diff: reports, exit statuses, wrong usage."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from kvcheck.cli.commands import diff as command_module
from kvcheck.cli.main import run
from kvcheck.engines.measures import WORSE
from kvcheck.files import OutputError

FAULTY = "model+replay-boundary-not-kept"
LAYOUT = {
    "version": 1,
    "groups": [{"kind": "full", "block_size": 4}, {"kind": "mamba", "block_size": 4}],
    "retention": 0,
    "num_blocks": 40,
    "max_model_len": 40,
    "token_budget": 40,
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KVCHECK_OUT", raising=False)
    Path("layout.json").write_text(json.dumps(LAYOUT))


def diff(base: str, head: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    bound = ["--layout", "layout.json", "--runs", "5", "--seed", "1", "--json", "d.json"]
    status = run(["diff", "--base", base, "--head", head, *bound, *arguments])
    return status, json.loads(Path("d.json").read_text())


def test_a_change_for_the_worse(capsys: pytest.CaptureFixture[str]) -> None:
    status, report = diff("model", FAULTY, "--markdown", "d.md", "--limit", "hit_tokens=1")
    assert (status, report["version"], report["verdict"]) == (1, 1, "violated")
    assert (report["base"], report["head"], report["runs"], report["seed"]) == ("model", FAULTY, 5, 1)
    assert report["fixed"] == []
    new = next(one for one in report["new"] if one["invariant"] == "hits.repeat")
    assert run(new["reproduce"].split()[1:]) == 1
    hits = report["measures"]["hit_tokens"]
    assert hits["head"] < hits["base"]
    assert report["exceeded"] == ["hit_tokens"]
    worse = next(one for one in report["worse"] if one["measure"] == "hit_tokens")
    assert len(json.loads(Path(worse["run"]).read_text())["actions"]) == worse["actions"]
    shown = capsys.readouterr().out
    assert "hit_tokens worse by more than 1 %" in shown
    assert f"new: only on {FAULTY}" in shown
    comment = Path("d.md").read_text()
    assert comment.startswith("### kvcheck: violated\n")
    assert f"| hit_tokens | {hits['base']} | {hits['head']} |" in comment
    assert new["signature"] in comment


def test_whatever_gets_worse_may_have_a_limit() -> None:
    limits = [argument for measure in WORSE for argument in ("--limit", f"{measure}=5")]
    assert diff("model", "model", "--runs", "1", *limits)[0] == 0


def test_no_change(capsys: pytest.CaptureFixture[str]) -> None:
    status, report = diff("model", "model")
    assert (status, report["verdict"], report["new"], report["worse"]) == (0, "passed", [], [])
    assert report["paired"] == 5
    assert "passed: head breaks nothing in these runs that base does not" in capsys.readouterr().out


def test_an_interruption_after_the_comparison_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    show = command_module.show_comparison

    def interrupted(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert Path("d.json").exists()
        show(*arguments)

    monkeypatch.setattr(command_module, "show_comparison", interrupted)
    status, report = diff("model", "model", "--runs", "1", "--markdown", "d.md")
    assert (status, report["verdict"], report["interrupted"]) == (0, "passed", False)
    assert Path("d.md").exists()


def test_a_layout_that_a_target_does_not_have() -> None:
    Path("layout.json").write_text(
        json.dumps(
            LAYOUT
            | {
                "groups": [
                    {"kind": "full", "block_size": 4},
                    {"kind": "mamba", "block_size": 4, "checkpoint_blocks": 1, "checkpoint_alignment": 1},
                ]
            }
        )
    )
    status, report = diff("model", "model")
    assert (status, report["verdict"]) == (2, "undetermined")
    assert "not-supported" in {item["code"] for item in report["undetermined"]}


def test_a_comment_that_cannot_be_written_is_not_passed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_path: Path, _text: str) -> None:
        raise OutputError("cannot write d.md: the disk is full")

    monkeypatch.setattr(command_module, "write_text", full)
    status, report = diff("model", "model", "--markdown", "d.md")
    assert (status, report["verdict"]) == (2, "passed")
    assert capsys.readouterr().err == "kvcheck: cannot write d.md: the disk is full\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--head", "model"), "--base"),
        (("--base", "model", "--head", "nothing"), "names no target"),
        (("--base", "model", "--head", "model", "--limit", "hit_tokens"), "is not MEASURE=PERCENT"),
        (("--base", "model", "--head", "model", "--limit", "hits=1"), "one of hit_tokens"),
        (
            ("--base", "model", "--head", "model", "--limit", "registrations=1"),
            "registrations is told, and never judged",
        ),
        (
            ("--base", "model", "--head", "model", "--limit", "scheduling_seconds=1"),
            "limits are for hit_tokens, evictions",
        ),
        (("--base", "model", "--head", "model", "--limit", "copies=-1"), "percentage of 0 or more"),
        (("--base", "model", "--head", "model", "--layout", "nothing"), "neither a preset"),
        (("--base", "model", "--head", "model", "--markdown", "."), "it is a folder"),
        (("--base", "model", "--head", "model", "--json", "x", "--markdown", "x"), "two options name it"),
        (("--base", "model", "--head", "model", "--seconds", "0"), "above 0"),
    ],
)
def test_wrong_usage_is_told_in_one_line(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["diff", *arguments]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
