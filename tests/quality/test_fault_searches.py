"""The harness still finds what it found: each fault by its stored run, three of them anew."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvcheck.engines.judging import judge_run
from kvcheck.engines.score import search_fault
from kvcheck.engines.watched import Watched
from kvcheck.model.actions import Run
from kvcheck.model.faults import FAULTS
from kvcheck.targets.loading import load_target

ROOT = Path(__file__).parents[2]
RECORD: dict[str, dict[str, Any]] = json.loads((ROOT / "counterexamples/track_record.json").read_text())["faults"]
SEARCHED = ("no-capability-check", "eagle-bound-rounded", "diverged-no-fallback")
SECONDS = 60.0


def test_the_track_record_is_what_the_data_give() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/track-record", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows_in_its_stored_run_and_only_with_the_fault(fault: str) -> None:
    run = msgspec.convert(RECORD[fault]["run"], Run)
    with_fault = judge_run(load_target(f"model+{fault}"), run)
    assert RECORD[fault]["signature"] in [violation.signature for violation in with_fault.violations]
    without = judge_run(load_target("model"), run)
    assert (without.violations, without.undetermined) == ((), "")


@pytest.mark.parametrize("fault", SEARCHED)
def test_a_fault_is_found_anew(fault: str, record_property: Callable[[str, object], None]) -> None:
    found = search_fault(Watched(f"model+{fault}"), fault, 1, SECONDS)
    assert found.found, found
    record_property(
        "measured", f"{fault}: found by {found.invariant} after {found.runs} runs, shrunk to {found.actions} actions"
    )
    shortest = len(RECORD[fault]["run"]["actions"])
    assert found.actions <= shortest + 3
