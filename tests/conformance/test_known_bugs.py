"""Known bugs of releases are found from random layouts, without a hint, and are gone where they were mended.

Seeds are fixed; how many runs a bug may take is far above what it takes, so that the generators may change.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from helpers import full, layout_of, mamba, release_worker, window

from kvcheck.engines.search import SearchResult
from kvcheck.engines.watched import Watched
from kvcheck.invariants.registry import Violation
from kvcheck.model.actions import Arrive, Run, Schedule
from kvcheck.model.layout import Drafter, Layout
from kvcheck.model.observation import Begin, Lookup, Trace

pytestmark = pytest.mark.release

SHRINK_SECONDS = 60.0
ASSERTION = "system.exception AssertionError find_longest_cache_hit"


def first(worker: Watched, most: int, is_it: Callable[[SearchResult, Violation], bool]) -> tuple[Run, Violation]:
    """The first run that shows what is looked for, with the violation, among so many random ones."""
    for seed in range(most):
        result = worker.search(seed)
        violation = next((v for v in result.violations if is_it(result, v)), None)
        if violation is not None:
            return result.run, violation
    return pytest.fail(f"nothing found in {most} runs")


# ---- 0.27.1 and before: a window is asked for a hit inside a block (R10.12) ------------------------------------------


def test_the_window_drafter_assertion_is_found_and_shrunk() -> None:
    with release_worker("0.27.1") as worker:
        run, violation = first(worker, 300, lambda _, v: v.signature == ASSERTION)
        assert violation.severity == "crash"
        small = worker.shrink(run, ASSERTION, SHRINK_SECONDS)
        assert small.violation is not None
        assert len(small.run.actions) <= 3
        assert {g.kind for g in small.run.layout.groups} == {"mamba", "sliding_window"}
        assert {"a mamba group", "a sliding-window group"} <= set(small.needs)
        assert [v.signature for v in worker.judge(small.run).violations] == [ASSERTION]
    with release_worker("0.28.0") as worker:
        assert worker.judge(small.run).violations == ()


def test_a_layout_of_the_right_shape_shows_it_with_the_first_request() -> None:
    """Two actions are enough, and the same layout without a match unit shows nothing."""
    drafter = Drafter(method="dspark", tokens=3)
    coarse = layout_of(
        mamba(8, 3), full(8), window(9, 11), drafter=drafter, num_blocks=60, max_model_len=80, worker_generation=2
    )
    even = layout_of(mamba(8, 3), full(8), window(8, 11), drafter=drafter, num_blocks=60, worker_generation=2)
    actions = (Arrive(label="a", prompt=tuple(range(1, 20))), Schedule())
    with release_worker("0.27.1") as worker:
        assert [v.signature for v in worker.judge(Run(layout=coarse, actions=actions)).violations] == [ASSERTION]
        assert worker.judge(Run(layout=even, actions=actions)).violations == ()


# ---- 0.26.0: hits of unequal length are adopted (R10.11) -------------------------------------------------------------

WRONG = re.compile(r"(agreement\.resume|content\.(attention|state)|tables\.executable) ")


def adopted(trace: Trace, layout: Layout) -> set[str]:
    """Kinds of groups that had less than what a request resumed on, with nothing loaded for them."""
    lookup: Lookup | None = None
    kinds: set[str] = set()
    for seen in trace.observations:
        for event in seen.log:
            if isinstance(event, Lookup) and event.how == "each":
                lookup = event
            elif isinstance(event, Begin) and lookup is not None and not event.computed:
                if event.local and not event.external:
                    groups = zip(layout.groups, lookup.lengths, strict=True)
                    kinds |= {g.kind for g, length in groups if length < event.local}
                lookup = None
    return kinds


def divergent(worker: Watched, kinds: set[str]) -> tuple[Run, Violation]:
    """A run that goes wrong in groups of these kinds because they had less than what was adopted."""

    def is_it(result: SearchResult, violation: Violation) -> bool:
        layout = result.run.layout
        groups = set(violation.signature.split()[1].split("+"))
        if (
            layout.connector is None
            or not layout.has_mamba
            or not WRONG.match(violation.signature)
            or not groups & kinds
        ):
            return False
        trace = worker.judge(result.run, record=True).trace
        return trace is not None and bool(adopted(trace, layout) & kinds)

    return first(worker, 400, is_it)


@pytest.mark.parametrize("kinds", [{"full", "mla"}, {"mamba"}], ids=["state deeper", "attention deeper"])
def test_the_divergent_hit_is_found_in_both_directions(kinds: set[str]) -> None:
    with release_worker("0.26.0") as worker:
        run, violation = divergent(worker, kinds)
        assert violation.severity == "corruption"
    with release_worker("0.27.1") as worker:
        result = worker.judge(run, record=True)
        assert result.trace is not None
        assert adopted(result.trace, run.layout) == set()
        assert violation.signature not in {v.signature for v in result.violations}


# ---- up to 0.33.0: the estimate of a Mamba group is one short (R10.2) ------------------------------------------------

ESTIMATE = "estimate.covers mamba schedule"


@pytest.mark.parametrize("version", ["0.28.0", "0.33.0"])
def test_the_mamba_estimate_with_external_tokens_is_found(version: str) -> None:
    with release_worker(version) as worker:
        run, violation = first(worker, 400, lambda _, v: v.signature == ESTIMATE and bool(_external(v)))
        estimated, took = map(int, re.findall(r"estimated (-?\d+) blocks for \w+ and took (\d+)", violation.message)[0])
        assert took == estimated + 1
        small = worker.shrink(run, ESTIMATE, SHRINK_SECONDS)
        assert small.violation is not None
        assert len(small.run.actions) <= 4
        assert any(not g.is_attention for g in small.run.layout.groups)
        assert ESTIMATE in {v.signature for v in worker.judge(small.run).violations}


def _external(violation: Violation) -> int:
    """External tokens of the allocation that the message tells of."""
    return int(re.findall(r"external (\d+)", violation.message)[0])
