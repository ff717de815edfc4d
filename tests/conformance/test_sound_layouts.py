"""No false alarm: where a release has no known bug, random runs find nothing."""

from __future__ import annotations

from collections import Counter

import pytest
from helpers import SOUND, release_worker

from kvcheck.targets.vllm.release import KNOWN_RELEASES

pytestmark = pytest.mark.release

RUNS = 40


@pytest.mark.parametrize("version", KNOWN_RELEASES)
def test_nothing_is_found_on_layouts_that_are_sound(version: str) -> None:
    """Each preset at least once; and the runs are not empty: what should be checked did come up."""
    assert len(SOUND) <= RUNS
    seen: Counter[str] = Counter()
    found: dict[int, list[str]] = {}
    actions = 0
    with release_worker(version, searcher="helpers:search_sound") as worker:
        for seed in range(RUNS):
            result = worker.search(seed)
            assert result.undetermined == ""
            seen.update(result.witnesses)
            actions += result.actions
            if result.violations:
                found[seed] = [f"{violation.signature}: {violation.message}" for violation in result.violations]
    assert found == {}
    assert actions > 50 * RUNS
    for situation in ("hit", "eviction", "preemption", "window-given-up", "steps-overlap", "load-with-step", "resume"):
        assert seen[situation] > 0, situation
