"""What is counted of a run, and in which direction it gets worse."""

from __future__ import annotations

from collections import Counter
from math import inf

from kvcheck.engines.measures import MEASURES, WORSE, differing, measures_of, percent_worse, total, worse_by
from kvcheck.model.observation import Begin, Drop, End, Event, Observation, Register, Scheduled, StepPlan, Take


def seen(*log: Event, plan: StepPlan | None = None) -> Observation:
    return Observation(index=0, log=log, plan=plan)


def begin(label: str, local: int) -> Begin:
    return Begin(label, 0, local, 0, 4, 0, False)


def test_only_hits_that_an_allocation_takes_up_count() -> None:
    log = (begin("a", 8), End("a", False), begin("a", 8), End("a", True), begin("b", 2), End("b", True))
    assert measures_of(seen(*log))["hit_tokens"] == 10


def test_a_key_is_evicted_when_its_block_is_handed_out_and_not_when_it_is_promoted_or_moved() -> None:
    evicted = (Drop(0, 3, 2, 1), Drop(1, 4, 2, 1), Take("a", 0, (3, 4)))
    promoted = (Drop(0, 3, 2, 1), Register("a", 0, 3, 4, 2), Take("a", 0, (3,)))
    other = (Drop(0, 3, 2, 1), Take("a", 0, (5,)))
    counts = [measures_of(seen(*log))["evictions"] for log in (evicted, promoted, other)]
    assert counts == [2, 0, 0]
    assert measures_of(seen(*promoted))["registrations"] == 1


def test_passes_that_run_nothing_are_none() -> None:
    request = Scheduled("a", "new", 0, 5, 0, 5, ((1,),), (1, 2, 3, 4, 5))
    full = measures_of(seen(plan=StepPlan(seq=1, requests=(request,), preempted=("b",), copies=((1, 2),))))
    assert [full[name] for name in ("passes", "computed_tokens", "preemptions", "copies")] == [1, 5, 1, 1]
    assert measures_of(seen(plan=StepPlan(seq=1, requests=())))["passes"] == 0
    assert set(full) == set(MEASURES) >= set(WORSE)


def test_fewer_hits_and_more_work_are_worse() -> None:
    base, head = Counter(hit_tokens=10, copies=4), Counter(hit_tokens=8, copies=5, evictions=1)
    assert [worse_by(name, base, head) for name in ("hit_tokens", "copies", "evictions")] == [2, 1, 1]
    assert [percent_worse(name, base, head) for name in ("hit_tokens", "copies", "evictions")] == [20, 25, inf]
    assert percent_worse("hit_tokens", head, base) == -25
    assert percent_worse("passes", base, head) == 0


def test_the_actions_at_which_two_servers_differ() -> None:
    base, head = [{"copies": 0}, {"copies": 2}, {"copies": 1}], [{"copies": 0}, {"copies": 1}, {"copies": 1}]
    assert list(differing("copies", base, head)) == [(1, 2, 1)]
    assert total(base) == {"copies": 3}
