"""A real scheduler that is recorded while it is driven: its recording says as much as watching it did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import replace
from releases import output_of, release

from kvcheck.engines.watched import Watched
from kvcheck.targets.recording import Planned, encode, read_recording

PROJECT = Path(__file__).parents[2]
TESTS = PROJECT / "tests"
RUNS = 25
pytestmark = pytest.mark.release

DRIVE = """
    import json, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from live import random_recordings
    print(json.dumps(random_recordings(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))))
"""
SERVE = """
    import os, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from live import serve
    serve(sys.argv[2], end=sys.argv[3], passes=int(sys.argv[4]))
"""
CUT = """
    import json, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from live import parted_where_cut
    print(json.dumps(parted_where_cut(sys.argv[2], Path(sys.argv[3]))))
"""


@pytest.mark.parametrize("version", ["0.28.0", "0.33.0"])
def test_random_runs_are_judged_from_their_recording_as_they_were(version: str, tmp_path: Path) -> None:
    """Connectors, drafts, overlapping steps, preemptions, aborts and resets among them, and crashes."""
    release(version)
    told = json.loads(output_of(DRIVE, TESTS, f"vllm=={version}", RUNS, tmp_path, PYTHONPATH=str(PROJECT)))
    assert told["parted"] == []
    assert told["same"] > RUNS * 3 // 4
    assert told["violated"] > 0
    assert told["same"] + told["outside"] == RUNS


def served(tmp_path: Path, end: str, passes: int = 120) -> Path:
    release("0.33.0")
    file = tmp_path / "recording"
    output_of(SERVE, TESTS, "vllm==0.33.0", end, passes, PYTHONPATH=str(PROJECT), KVCHECK_RECORD=str(file))
    return file


def judged(file: Path, version: str = "0.33.0") -> tuple[str, list[str]]:
    """What replay says: why it is undetermined, and the invariants that are broken."""
    watched = Watched(f"vllm=={version}")
    try:
        result = watched.retrace(file)
    finally:
        watched.close()
    return result.undetermined, [violation.invariant for violation in result.violations]


def test_what_the_subclass_of_a_scheduler_has_is_among_its_settings(tmp_path: Path) -> None:
    settings = read_recording(served(tmp_path, "shutdown", passes=2)).opened.settings
    assert (settings["scheduler.pp_size"], settings["scheduler._spec_token_placeholders"]) == (1, "set")


def test_a_served_load_passes_and_no_text_is_written(tmp_path: Path) -> None:
    file = served(tmp_path, "shutdown")
    text = file.read_text()
    assert judged(file) == ("", [])
    assert "secret" not in text
    assert '"line":"closed"' in text.splitlines()[-1]


def test_a_killed_server_leaves_what_it_did(tmp_path: Path) -> None:
    file = served(tmp_path, "cut")
    undetermined, violations = judged(file)
    assert undetermined.startswith("cut-off: ")
    assert violations == []


def test_wherever_a_recording_is_cut_it_is_cut_off(tmp_path: Path) -> None:
    """Also between what was done to the server and what came of it."""
    file = served(tmp_path, "shutdown", passes=45)
    assert json.loads(output_of(CUT, TESTS, "vllm==0.33.0", file, PYTHONPATH=str(PROJECT))) == []


def test_on_another_release_a_server_with_other_attributes_is_outside(tmp_path: Path) -> None:
    release("0.28.0")
    recording = read_recording(served(tmp_path, "shutdown", passes=5))
    opened = replace(recording.opened, vllm="0.33.0")
    recording.path.write_bytes(b"".join(encode(line) + b"\n" for line in (opened, *recording.lines)))
    undetermined, violations = judged(recording.path, "0.28.0")
    assert undetermined.startswith("outside: recorded from 0.33.0, the target is 0.28.0: ")
    assert "and not absent" in undetermined
    assert violations == []


def test_the_recording_ends_where_somebody_else_than_the_scheduler_evicts(tmp_path: Path) -> None:
    undetermined, violations = judged(served(tmp_path, "evicted"))
    assert undetermined == "outside: blocks that something else than the scheduler takes, gives back or evicts"
    assert violations == []


def test_a_server_that_does_something_else_is_neither_passed_nor_accused(tmp_path: Path) -> None:
    file = served(tmp_path, "shutdown")
    recording = read_recording(file)
    plans = [i for i, line in enumerate(recording.lines) if isinstance(line, Planned) and line.more]
    lines = list(recording.lines)
    index, tables = lines[plans[3]].more[0]
    swapped = [(index, tuple(tuple(block + 1 for block in table) for table in tables)), *lines[plans[3]].more[1:]]
    lines[plans[3]] = replace(lines[plans[3]], more=swapped)
    file.write_bytes(b"".join(encode(line) + b"\n" for line in (recording.opened, *lines)))
    undetermined, violations = judged(file)
    assert undetermined.startswith("parted: at action ")
    assert "the live server and the release part: blocks that are added: " in undetermined
    assert violations == []
