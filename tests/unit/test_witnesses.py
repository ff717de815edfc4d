"""Interesting situations: each can come up, is told apart from what looks like it, and never where it cannot be."""

from __future__ import annotations

from collections import Counter

import pytest
from helpers import (
    Bench,
    full,
    layout_of,
    load,
    mamba,
    new,
    release_worker,
    replace,
    request_view,
    running,
    step,
    view_of,
    window,
)

from kvcheck.invariants.witnesses import WITNESSES, possible_witnesses
from kvcheck.layouts.presets import preset
from kvcheck.model.actions import Abort, Complete, Evict, Reset, Schedule, Transfer
from kvcheck.model.layout import Connector, Drafter, Layout
from kvcheck.model.observation import Asked, Begin, Drop, End, Lookup, Processed

MOST_RUNS = 900
PROMPT = (7, 8, 9, 4, 5, 6, 3, 2)
ONE = layout_of(full(2))
HYBRID = layout_of(full(2), mamba(2))
DRAFTING = layout_of(full(4), drafter=Drafter(method="ngram", tokens=2))
CONNECTED = layout_of(full(2), mamba(2), connector=Connector(divergent=True))


def bench(layout: Layout = ONE) -> Bench:
    return Bench(layout, a=PROMPT, b=PROMPT)


def lookup(*lengths: int, length: int = 4, junction: int = 0, how: str = "agreed") -> Lookup:
    return Lookup("a", 7, length, lengths, ((),) * len(lengths), junction, how)  # type: ignore[arg-type]


def running_before(status: str = "running", **numbers: int) -> Bench:
    """``a`` exists with this status."""
    made = bench(DRAFTING)
    made.feed(Schedule(), view=view_of(DRAFTING, requests={"a": request_view(status, **numbers)}))
    return made


# ---- what they mean --------------------------------------------------------------------------------------------------


def test_a_hit_is_local() -> None:
    for local, external in ((4, 0), (4, 2), (0, 4), (0, 0)):
        begin = Begin("a", 0, local, external, 1, 0, False)
        assert ("hit" in bench(CONNECTED).witnessed(Schedule(), begin)) == (local > 0)


def test_a_partial_hit_ends_inside_a_scheduler_block() -> None:
    made = Bench(layout_of(full(8), mamba(8), match_unit=2))
    assert "partial-hit" in made.witnessed(Schedule(), replace(lookup(6, 6, length=6), label=""))
    assert "partial-hit" not in made.witnessed(Schedule(), replace(lookup(8, 8, length=8), label=""))


def test_an_eviction_needs_the_block_to_be_taken() -> None:
    dropped = Drop(0, 3, 2, 99)
    assert "eviction" in bench().witnessed(Schedule(), dropped, plan=step(fresh=(3,)))
    assert "eviction" not in bench().witnessed(Schedule(), dropped, plan=step(fresh=(4,)))
    assert "eviction" not in bench().witnessed(Evict(group=0, label="a", prefix=2), dropped)


def test_a_producers_copy_leaves_its_block_where_it_is() -> None:
    layout = layout_of(full(8), mamba(8), match_unit=2)
    view, plan = view_of(layout, {"a": ((1,), (2,))}, holders=((5, 1),)), step(running("a", 6, 1, 8), copies=((2, 5),))
    assert "copy-by-producer" in Bench(layout, a=PROMPT).witnessed(Schedule(), plan=plan, view=view)
    assert "copy-on-hit" not in Bench(layout, a=PROMPT).witnessed(Schedule(), plan=plan, view=view)
    hit = new("b", PROMPT, ((6,), (5,)), start=6)
    with_hit = view_of(layout, {"a": ((1,), (2,)), "b": ((6,), (5,))})
    seen = Bench(layout, a=PROMPT, b=PROMPT).witnessed(Schedule(), plan=step(hit, copies=((2, 5),)), view=with_hit)
    assert "copy-on-hit" in seen
    assert "copy-by-producer" not in seen


