"""Exported tests of the server's own fail on releases that have the defect, and pass on those that do not."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from releases import output_of, release

from kvcheck.targets.vllm.release import KNOWN_RELEASES

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]
STATED = {
    file.parent.name: json.loads(file.read_text(encoding="utf-8"))
    for file in sorted((ROOT / "counterexamples").glob("*/expected.json"))
}
FULL = "0.32.0"

EXPORT = """
    import json, sys
    from pathlib import Path
    from kvcheck.engines.judging import judge_run
    from kvcheck.export.found import Found
    from kvcheck.export.vllm_test import vllm_test
    from kvcheck.files import InputError, read_run, stated_signature
    from kvcheck.targets.loading import load_target

    target, out, refused = load_target(sys.argv[1]), Path(sys.argv[2]), {}
    for folder in map(Path, sys.argv[3:]):
        result, name = judge_run(target, read_run(folder), record=True), folder.name.replace("-", "_")
        violation = next(one for one in result.violations if one.signature == stated_signature(folder))
        try:
            text = vllm_test(Found(result.trace, violation), name)
        except InputError as error:
            refused[folder.name] = str(error)
        else:
            (out / f"test_{name}.py").write_text(text)
    print(json.dumps(refused))
"""


def exported(version: str, names: list[str], folder: Path) -> None:
    """Export these counterexamples as the release shows them."""
    folders = [ROOT / "counterexamples" / name for name in names]
    assert json.loads(output_of(EXPORT, f"vllm=={version}", folder, *folders, PYTHONHASHSEED="0")) == {}


def outcomes(folder: Path, *options: str, **environment: str) -> dict[str, str]:
    """What became of each test in a session of its own: the exception's line, or nothing if it passed."""
    report = folder / "report.xml"
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), *options]
    variables = {**os.environ, **environment}
    done = subprocess.run(
        [*line, f"--junitxml={report}", str(folder)], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = {}
    for case in ET.parse(report).iter("testcase"):
        failure = case.find("failure")
        assert case.find("error") is None
        name = str(case.get("name")).removeprefix("test_").replace("_", "-")
        skipped = case.find("skipped")
        if skipped is not None:
            found[name] = f"skipped: {skipped.get('message')}"
        else:
            found[name] = "" if failure is None else str(failure.get("message"))
    return found


def light(folder: Path, version: str) -> dict[str, str]:
    release(version)
    return outcomes(folder, "-p", "kvcheck.pytest_plugin", "--kvcheck-light", f"vllm=={version}")


def wrong(seen: dict[str, str], version: str) -> dict[str, tuple[str, str]]:
    """Tests that fail or pass where they should not, or fail for something else than what they are about."""
    found = {}
    for name, message in seen.items():
        stated = STATED[name]
        verdict, words = stated["expected"][f"vllm=={version}"], stated["signature"].split()
        about = words[1] if words[0] == "system.exception" else "assert"
        right = not message if verdict == "passed" else message.lower().startswith(about.lower())
        if not right and verdict != "undetermined":
            found[name] = verdict, message
    return found


@pytest.mark.parametrize("version", KNOWN_RELEASES)
def test_every_counterexample_fails_where_it_should_and_passes_where_it_should(version: str, tmp_path: Path) -> None:
    """On the release that it was exported from, and on the next one, where some defects have ended."""
    release(version)
    names = [name for name, stated in STATED.items() if stated["expected"][f"vllm=={version}"] == "violated"]
    exported(version, names, tmp_path)
    seen = light(tmp_path, version)
    assert sorted(seen) == names
    assert wrong(seen, version) == {}
    index = KNOWN_RELEASES.index(version)
    other = KNOWN_RELEASES[index + 1 if index + 1 < len(KNOWN_RELEASES) else index - 1]
    assert wrong(light(tmp_path, other), other) == {}


@pytest.mark.parametrize(
    ("version", "field"), [("0.28.0", "num_prefill_checkpoint_blocks"), ("0.29.0", "prefill_checkpoint_alignment")]
)
def test_one_that_a_release_has_no_layout_for_is_skipped_there(version: str, field: str, tmp_path: Path) -> None:
    release("0.33.0")
    exported("0.33.0", ["checkpoint-behind-partial-hit"], tmp_path)
    reason = f"skipped: MambaSpec has no {field} in this version of vLLM"
    assert light(tmp_path, version) == {"checkpoint-behind-partial-hit": reason}


def test_one_whose_layout_a_release_refuses_is_skipped_there(tmp_path: Path) -> None:
    release("0.33.0")
    exported("0.33.0", ["mtp-reserve-leaves-nothing"], tmp_path)
    assert "this version of vLLM refuses the layout: " in light(tmp_path, "0.26.0")["mtp-reserve-leaves-nothing"]


def test_they_say_the_same_with_the_whole_of_vllm(tmp_path: Path) -> None:
    """No plugin, no light loading: vLLM with its own dependencies, as in its repository."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        pytest.skip("vLLM's dependencies are not installed: pip install '.[vllm]'")
    sources = release(FULL, "full").root
    for version in ("0.26.0", "0.31.0", FULL):
        release(version)
        newest = [n for n, s in STATED.items() if newest_violated(s["expected"]) == version]
        exported(version, newest, tmp_path)
    paths = os.pathsep.join([str(sources), *filter(None, [os.environ.get("PYTHONPATH")])])
    seen = outcomes(tmp_path, "-o", "markers=cpu_test", PYTHONPATH=paths, VLLM_LOGGING_LEVEL="ERROR")
    assert len(seen) > 8
    assert wrong(seen, FULL) == {}


def newest_violated(expected: dict[str, str]) -> str:
    return next(version for version in reversed(KNOWN_RELEASES) if expected[f"vllm=={version}"] == "violated")
