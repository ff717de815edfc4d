"""The cache manager alone, driven without the server's scheduler, on three releases."""

from __future__ import annotations

from collections import Counter

import pytest
from helpers import full, layout_of, release_worker, replace, window

from kvcheck.layouts.presets import preset
from kvcheck.model.actions import Arrive, Complete, Run, Schedule
from kvcheck.model.layout import Connector, Drafter
from kvcheck.model.observation import Lookup

pytestmark = pytest.mark.release

RUNS = 60
VERSIONS = ("0.26.0", "0.28.0", "0.33.0")
KNOWN = {"0.26.0": {"system.exception AssertionError find_longest_cache_hit"}}
"""A window beside a finer hash block: R10.12."""
COPIED_TOO_EARLY = {51: {"content.attention full complete", "registration.names full complete"}}
"""By seed: a request hits a block that another gets its key for in the same pass, and copies it in the step that writes
it (R10.7)."""
PROMPT = tuple(range(1, 12))
STEP = (Schedule(), Complete())


@pytest.mark.parametrize("version", VERSIONS)
def test_random_runs_come_to_an_end_and_to_interesting_situations(version: str) -> None:
    seen: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    with release_worker(version, searcher="helpers:search_manager") as worker:
        for seed in range(RUNS):
            result = worker.search(seed)
            assert result.undetermined == ""
            assert result.run.level == "manager"
            known = KNOWN.get(version, set()) | COPIED_TOO_EARLY.get(seed, set())
            assert {v.signature for v in result.violations} <= known, (seed, result.violations)
            seen.update(result.witnesses)
            kinds.update(result.actions_by_kind)
    assert kinds["schedule"] > 20 * RUNS
    for situation in ("hit", "eviction", "chunked-prefill", "refused-allocation", "window-given-up", "preemption"):
        assert seen[situation] > 0, situation


@pytest.mark.parametrize("version", VERSIONS)
def test_a_repeat_hits_what_was_left(version: str) -> None:
    """Eleven tokens in blocks of two: five whole blocks, the last token is computed again in any case."""
    layout = layout_of(full(2), window(2, 4), num_blocks=30)
    first, second = (Arrive(label=label, prompt=PROMPT) for label in "ab")
    run = Run(layout=layout, actions=(first, *STEP, second, *STEP), level="manager")
    with release_worker(version) as worker:
        result = worker.judge(run, record=True)
    assert result.violations == ()
    assert result.trace is not None
    lookups = [event for seen in result.trace.observations for event in seen.log if isinstance(event, Lookup)]
    assert [(event.label, event.length) for event in lookups] == [("a", 0), ("b", 10)]
    last = result.trace.observations[-1].view
    assert last is not None
    assert not last.requests
    assert len(last.free) == layout.num_blocks - 1


@pytest.mark.parametrize(
    "layout",
    [
        replace(preset("full"), connector=Connector()),
        replace(preset("full"), steps_in_flight=2),
        layout_of(full(2), drafter=Drafter(method="eagle", tokens=1)),
    ],
    ids=["connector", "overlap", "drafter"],
)
def test_what_only_a_scheduler_has_is_not_supported(layout: object) -> None:
    with release_worker("0.28.0") as worker:
        result = worker.judge(Run(layout=layout, actions=(Schedule(),), level="manager"))  # type: ignore[arg-type]
    assert result.undetermined.startswith("not supported: at cache-manager level")
    assert result.violations == ()