def test_the_two_directions_of_divergence() -> None:
    def seen(attention: int, state: int, how: str) -> set[str]:
        event = replace(lookup(attention, state, how=how), label="")
        return {name for name in bench(CONNECTED).witnessed(Schedule(), event) if name.startswith("diverged")}

    assert seen(6, 4, "each") == {"diverged-attention-deeper"}
    assert seen(4, 6, "each") == {"diverged-mamba-deeper"}
    assert seen(4, 4, "each") == set()
    assert seen(4, 6, "agreed") == set()


@pytest.mark.parametrize(
    ("start", "drafts", "accepted", "seen"),
    [(6, 2, 0, True), (6, 2, 1, False), (6, 2, 2, False), (3, 2, 0, False), (4, 2, 0, False), (4, 2, 1, False)],
)
def test_a_rejection_across_a_boundary(start: int, drafts: int, accepted: int, seen: bool) -> None:
    """Blocks of four: the first rejected draft lies in one block, the last one in the next."""
    plan = step(running("a", start, drafts + 1, start + 1, drafts=drafts), seq=0)
    processed = Processed({"a": accepted + 1})
    happened = running_before().witnessed(Complete(), executed=plan, processed=processed)
    assert ("rejection-across-a-boundary" in happened) == seen
    assert ("drafts-accepted" in happened) == (accepted > 0)


def test_a_request_that_ends_while_a_later_step_of_it_is_in_flight() -> None:
    plan, processed = step(running("a", 4, 1, 5), seq=0), Processed({"a": 1}, ended=("a",))
    ends = {n: running_before(in_flight=n).witnessed(Complete(), executed=plan, processed=processed) for n in (1, 2)}
    assert "ends-in-flight" in ends[2]
    assert "ends-in-flight" not in ends[1]


def test_loads() -> None:
    tables = ((1, 2), (0, 3))
    item = new("a", PROMPT, ((1, 2, 4, 5), (0, 0, 0, 3)), start=4)
    kinds = {"load-with-step", "load-asynchronous", "load-failed"}

    def seen(**fields: object) -> set[str]:
        plan = step(item, loads=(load("a", 0, 4, tables, **fields),))
        return bench(CONNECTED).witnessed(Schedule(), plan=plan) & kinds

    assert seen() == {"load-with-step"}
    assert seen(asynchronous=True) == {"load-asynchronous"}
    assert seen(arrives=1) == {"load-with-step", "load-failed"}


def test_a_load_beside_a_hit() -> None:
    for local, external in ((4, 2), (0, 2), (4, 0)):
        begin = Begin("a", 0, local, external, 1, 0, False)
        assert ("load-beside-hit" in bench(CONNECTED).witnessed(Schedule(), begin)) == bool(local and external)


def test_answers_and_transfers() -> None:
    made = bench(CONNECTED)
    assert "ask-later" in made.witnessed(Schedule(), Asked("a", 0, None, False))
    assert "ask-later" not in made.witnessed(Schedule(), Asked("a", 0, 0, False))
    assert "store" in made.witnessed(Transfer(label="a", what="store"))
    assert "store" not in made.witnessed(Transfer(label="a"))
    assert "store" not in made.witnessed(Transfer(label="a", what="store"), skipped="no such subject")


@pytest.mark.parametrize(("status", "seen"), [("loading", True), ("running", False), ("waiting", False)])
def test_an_abort_while_loading(status: str, seen: bool) -> None:
    assert ("abort-while-loading" in running_before(status).witnessed(Abort(label="a"))) == seen


def test_a_preempted_request_runs_again() -> None:
    plan = step(replace(new("a", PROMPT, ((1, 2),)), kind="new"))
    assert "resume" in running_before("preempted").witnessed(Schedule(), plan=plan)
    assert "resume" not in running_before("waiting").witnessed(Schedule(), plan=plan)
    resumed = step(replace(new("a", PROMPT, ((1, 2),)), kind="resumed"))
    assert "resume" in running_before("waiting").witnessed(Schedule(), plan=resumed)


