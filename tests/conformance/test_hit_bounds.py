"""What a hit can be at most, on releases: no hit is longer, and where one is shorter, a group is named."""

from __future__ import annotations

import pytest
from helpers import release_worker

from kvcheck.engines.hit_map import CASES, Question, question, tail_of
from kvcheck.layouts.changes import changed
from kvcheck.layouts.presets import PRESETS
from kvcheck.model.layout import Layout
from kvcheck.targets.vllm.release import KNOWN_RELEASES

pytestmark = pytest.mark.release

LENGTHS = 5


def setups(version: str) -> list[Layout]:
    """All presets, each with another interval of retention too, and those with a drafter without it."""
    every = [preset.layout(version) for preset in PRESETS.values()]
    dense = [changed(layout, "retention=dense") for layout in every if layout.retention != "dense"]
    return [*every, *dense, *(changed(layout, "drafter=none") for layout in every if layout.drafter)]


@pytest.mark.parametrize("version", [KNOWN_RELEASES[0], KNOWN_RELEASES[-1]])
def test_no_hit_is_longer_than_is_possible(version: str) -> None:
    measured = 0
    with release_worker(version) as worker:
        for layout in setups(version):
            for case in CASES:
                lengths = question([layout], case, tail_of(layout)).lengths
                asked = Question(case.name, lengths[:: max(1, len(lengths) // LENGTHS)], tail_of(layout))
                for point in worker.map_hits(layout, asked).points:
                    measured += 1
                    assert point.hit <= point.most <= point.shared, (layout, case.name, point)
                    if point.hit < point.most:
                        assert " group" in point.why, (layout, case.name, point)
    assert measured > len(PRESETS) * len(CASES)
