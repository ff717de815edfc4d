"""The command line on a real release, in processes as users start them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from releases import release

import kvcheck
from kvcheck.files import write_run
from kvcheck.model.actions import Arrive, Run, Schedule
from kvcheck.model.layout import Group, Layout

pytestmark = pytest.mark.release

LAYOUT = Layout(
    groups=(Group(kind="mamba", block_size=2), Group(kind="sliding_window", block_size=2, window=2)),
    match_unit=1,
    num_blocks=10,
    max_model_len=8,
    token_budget=8,
)
SIGNATURE = "system.exception AssertionError find_longest_cache_hit"


def kv(*arguments: str) -> subprocess.CompletedProcess[str]:
    package = str(Path(kvcheck.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])}
    line = [sys.executable, "-m", "kvcheck", *arguments]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_a_bug_of_a_release_is_found_and_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release("0.27.1")
    monkeypatch.chdir(tmp_path)
    Path("layout.json").write_bytes(msgspec.json.encode(LAYOUT))
    limits = ["--layout", "layout.json", "--runs", "5", "--jobs", "1", "--seed", "1"]
    result = kv("fuzz", "--target", "vllm==0.27.1", *limits, "--json", "f.json")
    assert result.returncode == 1, result.stderr
    report = json.loads(Path("f.json").read_text())
    violation = next(v for v in report["violations"] if v["signature"] == SIGNATURE)
    assert violation["confirmed"]
    assert violation["actions"] == 2
    assert report["target_resolved"]["version"] == "0.27.1"
    again = kv(*shlex.split(violation["reproduce"])[1:])
    assert again.returncode == 1, again.stderr
    assert SIGNATURE in again.stdout


def test_a_recording_is_judged_without_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release("0.27.1")
    monkeypatch.chdir(tmp_path)
    write_run(Path("run.json"), Run(layout=LAYOUT, actions=(Arrive(label="a", prompt=(1,)), Schedule())))
    assert kv("replay", "run.json", "--target", "vllm==0.27.1", "--record", "trace.json").returncode == 1
    recorded = kv("replay", "trace.json", "--json", "-")
    assert recorded.returncode == 1
    assert [v["signature"] for v in json.loads(recorded.stdout)["violations"]] == [SIGNATURE]


def test_a_release_that_does_not_exist() -> None:
    release("0.27.1")
    result = kv("fuzz", "--target", "vllm==9.9.9", "--seconds", "1")
    assert result.returncode == 3
    assert result.stderr.startswith("kvcheck: vllm==9.9.9: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
