"""The same run gives the same observations, byte for byte, whatever ran before it in the same process."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from helpers import release_worker

from kvcheck.engines.watched import Watched
from kvcheck.model.actions import Run

pytestmark = pytest.mark.release

RUNS = 100


def fingerprints(worker: Watched, runs: dict[int, Run]) -> dict[int, str]:
    """What each run showed and how it was judged, by seed."""
    found = {}
    for seed, run in runs.items():
        result = worker.judge(run, record=True)
        assert result.trace is not None, result.undetermined
        assert len(result.trace.observations) > 1
        seen = msgspec.json.encode([result.trace.observations, result.violations, result.witnesses])
        found[seed] = hashlib.sha256(seen).hexdigest()
    return found


@pytest.mark.parametrize("version", ["0.28.0", "0.33.0"])
def test_a_hundred_random_runs_twice(version: str) -> None:
    with release_worker(version) as worker:
        runs = {seed: worker.search(seed).run for seed in range(RUNS)}
        first = fingerprints(worker, runs)
    assert len(set(first.values())) == RUNS
    with release_worker(version) as worker:
        second = fingerprints(worker, dict(reversed(runs.items())))
    assert {seed for seed in runs if first[seed] != second[seed]} == set()


def test_a_seed_gives_one_run() -> None:
    searched = []
    for _ in range(2):
        with release_worker("0.28.0") as worker:
            searched.append([msgspec.json.encode(worker.search(seed)) for seed in range(5)])
    assert searched[0] == searched[1]