def test_keys() -> None:
    fine = Bench(layout_of(full(8), mamba(8), match_unit=2), a=PROMPT)
    assert "second-key" not in fine.witnessed(Schedule(), fine.register(0, 1, "a", 4), plan=step(seq=1))
    assert "second-key" in fine.witnessed(Schedule(), fine.register(0, 1, "a", 6), plan=step(seq=2))
    made = bench()
    assert "duplicate-content" not in made.witnessed(Schedule(), made.register(0, 1, "a", 2), plan=step(seq=1))
    assert "duplicate-content" in made.witnessed(Schedule(), made.register(0, 2, "b", 2), plan=step(seq=2))


def test_a_window_gives_up_what_is_left_of_it() -> None:
    layout = layout_of(window(2, 2))
    for table, seen in (((0, 2), True), ((1, 2), False), ((2, 0), False), ((0,), False)):
        view = view_of(layout, {"a": (table,)})
        assert ("window-given-up" in Bench(layout, a=PROMPT).witnessed(Schedule(), plan=step(), view=view)) == seen


def test_resets_that_were_done() -> None:
    assert "reset-running" not in bench().witnessed(Reset(running=True))
    running_now = running_before()
    running_now.before = view_of(DRAFTING, {"a": ((1,),)})
    assert "reset-running" in running_now.witnessed(Reset(running=True))
    refused = running_before()
    refused.before = view_of(DRAFTING, {"a": ((1,),)})
    assert "reset-running" not in refused.witnessed(Reset(running=True), refused="the server declined")


def test_memory_that_is_short() -> None:
    assert "refused-allocation" in bench().witnessed(Schedule(), End("a", False))
    assert "refused-allocation" not in bench().witnessed(Schedule(), End("a", True))
    assert "preemption" in bench().witnessed(Schedule(), plan=step(preempted=("a",)))
    assert "preemption" not in bench().witnessed(Schedule(), plan=step(finished=("a",)))


# ---- where they can come up ------------------------------------------------------------------------------------------


def names(layout: Layout) -> set[str]:
    return {w.name for w in possible_witnesses(layout)}


def test_layouts_allow_what_they_have() -> None:
    plain = names(ONE)
    assert {"hit", "eviction", "chunked-prefill", "refused-allocation"} <= plain
    assert not plain & {"partial-hit", "copy-on-hit", "junction", "drafts-accepted", "steps-overlap", "load-failed"}
    assert names(replace(ONE, caching=False)) < plain
    assert not names(replace(ONE, caching=False)) & {"hit", "eviction", "duplicate-content"}
    assert {"partial-hit", "copy-on-hit", "second-key"} <= names(preset("gdn_unit"))
    assert {"drafts-accepted", "rejection-across-a-boundary"} <= names(DRAFTING)
    assert {"steps-overlap", "ends-in-flight"} <= names(replace(ONE, steps_in_flight=2))
    assert {"diverged-attention-deeper", "diverged-mamba-deeper"} <= names(CONNECTED)
    assert "diverged-mamba-deeper" not in names(replace(CONNECTED, connector=Connector()))


def test_every_witness_is_possible_on_some_preset_or_with_some_setting() -> None:
    rich = replace(preset("gdn_mtp_unit"), connector=Connector(divergent=True), steps_in_flight=2)
    reachable = names(rich) | names(replace(rich, connector=Connector()))
    assert set(WITNESSES) - reachable == set()


@pytest.mark.release
def test_every_witness_is_reached_and_only_where_it_is_possible() -> None:
    """Random layouts and runs of fixed seeds, until everything has come up."""
    seen: Counter[str] = Counter()
    impossible: dict[str, int] = {}
    with release_worker("0.28.0", searcher="helpers:search_all_witnesses") as worker:
        for seed in range(MOST_RUNS):
            result = worker.search(seed)
            seen.update(name for name, times in result.witnesses.items() if times)
            impossible.update(dict.fromkeys(set(result.witnesses) - names(result.run.layout), seed))
            if seed >= 250 and set(WITNESSES) <= set(seen):
                break
    assert impossible == {}
    assert sorted(set(WITNESSES) - set(seen)) == []
