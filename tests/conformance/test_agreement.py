"""The model with the faults of 0.28.0 agrees with the real 0.28.0, and the model without faults breaks nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from releases import release

from kvcheck.engines.judging import judge_run
from kvcheck.files import expected_verdicts, read_run
from kvcheck.targets.loading import load_target

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent for path in (ROOT / "counterexamples").glob("*/run.json"))
ACTIONS = 20_000
NOT_THE_MODELS = {
    "checkpoint-behind-partial-hit": "the model has no prefill checkpoints: name a release with --target",
    "duplicate-block-draft-content": "the model promises no draft content of duplicates (R1.21)",
}


@pytest.mark.release
def test_the_model_and_the_release_agree_action_by_action(
    record_property: Callable[[str, object], None], tmp_path: Path
) -> None:
    release("0.28.0")
    line = [sys.executable, ROOT / "scripts/agree", "--actions", ACTIONS, "--jobs", 1, "--out", tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    done = subprocess.run([str(part) for part in line], env=environment, capture_output=True, text=True, check=False)
    record_property("measured", done.stdout.strip().splitlines()[0] if done.stdout else "")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_what_releases_get_wrong_the_model_gets_right(folder: Path) -> None:
    result = judge_run(load_target("model"), read_run(folder))
    if folder.name == "checkpoint-behind-partial-hit":
        assert result.undetermined.endswith(NOT_THE_MODELS[folder.name])
    else:
        assert (result.violations, result.undetermined) == ((), "")


@pytest.mark.parametrize("folder", [f for f in FOLDERS if f.name not in NOT_THE_MODELS], ids=lambda folder: folder.name)
def test_the_model_of_the_release_gets_wrong_what_the_release_does(folder: Path) -> None:
    """On the same run, with the same signature up to the names of exceptions."""
    expected = expected_verdicts(folder)["vllm==0.28.0"]
    result = judge_run(load_target("model@0.28.0"), read_run(folder))
    assert ("violated" if result.violations else "passed") == expected
    if expected == "violated":
        signature = json.loads((folder / "expected.json").read_text())["signature"]
        seen = [violation.signature for violation in result.violations]
        assert signature in seen or (signature.split()[0] == "system.exception" and "ServerError" in seen[0])
