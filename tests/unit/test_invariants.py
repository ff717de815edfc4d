"""Every invariant reports what it should, and only that, on hand-made moments; and is silent on sound ones.

A case makes one thing wrong: whatever else the registry checks must stay silent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers import (
    Bench,
    chunked,
    found,
    full,
    layout_of,
    load,
    mamba,
    new,
    replace,
    request_view,
    running,
    step,
    view_of,
    window,
)
from toys import LOADER, run_of

from kvcheck.engines.watched import Watched
from kvcheck.engines.workers import Limits
from kvcheck.invariants.registry import MEANING, Violation, all_invariants
from kvcheck.invariants.witnesses import WITNESSES
from kvcheck.model.actions import Action, Arrive, Complete, Pause, Reset, Schedule, Transfer
from kvcheck.model.content import Prefixes
from kvcheck.model.layout import Connector, Drafter, Layout
from kvcheck.model.observation import (
    Announce,
    Asked,
    Begin,
    Clear,
    Commit,
    Drop,
    End,
    Estimate,
    Event,
    Failure,
    Lookup,
    Processed,
    Promises,
    Register,
    Release,
    Retold,
    StepPlan,
    Tables,
    Take,
    Touch,
)
from kvcheck.model.shadow import BadPlan, WrongRead

ROOT = Path(__file__).parents[2]
ONE = layout_of(full(2))
TWO = layout_of(full(2), window(2, 4))
HYBRID = layout_of(full(2), mamba(2))
FINE = layout_of(full(8), mamba(8), match_unit=2)
PROMPT = (7, 8, 9, 4, 5, 6, 3, 2)


class Outcome(NamedTuple):
    """What was found where something is wrong, and where nothing is."""

    broken: list[Violation]
    sound: list[Violation]


class Case(NamedTuple):
    invariant: str
    text: str
    make: Callable[[], Outcome]


CASES: list[Case] = []


def case(invariant: str, text: str) -> Callable[[Callable[[], Outcome]], Callable[[], Outcome]]:
    """A case of an invariant; ``text``: a pattern that the message must match."""

    def register(make: Callable[[], Outcome]) -> Callable[[], Outcome]:
        CASES.append(Case(invariant, text, make))
        return make

    return register


# ---- agreement -------------------------------------------------------------------------------------------------------


def lookup(label: str, length: int, blocks: tuple[tuple[int, ...], ...], cap: int = 7) -> Lookup:
    return Lookup(label, cap, length, (length,) * len(blocks), blocks, 0, "agreed")


@case("agreement.granularity", "hits 3 tokens, not a multiple of 2")
def _() -> Outcome:
    broken = Bench(TWO).feed(Schedule(), lookup("", 3, ((1, 2), (3, 4))))
    sound = Bench(TWO).feed(Schedule(), lookup("", 4, ((1, 2), (3, 4))))
    return Outcome(broken, sound)


@case("agreement.granularity", "hits 6 tokens, not a multiple of 8")
def _() -> Outcome:
    """Partial hits make the hash block the unit, and nothing else does."""
    broken = Bench(FINE).feed(Schedule(), lookup("", 6, ((1,), (2,))))
    sound = Bench(FINE, Promises(partial_hits=True)).feed(Schedule(), lookup("", 6, ((1,), (2,))))
    return Outcome(broken, sound)


@case("agreement.granularity", "hits 8 tokens of at most 7")
def _() -> Outcome:
    broken = Bench(TWO).feed(Schedule(), lookup("", 8, ((1, 2, 3, 4), (0, 0, 5, 6))))
    each = Lookup("", 7, 8, (8, 5), ((1,), (2,)), 0, "each")
    return Outcome(broken, Bench(TWO).feed(Schedule(), each))


def cached(layout: object = TWO, promises: Promises | None = None) -> Bench:
    """``a`` has registered four tokens, in blocks 1 and 2 of group 0, 3 and 4 of group 1; the step has not run."""
    bench = Bench(TWO if layout is TWO else HYBRID, promises, a=PROMPT)
    keys = [bench.register(g, 1 + 2 * g + i, "a", 2 * i + 2) for g in (0, 1) for i in (0, 1)]
    assert bench.feed(Schedule(), *keys, plan=step(seq=1)) == []
    return bench


@case("agreement.valid", "in group 0 column 1 block 9 has no key for it")
def _() -> Outcome:
    broken = cached().feed(Schedule(), lookup("a", 4, ((1, 9), (3, 4))))
    sound = cached().feed(Schedule(), lookup("a", 4, ((1, 2), (3, 4))))
    return Outcome(broken, sound)


@case("agreement.valid", "in group 1 column 0 there is no block")
def _() -> Outcome:
    """A window of 4 over blocks of 2 needs both blocks; one of 3 at a multiple of the block still needs one."""
    broken = cached().feed(Schedule(), lookup("a", 4, ((1, 2), (0, 4))))
    sound = cached(HYBRID).feed(Schedule(), lookup("a", 4, ((1, 2), (0, 4))))
    return Outcome(broken, sound)


@case("agreement.valid", "in group 1 column 1 block 3 has no key for it")
def _() -> Outcome:
    """A state serves one length only."""
    broken = cached(HYBRID).feed(Schedule(), lookup("a", 4, ((1, 2), (0, 3))))
    return Outcome(broken, cached(HYBRID).feed(Schedule(), lookup("a", 4, ((1, 2), (0, 4)))))


@case("agreement.peek", "a hits 4 tokens, but group 0 has not found the unit behind them")
def _() -> Outcome:
    """Registered are 4 tokens: an EAGLE group may resume at 2 and must compute the others again."""
    drops = Promises(drops=(0,))
    broken = cached(promises=drops).feed(Schedule(), lookup("a", 4, ((1, 2), (3, 4))))
    sound = cached(promises=drops).feed(Schedule(), lookup("a", 2, ((1,), (3,))))
    return Outcome(broken, sound)


def begin(label: str = "a", local: int = 0, external: int = 0, new_tokens: int = 1, computed: int = 0) -> Begin:
    return Begin(label, computed, local, external, new_tokens, 0, False)


@case("agreement.resume", "a resumes after 4 tokens, of which group 1 has only 2")
def _() -> Outcome:
    own = Lookup("a", 7, 4, (4, 2), ((1, 2), (0, 3)), 0, "each")
    broken = cached(HYBRID).feed(Schedule(), own, begin(local=4))
    sound = [*cached(HYBRID).feed(Schedule(), own, begin(local=4, external=2))]
    sound += cached(HYBRID).feed(Schedule(), replace(own, lengths=(4, 4)), begin(local=4))
    sound += cached(HYBRID).feed(Schedule(), own, begin(local=2))
    return Outcome(broken, sound)


# ---- content ---------------------------------------------------------------------------------------------------------


def read(what: str, label: str = "a") -> WrongRead:
    return WrongRead(label, 0, what, 3, 1, 2, "this", "that")  # type: ignore[arg-type]


def reading(what: str, status: str = "running", **fields: object) -> list[Violation]:
    bench = Bench(HYBRID, a=PROMPT)
    bench.feed(Schedule(), view=view_of(HYBRID, requests={"a": request_view(status)}))
    return bench.feed(
        Transfer(label="a", what="store") if what == "store" else Complete(), wrong=[read(what)], **fields
    )


for _invariant, _what in (
    ("content.attention", "forward"),
    ("content.state", "state"),
    ("content.draft", "draft"),
):

    @case(_invariant, r"^a reads position 3 in group 0 \(column 1, block 2\) and finds that instead of this$")
    def _(what: str = _what) -> Outcome:
        """Nobody reads what a request computes that is over, or that a dying server computes."""
        broken = reading(what)
        sound = reading(what, "held")
        sound += [v for v in reading(what, failure=FAILURE) if v.invariant != "system.exception"]
        return Outcome(broken, sound)


@case("content.draft", "a reads position 3")
def _() -> Outcome:
    """Without a hash lookahead a target may except what lies in a hit whose unit behind was there (R1.21)."""

    def reads(hit: int, *peeked: int, exact: bool = False) -> list[Violation]:
        bench = Bench(HYBRID, Promises(drops=(0,), drafts_of_duplicates=exact), a=PROMPT)
        bench.ledger.resumed_at["a"], bench.ledger.peeked["a"] = hit, set(peeked)
        bench.before = view_of(HYBRID, {"a": ((1, 2), (0, 3))})
        return bench.feed(Complete(), wrong=[read("draft")], view=bench.before)

    return Outcome(reads(4) + reads(2, 0) + reads(4, 0, exact=True), reads(4, 0))


@case("content.store", "a reads position 3 in group 0")
def _() -> Outcome:
    """The request is over, its blocks are kept: others must leave them alone."""
    return Outcome(reading("store", "held"), Bench(HYBRID, a=PROMPT).feed(Transfer(label="a", what="store")))


@case("content.attention", "a reads position 3")
def _() -> Outcome:
    """What a step computes on a load that failed does not count if the server takes it back (R7.10)."""

    def failed(computed: int, kept: int) -> list[Violation]:
        bench = Bench(HYBRID, a=PROMPT)
        bench.feed(Schedule(), view=view_of(HYBRID, requests={"a": request_view(computed=8, known=8)}))
        item = new("a", PROMPT, ((1, 2, 3, 4), (0, 0, 5, 6)), start=6)
        plan = step(item, seq=0, loads=(load("a", 0, 6, item.tables, arrives=2),))
        after = view_of(HYBRID, requests={"a": request_view(computed=computed, known=8)})
        return bench.feed(
            Complete(), wrong=[read("forward")], executed=plan, view=after, processed=Processed({"a": kept})
        )

    return Outcome([*failed(8, 0), *failed(2, 1)], failed(2, 0))


@case("content.answer", "the tokens of a are no longer those that they were")
def _() -> Outcome:
    """A session may drop what it had sampled; nobody else may."""

    def retold(*, session: bool) -> list[Violation]:
        bench = Bench(HYBRID)
        bench.feed(Arrive(label="a", prompt=PROMPT, session=session))
        return bench.feed(Schedule(), Retold("a", (*PROMPT, 1, 1)))

    return Outcome(retold(session=False), retold(session=True))


# ---- counters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["computed", "in_flight", "placeholders"])
def test_each_counter_has_a_signature_of_its_own(name: str) -> None:
    view = view_of(ONE, requests={"a": request_view(**{name: -1})})
    (violation,) = Bench(ONE, a=PROMPT).feed(Schedule(), view=view)
    assert violation.signature == f"counters.range {name.replace('_', '-')} - schedule"


@case("counters.range", "a has 7 computed tokens of 5 known ones")
def _() -> Outcome:
    def counted(computed: int, drafter: Drafter | None = None) -> list[Violation]:
        layout = replace(ONE, drafter=drafter)
        view = view_of(layout, requests={"a": request_view(computed=computed, known=5, placeholders=1)})
        return Bench(layout, a=PROMPT).feed(Schedule(), view=view)

    return Outcome(counted(7), [*counted(6), *counted(7, Drafter(method="ngram", tokens=1))])


@case("counters.range", "a has -1 in flight tokens")
def _() -> Outcome:
    def counted(in_flight: int) -> list[Violation]:
        view = view_of(ONE, requests={"a": request_view(in_flight=in_flight)})
        return Bench(ONE, a=PROMPT).feed(Schedule(), view=view)

    return Outcome(counted(-1), counted(0))


# ---- estimate --------------------------------------------------------------------------------------------------------


def allocating(*events: object, done: bool = True) -> list[Violation]:
    return Bench(TWO, a=PROMPT).feed(Schedule(), begin(local=2, new_tokens=3), *events, End("a", done))  # type: ignore[arg-type]


@case("estimate.covers", r"group 1 estimated 1 blocks for a and took 2 \(local 2, external 0, new 3 tokens\)")
def _() -> Outcome:
    """Blocks of its own and free ones that a hit revives both count; the estimate to admit does not."""
    estimates = Estimate("a", 0, 2, False), Estimate("a", 1, 1, False)
    broken = allocating(*estimates, Touch("a", 1, (5,), 1), Take("a", 1, (6,)))
    sound = allocating(
        *estimates, Touch("a", 0, (1,), 1), Take("a", 0, (2,)), Touch("a", 1, (5,), 0), Take("a", 1, (6,))
    )
    sound += allocating(Estimate("a", 1, 0, True), Take("a", 1, (6,)))
    return Outcome(broken, sound)


@case("estimate.covers", r"1 blocks were estimated for a and 2 taken \(local 2, external 0, new 3 tokens\)")
def _() -> Outcome:
    """The server compares the sum with what is free: a negative estimate hides what another group needs."""
    estimates = Estimate("a", 0, 2, False), Estimate("a", 1, -1, False)
    return Outcome(allocating(*estimates, Take("a", 0, (2, 3))), allocating(*estimates, Take("a", 0, (2,))))


@case("estimate.whole-or-nothing", "the allocation for a was refused after group 1 took blocks")
def _() -> Outcome:
    broken = allocating(Touch("a", 1, (5,), 1), done=False)
    return Outcome(broken, allocating(Estimate("a", 1, 99, False), done=False))


RESERVING = layout_of(full(4), window(4, 8), num_blocks=12, token_budget=4, connector=Connector())
HOLDING: dict[str, Tables] = {"a": ((1, 2, 3), (0, 4, 5)), "b": ((6, 7), (8, 9))}
IN_FLIGHT = {"prompt": 20, "known": 20, "computed": 12}


def loading_beside(
    *log: Event,
    layout: Layout = RESERVING,
    tables: dict[str, Tables] = HOLDING,
    status: str = "running",
    fails: bool = False,
    **fields: int,
) -> list[Violation]:
    """``a`` has run 12 of 20 tokens, and 8 tokens of ``b`` are loaded; what the pass has allocated is in the log."""
    bench = Bench(layout, a=range(20), b=range(30, 50), c=range(3))
    requests = {label: request_view("loading", **{**IN_FLIGHT, "computed": 8}) for label in tables}
    requests["a"] = request_view(status, **{**IN_FLIGHT, **fields})
    if fails:
        bench.ledger.failed_loads.add("a")
    view = view_of(layout, tables, requests=requests, running=("a",), waiting=tuple(set(tables) - {"a"}))
    loads = tuple(load(label, 0, 8, tables[label], asynchronous=True) for label in tables if label != "a")
    plan = step(loads=loads, awaited=tuple(block for one in loads for table in one.tables for block in table))
    return bench.feed(Schedule(), *(log or (End("b", True),)), plan=plan, view=view, pending_loads=1)


@case("estimate.reserved", "the load of b leaves 2 blocks free, and others still need more: a 3")
def _() -> Outcome:
    """Full attention needs 2 blocks more, and the window, whose next token sees 3 blocks, one beside the 2 it has.

    What comes after the load may take what it left; of one that comes before it, and of a request that a failed load
    has set back, nothing is known.
    """
    broken = loading_beside() + loading_beside(End("a", True), End("b", True), End("c", False))
    sound = loading_beside(End("b", True), End("a", True)) + loading_beside(End("b", False))
    sound += loading_beside(layout=replace(RESERVING, num_blocks=13)) + loading_beside(computed=20)
    sound += loading_beside(status="waiting") + loading_beside(fails=True)
    return Outcome(broken, sound)


@case("estimate.reserved", "the load of b leaves 3 blocks free, and others still need more: a 4")
def _() -> Outcome:
    """The drafter's place behind the last token is in one more block of full attention. A chunk has its own."""
    plain = layout_of(full(4), chunked(4, 8), num_blocks=12, token_budget=4, connector=Connector())
    drafting = replace(plain, drafter=Drafter(method="draft_model", tokens=1))
    tables: dict[str, Tables] = {"a": ((1, 2, 3), (0, 0, 4)), "b": ((6, 7), (8, 9))}
    return Outcome(loading_beside(layout=drafting, tables=tables), loading_beside(layout=plain, tables=tables))


@case("estimate.reserved", "the load of c leaves 4 blocks free, and others still need more: a 3, b 4")
def _() -> Outcome:
    """Of two loads in one pass the first is one of the others."""
    tables: dict[str, Tables] = {**HOLDING, "c": ((10,), (11,))}
    both = End("b", True), End("c", True)
    broken = loading_beside(*both, layout=replace(RESERVING, num_blocks=16), tables=tables)
    return Outcome(broken, loading_beside(*both, layout=replace(RESERVING, num_blocks=19), tables=tables))


@case("estimate.remaining", "0 blocks of group 1 are set aside for a, which needs 1")
def _() -> Outcome:
    """What is asked before an allocation begins is about others; of the request's own need it is no statement."""

    def asking(blocks: int, *after: Event, **fields: int) -> list[Violation]:
        told = Estimate("a", 0, 2, True), Estimate("a", 1, blocks, True)
        return loading_beside(*told, begin("b"), *after, End("b", False), **fields)

    sound = asking(1) + asking(0, computed=20) + asking(1, Estimate("a", 1, 0, True))
    return Outcome(asking(0) + asking(-3), sound)


# ---- hits ------------------------------------------------------------------------------------------------------------


@case("hits.complete", "a hits 2 tokens, but all groups hold its first 4")
def _() -> Outcome:
    """Lost is only what every group has: without one key of the window nothing longer than 2 can be served."""
    short = lookup("a", 2, ((1,), (3,)))
    bench = cached()
    dropped = Drop(1, 4, *bench.key(1, "a", 4)[1:])
    sound = bench.feed(Schedule(), dropped, short)
    bench = cached()
    sound += bench.feed(Schedule(), replace(short, cap=3))
    return Outcome(cached().feed(Schedule(), short), sound)


@case("hits.complete", "a hits 0 tokens, but all groups hold its first 2")
def _() -> Outcome:
    """A group that drops needs one block more than the hit: of four registered tokens two can be hit (R4.5)."""
    promises = Promises(drops=(0,))
    broken = cached(promises=promises).feed(Schedule(), lookup("a", 0, ((), ())))
    return Outcome(broken, cached(promises=promises).feed(Schedule(), lookup("a", 2, ((1,), (3,)))))


@case("hits.complete", "a hits 0 tokens, but all groups hold its first 4")
def _() -> Outcome:
    """After a reset nothing is there."""
    nothing = lookup("a", 0, ((), ()))
    return Outcome(cached().feed(Schedule(), nothing), cached().feed(Schedule(), Clear(), nothing))


def fine(*, tail: bool) -> Bench:
    """One block of 8, its state after 6 tokens; the attention block is registered for 6 tokens or for 4."""
    bench = Bench(FINE, Promises(partial_hits=True), a=PROMPT)
    keys = bench.register(0, 1, "a", 6 if tail else 4), bench.register(1, 2, "a", 6)
    assert bench.feed(Schedule(), *keys, plan=step(seq=1)) == []
    return bench


@case("hits.complete", "a hits 0 tokens, but all groups hold its first 6")
def _() -> Outcome:
    """A hit may end inside a block where both groups have just that prefix."""
    nothing = lookup("a", 0, ((), ()))
    return Outcome(fine(tail=True).feed(Schedule(), nothing), fine(tail=False).feed(Schedule(), nothing))


@case("hits.repeat", "b hits 0 tokens, but its first 4 were computed and not evicted")
def _() -> Outcome:
    """A step ended at 4, so the state after it is promised; registered and evicted since is another matter (R11.1)."""

    def repeated(*, evicted: bool) -> list[Violation]:
        bench = Bench(HYBRID, a=PROMPT, b=PROMPT)
        keys = [bench.register(0, 1, "a", 2), bench.register(0, 2, "a", 4)]
        keys += [bench.register(1, 3, "a", 4)] if evicted else []
        dropped = [Drop(1, 3, *bench.key(1, "a", 4)[1:])] if evicted else []
        bench.feed(Schedule(), *keys, Commit("a", 4, 8, 8), plan=step(seq=1))
        return bench.feed(Schedule(), *dropped, lookup("b", 0, ((), ())), plan=step(seq=2))

    return Outcome(repeated(evicted=False), repeated(evicted=True))


@case("hits.resume", "a hits 4 tokens and resumes after 3")
def _() -> Outcome:
    """External tokens may replace the tail of a hit, if they reach at least as far (R7.2)."""

    def begun(local: int, external: int) -> list[Violation]:
        own = lookup("a", 4, ((1, 2), (3, 4)))
        return cached().feed(Schedule(), own, begin(local=local, external=external))

    return Outcome(begun(2, 1), begun(4, 0) + begun(2, 2) + begun(2, 3))


@case("hits.skip", "a must compute its whole prompt and begins with 4 local and 0 external tokens")
def _() -> Outcome:
    """Neither a local hit nor a load."""

    def begun(local: int, external: int, *, skips: bool = True) -> list[Violation]:
        bench = Bench(ONE)
        bench.feed(Arrive(label="a", prompt=PROMPT, skip_reading=skips))
        return bench.feed(Schedule(), begin(local=local, external=external))

    return Outcome(begun(4, 0) + begun(0, 4), begun(0, 0) + begun(4, 0, skips=False))


# ---- ownership -------------------------------------------------------------------------------------------------------


def viewing(view: object, layout: object = TWO, **fields: object) -> list[Violation]:
    return Bench(TWO, a=PROMPT, b=PROMPT).feed(Schedule(), view=view, **fields)


HELD = view_of(TWO, {"a": ((1, 2), (3, 0))})


@case("ownership.references", "block 2 counts 1 references and has 2 holders")
def _() -> Outcome:
    """A pending copy or a pin is a holder too."""
    return Outcome(viewing(replace(HELD, holders=((2, 1),))), viewing(view_of(TWO, HELD.tables, holders=((2, 1),))))


@case("ownership.references", "block 5 counts 1 references and has 0 holders")
def _() -> Outcome:
    lost = view_of(TWO, HELD.tables, holders=((5, 1),))
    shared = view_of(TWO, {"a": ((1, 2), (3, 0)), "b": ((1,), (3,))})
    return Outcome(viewing(replace(lost, holders=())), viewing(shared))


def queue(*blocks: int, count: int | None = None) -> list[Violation]:
    return viewing(replace(HELD, free=blocks, free_count=len(blocks) if count is None else count))


FREE = HELD.free


@case("ownership.free-queue", "the free queue holds a block twice")
def _() -> Outcome:
    return Outcome(queue(*FREE, FREE[0]), queue(*reversed(FREE)))


@case("ownership.free-queue", "the pool counts 9 free blocks, the queue has 8")
def _() -> Outcome:
    return Outcome(queue(*FREE, count=len(FREE) + 1), queue(*FREE))


@case("ownership.free-queue", "the null block is in the free queue")
def _() -> Outcome:
    broken = [v for v in queue(0, *FREE) if "null" in v.message]
    return Outcome(broken, queue(*FREE))


@case("ownership.free-queue", "block 4 has 0 references and is not in the free queue")
def _() -> Outcome:
    return Outcome(queue(*FREE[1:]), queue(*FREE))


@case("ownership.free-queue", "block 2 has 1 references and is in the free queue")
def _() -> Outcome:
    return Outcome(queue(*FREE, 2), queue(*FREE))


@case("ownership.one-hand", "block 2 is column 0 of group 0 of b and column 1 of group 0 of a")
def _() -> Outcome:
    """Two requests share a prefix, never another column."""
    broken = viewing(view_of(TWO, {"a": ((1, 2), (3,)), "b": ((2,), (3,))}))
    return Outcome(broken, viewing(view_of(TWO, {"a": ((1, 2), (3,)), "b": ((1, 2, 4), (3, 5))})))


@case("ownership.one-hand", "block 1 is column 0 of group 1 of a and column 0 of group 0 of a")
def _() -> Outcome:
    broken = viewing(view_of(TWO, {"a": ((1, 2), (1,))}))
    return Outcome(broken, viewing(view_of(TWO, {"a": ((0, 0, 1), (0, 0, 2))})))


@case("ownership.one-hand", "block 1 is column 1 of group 0 of a and column 0 of group 0 of a")
def _() -> Outcome:
    return Outcome(viewing(view_of(TWO, {"a": ((1, 1), (2,))})), viewing(HELD))


def given_back(order: tuple[int, ...], *keyed: int) -> list[Violation]:
    """Block 4 stands in the queue, ``order`` is the queue after blocks 1 and 2 were given back."""
    layout = layout_of(full(2), num_blocks=5)
    bench = Bench(layout, a=PROMPT)
    keys = [bench.register(0, block, "a", 2 * block) for block in keyed]
    books = tuple((0, block, *bench.key(0, "a", 2 * block)[1:]) for block in keyed)
    held = view_of(layout, {"a": ((1, 2),)}, keys=books, holders=((3, 1),))
    bench.feed(Schedule(), *keys, view=held)
    waiting = {"b": request_view("waiting")}
    free = replace(view_of(layout, keys=books, holders=((3, 1),), requests=waiting), free=order)
    return bench.feed(Complete(), Release("a", 0, (2, 1)), view=free)


@case("ownership.reuse-order", "block 1 was given back to be reused first, and is cached")
def _() -> Outcome:
    """Cached blocks go behind those that are free already, others before them (R1.14)."""
    return Outcome(
        given_back((2, 1, 4), 1), given_back((2, 4, 1), 1) + given_back((2, 1, 4)) + given_back((4, 2, 1), 1, 2)
    )


@case("ownership.reuse-order", "block 2 was given back to be reused last, and holds nothing")
def _() -> Outcome:
    return Outcome(given_back((4, 1, 2), 1), given_back((2, 4, 1), 1))


@case("ownership.tails-first", "a gives back column 0 before later ones")
def _() -> Outcome:
    """A block that came back in the same pass may stand in another column than before."""
    held = view_of(ONE, {"a": ((1, 2, 3),)})

    def released(*log: Event) -> list[Violation]:
        bench = Bench(ONE, a=PROMPT)
        bench.feed(Schedule(), view=held)
        return bench.feed(Complete(), *log)

    sound = released(Release("a", 0, (3, 2, 1))) + released(Release("a", 0, (3, 1))) + released(Release("", -1, (1, 2)))
    sound += released(Take("a", 0, (1,)), Release("a", 0, (1, 3, 2)))
    return Outcome(released(Release("a", 0, (1, 2, 3))), sound)


@case("ownership.leak", r"the server is idle and 1 blocks are not free: \[3\]")
def _() -> Outcome:
    """Whatever is still outstanding may hold blocks; so does a request, but not one that is held for nobody."""
    lost = view_of(TWO, holders=((3, 1),))
    sound = viewing(view_of(TWO)) + viewing(replace(lost, deferred=1))
    for outstanding in ("in_flight", "pending_loads", "pending_stores", "unreported"):
        sound += viewing(lost, **{outstanding: 1})
    sound += viewing(replace(lost, requests={"a": request_view("held")}), pending_stores=1)
    sound += viewing(replace(lost, requests={"a": request_view("waiting")}))
    return Outcome(viewing(lost) + viewing(replace(lost, requests={"a": request_view("held")})), sound)


@case("ownership.leak", "the server is idle")
def _() -> Outcome:
    kept = view_of(TWO, {"a": ((1,), (2,))}, requests={}, running=())
    broken = viewing(kept)
    assert [v.message for v in broken][1] == "the server is idle and tables still hold blocks"
    return Outcome(broken, viewing(view_of(TWO, {"a": ((), ())}, requests={}, running=())))


OVERLAPPING = layout_of(full(2), steps_in_flight=2, connector=Connector(role="consumer"))


@case("ownership.in-flight", "block 3 is free, and step 1 uses it")
def _() -> Outcome:
    """Zeroed, copied or given for a request in the step; without a connector that loads nothing can come in between."""

    def after(made: StepPlan, layout: Layout = OVERLAPPING, tables: Tables = ((1, 2),)) -> list[Violation]:
        bench = Bench(layout, a=PROMPT)
        return bench.feed(Schedule(), plan=made, view=view_of(layout, {"a": tables}), in_flight=1)

    def over() -> list[Violation]:
        bench = Bench(OVERLAPPING, a=PROMPT)
        held, made = view_of(OVERLAPPING, {"a": ((1, 2, 3),)}), step(zero=(3,), fresh=(3,))
        bench.feed(Schedule(), plan=made, view=held, in_flight=1)
        return bench.feed(Complete(), executed=made, view=view_of(OVERLAPPING, {"a": ((1, 2),)}))

    given = step(running("a", 4, 1, 5, more=((3,),)), fresh=(3,))
    broken = after(step(zero=(3,))) + after(step(copies=((1, 3),))) + after(given)
    sound = after(step(running("a", 4, 1, 5), zero=(1, 2))) + after(given, tables=((1, 2, 3),)) + over()
    sound += after(step(running("a", 4, 1, 5, more=((3,),))))  # it was the request's before, and out of its reach since
    for layout in (replace(OVERLAPPING, steps_in_flight=1), replace(OVERLAPPING, connector=None)):
        sound += after(step(zero=(3,)), layout)
    return Outcome(broken, sound + after(step(zero=(3,)), replace(OVERLAPPING, connector=Connector(role="producer"))))


@case("ownership.in-flight", "step 1 zeroes block 2 of a, and does not run it")
def _() -> Outcome:
    """A request that waits may end at any time; one that loads ends when the load does."""

    def after(made: StepPlan, status: str = "waiting") -> list[Violation]:
        view = view_of(OVERLAPPING, {"a": ((1, 2),)}, requests={"a": request_view(status)}, running=(), waiting=("a",))
        return Bench(OVERLAPPING, a=PROMPT).feed(Schedule(), plan=made, view=view, in_flight=1)

    run = step(new("a", PROMPT[:4], ((1, 2),)), zero=(2,), fresh=(2,))
    return Outcome(after(step(zero=(2,))), after(step(zero=(2,)), "loading") + after(run, "running"))


@case("ownership.beside", "3 blocks are held beside the tables of 1 requests")
def _() -> Outcome:
    """Ends of copies while their step is in flight, and a copy of each group for each request."""

    def holding(*blocks: int, in_flight: int = 0) -> list[Violation]:
        view = view_of(TWO, {"a": ((1,), (2,))}, holders=tuple((block, 1) for block in blocks))
        return viewing(view, in_flight=in_flight)

    return Outcome(holding(3, 4, 5), holding(3, 4) + holding(3, 4, 5, in_flight=1))


REACHING = layout_of(full(2), window(2, 3), mamba(4), chunked(2, 4), num_blocks=32)


@case("ownership.out-of-reach", r"a reads from column 1 on and still holds columns \[0\]")
def _() -> Outcome:
    """After 7 tokens a window of 3 is read from token 5 on, a chunk of 4 from token 4; the state is in column 1."""
    sound = ((1, 2, 3, 4), (0, 0, 5, 6), (0, 7), (0, 0, 8, 9))

    def after(tables: Tables, done: bool = True, in_flight: int = 1, **fields: int) -> list[Violation]:
        bench = Bench(REACHING, a=PROMPT)
        log = (begin(**{"computed": 7, **fields}), End("a", done))
        return bench.feed(Schedule(), *log, view=view_of(REACHING, {"a": tables}), in_flight=in_flight)

    held = (*sound[:2], (10, 7), sound[3])
    broken = after(held) + after((sound[0], (0, 11, 5, 6), *sound[2:])) + after((*sound[:3], (0, 12, 8, 9)))
    quiet = after(held, done=False) + after(held, in_flight=2) + after(held, external=4) + after(held, computed=4)
    return Outcome(broken, after(sound) + quiet)


# ---- progress --------------------------------------------------------------------------------------------------------


def passes(count: int, status: str, layout: object = ONE, *events: object, **fields: object) -> list[Violation]:
    """So many passes that run nothing and change nothing."""
    bench = Bench(ONE, a=PROMPT)
    view = view_of(ONE, requests={"a": request_view(status)}, waiting=("a",))
    violations: list[Violation] = []
    for seq in range(count):
        violations += bench.feed(Schedule(), *events, plan=step(seq=seq), view=view, **fields)
    return violations


@case("progress.frozen", r"1 requests wait \(a\), 11 blocks are free, and passes run nothing")
def _() -> Outcome:
    """The first of four passes may have changed something; an open session or an outside answer may yet come."""
    sound = passes(3, "waiting") + passes(9, "idle") + passes(9, "held")
    sound += passes(9, "waiting", ONE, Asked("a", 0, None, False))
    for outstanding in ("pending_loads", "pending_stores", "unreported"):
        sound += passes(9, "waiting", **{outstanding: 1})
    sound += passes(9, "waiting", in_flight=2)
    return Outcome(passes(4, "waiting"), sound)


@case("progress.frozen", "1 requests wait")
def _() -> Outcome:
    """A pause is no stall, until it is over."""

    def paused(what: str) -> list[Violation]:
        bench = Bench(ONE, a=PROMPT)
        view = view_of(ONE, requests={"a": request_view("waiting")}, waiting=("a",))
        bench.feed(Pause(what="all"), view=view)
        bench.feed(Pause(what=what), view=view)  # type: ignore[arg-type]
        return [v for seq in range(4) for v in bench.feed(Schedule(), plan=step(seq=seq), view=view)]

    return Outcome(paused("none"), paused("new"))


@case("progress.alone", "a has 4 tokens and is preempted for want of blocks, of which 9 are free and no other request ")
def _() -> Outcome:
    """Others may hold blocks, as may copies, fenced frees, and a step in flight."""

    def preempting(*others: str, in_flight: int = 0, **fields: object) -> list[Violation]:
        tables = {"a": ((1, 2),), **dict.fromkeys(others, ((3, 4),))}
        requests = {label: request_view(in_flight=in_flight) for label in tables}
        bench = Bench(ONE, **dict.fromkeys(tables, PROMPT))  # type: ignore[arg-type]
        bench.feed(Schedule(), plan=step(), view=view_of(ONE, tables, requests=requests, **fields))
        view = view_of(ONE, requests={"a": request_view("preempted", computed=0)}, running=(), waiting=("a",))
        return bench.feed(Schedule(), plan=step(seq=2, preempted=("a",)), view=view)

    sound = preempting("b") + preempting(in_flight=1) + preempting(deferred=2) + preempting(holders=((5, 1),))
    return Outcome(preempting(), sound)


@case("progress.livelock", "no request got further in 24 passes")
def _() -> Outcome:
    """A request that is preempted and starts again runs tokens for ever."""

    def thrash(computed: Iterable[int]) -> list[Violation]:
        layout = layout_of(full(2), max_model_len=4)
        bench = Bench(layout, a=(7, 8, 9))
        violations: list[Violation] = []
        for seq, tokens in enumerate(computed):
            view = view_of(layout, requests={"a": request_view(computed=tokens, known=3)})
            item = new("a", (7, 8, 9), ((1, 2),), count=1)
            violations += bench.feed(Schedule(), plan=step(item, seq=seq), view=view)
        return violations

    sound = thrash([1, 2] * 13) + thrash([*[1, 2] * 12, 3, *[1, 2] * 12])
    return Outcome(thrash([1, 2] * 14), sound)


@case("progress.livelock", "no request got further in 24 passes")
def _() -> Outcome:
    """A load that comes again and again, while passes wait for it; what a user does meanwhile is no part of it."""

    def reloading(turns: int, between: Action | None = None) -> list[Violation]:
        layout = layout_of(full(2), max_model_len=4, connector=Connector())
        bench = Bench(layout, a=(7, 8, 9))
        view = view_of(layout, requests={"a": request_view("loading", computed=2, known=3)})
        violations: list[Violation] = []
        for seq in range(turns):
            if between is not None and seq == turns // 2:
                bench.feed(between, view=view)
            violations += bench.feed(Schedule(), plan=step(seq=seq), view=view, pending_loads=1)
            violations += bench.feed(Transfer(label="a"), view=view, unreported=1)
        return violations

    return Outcome(reloading(27), reloading(25) + reloading(27, Reset(running=True)))


@case("progress.livelock", "no request got further in 24 passes")
def _() -> Outcome:
    """Loads that come together, or are reported again, are one turn; what has no subject is none."""

    def turns(count: int, loads: int) -> list[Violation]:
        layout = layout_of(full(2), max_model_len=4, connector=Connector())
        bench = Bench(layout, a=(7, 8, 9))
        view = view_of(layout, requests={"a": request_view("loading", computed=2, known=3)})
        violations: list[Violation] = []
        for seq in range(count):
            for _ in range(loads):
                bench.feed(Transfer(label="a"), view=view, unreported=1)
            bench.feed(Transfer(label="b"), view=view, skipped="nothing")
            violations += bench.feed(Schedule(), plan=step(seq=seq), view=view, pending_loads=1)
        return violations

    return Outcome(turns(26, 1), turns(20, 30))


# ---- registration ----------------------------------------------------------------------------------------------------


def executed(register: str, layout: object = HYBRID) -> list[Violation]:
    """``a`` runs four tokens, in blocks 1 and 2 and with the state in block 4; one key is published and comes due."""
    bench = Bench(HYBRID, a=PROMPT[:4])
    keys = {
        "right": bench.register(0, 2, "a", 4),
        "block": bench.register(0, 1, "a", 4),
        "state": bench.register(1, 4, "a", 4),
        "old state": bench.register(1, 4, "a", 2),
    }
    plan = step(new("a", PROMPT[:4], ((1, 2), (0, 4))), seq=1, fresh=(1, 2, 4))
    violations = bench.feed(Schedule(), keys[register], plan=plan)
    bench.shadow.execute(plan, {})
    return violations + bench.feed(Complete(), executed=plan)


@case("registration.names", "block 1 of group 0 is registered for a's first 4 tokens and holds, for position 2, ")
def _() -> Outcome:
    return Outcome(executed("block"), executed("right"))


@case("registration.names", "block 4 of group 1 is registered for a's first 2 tokens and holds, for position 1, ")
def _() -> Outcome:
    return Outcome(executed("old state"), executed("state"))


@case("registration.names", "holds, for position 3, the content of a's first 5 tokens")
def _() -> Outcome:
    """A key of a state that moves on becomes wrong long after it came due (R6.6)."""

    def moving(*before: object) -> list[Violation]:
        layout = layout_of(mamba(8), full(8), match_unit=2)
        bench = Bench(layout, a=PROMPT[:4])
        first = step(new("a", PROMPT[:4], ((1,), (2,))), seq=1, fresh=(1, 2))
        bench.feed(Schedule(), bench.register(0, 1, "a", 4), plan=first)
        bench.shadow.execute(first, {})
        violations = bench.feed(Complete(), executed=first)
        second = step(running("a", 4, 1, 5), seq=2)
        dropped = Drop(0, 1, *bench.key(0, "a", 4)[1:])
        violations += bench.feed(Schedule(), *([dropped] if before else []), plan=second)
        bench.shadow.execute(second, {})
        return violations + bench.feed(Complete(), executed=second)

    return Outcome(moving(), moving("its key is withdrawn"))


@case("registration.own-tokens", "block 1 holds a's first 4 tokens and is registered for other ones, in group 0")
def _() -> Outcome:
    def registered(key: int, promises: Promises, *events: Retold) -> list[Violation]:
        bench = Bench(HYBRID, promises)
        bench.feed(Arrive(label="a", prompt=PROMPT, session=True))
        return bench.feed(Schedule(), *events, Register("a", 0, 1, 4, key), plan=step(seq=1))

    own, ahead = Prefixes(PROMPT).id_of(4), Prefixes(PROMPT).id_of(5)
    foreign = Prefixes(PROMPT, "salt").id_of(4)
    sound = registered(own, Promises()) + registered(ahead, Promises(hash_lookahead=1))
    sound += registered(Prefixes((1, 2, 3, 4)).id_of(4), Promises(), Retold("a", (1, 2, 3, 4, 5)))
    return Outcome(registered(foreign, Promises()) + registered(ahead, Promises()), sound)


def booked(**books: tuple[tuple[int, int, int, int], ...]) -> list[Violation]:
    """``a`` has registered block 1 for two tokens; what the view tells is another matter."""
    bench = Bench(ONE, a=PROMPT)
    event = bench.register(0, 1, "a", 2)
    told = ((0, 1, 2, event.key),)
    view = view_of(ONE, keys=told, requests={"a": request_view()})
    return bench.feed(Schedule(), event, plan=step(seq=1), view=replace(view, **books))


@case("registration.map", "the key map and the blocks' own keys differ")
def _() -> Outcome:
    return Outcome(booked(block_keys=()), booked())


@case("registration.map", "the key map differs from what was registered and withdrawn")
def _() -> Outcome:
    return Outcome(booked(keys=(), block_keys=()), booked())


@case("registration.null", "the null block is registered in group 0")
def _() -> Outcome:
    def registered(block: int) -> list[Violation]:
        bench = Bench(ONE, a=PROMPT)
        return bench.feed(Schedule(), bench.register(0, block, "a", 2), plan=step(seq=1))

    return Outcome(registered(0), registered(1))


def committed(
    layout: object, lengths: Iterable[int], commit: Commit, promises: Promises | None = None
) -> list[Violation]:
    """Keys for these lengths were published in group 0, and the server says that it has registered all it wants."""
    bench = Bench(layout, promises, a=range(1, 40))  # type: ignore[arg-type]
    keys = [bench.register(0, i + 1, "a", length) for i, length in enumerate(lengths)]
    return bench.feed(Schedule(), *keys, commit, plan=step(seq=1))


@case("registration.complete", "a has 5 computed tokens, but its first 4 are not registered in group 0")
def _() -> Outcome:
    return Outcome(committed(ONE, (2,), Commit("a", 5, 6, 5)), committed(ONE, (2, 4), Commit("a", 5, 6, 5)))


@case("registration.complete", "a has 12 computed tokens, but its first 6 are not registered in group 0")
def _() -> Outcome:
    """Two groups round down to the scheduler block, 8 here; an EAGLE group goes one block further (R5.1, R5.2)."""
    layout = layout_of(full(2), mamba(8))
    coarse, eagle = Promises(), Promises(drops=(0,))
    sound = committed(layout, (2, 4, 6, 8), Commit("a", 12, 13, 12), coarse)
    sound += committed(layout, (2, 4, 6, 8, 10), Commit("a", 12, 13, 12), eagle)
    sound += committed(layout, (), Commit("a", 7, 13, 12), eagle)
    return Outcome(committed(layout, (2, 4), Commit("a", 12, 13, 12), coarse), sound)


@case("registration.complete", "its first 10 are not registered in group 0")
def _() -> Outcome:
    layout = layout_of(full(2), mamba(8))
    broken = committed(layout, (2, 4, 6, 8), Commit("a", 12, 13, 12), Promises(drops=(0,)))
    return Outcome(broken, committed(layout, (2, 4, 6, 8, 10), Commit("a", 12, 13, 12), Promises(drops=(0,))))


@case("registration.complete", "its first 20 are not registered in group 0")
def _() -> Outcome:
    """With partial hits nothing is rounded at all (R5.3): 22 tokens, not 18."""
    layout = layout_of(full(2, eagle=True), mamba(8, 2), drafter=Drafter(method="eagle", tokens=2))
    promises, commit = Promises(partial_hits=True, drops=(0,)), Commit("a", 22, 23, 22)
    rounded = range(2, 19, 2)
    return Outcome(
        committed(layout, rounded, commit, promises), committed(layout, (*rounded, 20, 22), commit, promises)
    )


@case("registration.complete", "its first 6 are not registered in group 0")
def _() -> Outcome:
    """The tail of the prompt inside a block, once it is computed; not what the release leaves to the next (R5.4)."""
    promises, commit = Promises(partial_hits=True), Commit("a", 7, 8, 7)
    sound = committed(FINE, (6,), commit, promises) + committed(FINE, (), Commit("a", 5, 8, 7), promises)
    sound += committed(FINE, (4,), Commit("a", 7, 8, 7), replace(promises, prompt_tail=2))
    return Outcome(committed(FINE, (), commit, promises), sound)


def mirrored(*announced: Announce, events: bool = True, ran: bool = True) -> list[Violation]:
    """``a`` has registered two tokens; a mirror hears this of it, and an earlier step has been processed."""
    layout = layout_of(full(2), events=events)
    bench = Bench(layout, a=PROMPT)
    event = bench.register(0, 1, "a", 2)
    view = view_of(layout, keys=((0, 1, 2, event.key),), requests={"a": request_view()})
    bench.feed(Schedule(), event, plan=step(seq=1), view=view)
    return bench.feed(Complete(), *announced, executed=step(seq=0) if ran else None, view=view)


STORED = Announce("stored", 0, ((2, Prefixes(PROMPT).id_of(2)),))


@case("registration.events", "a prefix of 2 tokens is registered in group 0, but a mirror of the events has lost it")
def _() -> Outcome:
    broken = mirrored() + mirrored(STORED, replace(STORED, what="removed"))
    broken += mirrored(STORED, Announce("cleared", -1, ()))
    sound = mirrored(STORED) + mirrored(events=False) + mirrored(ran=False)
    return Outcome(broken, sound)


@case("registration.events", "a mirror of the events has a prefix of 4 tokens in group 0 that is not registered")
def _() -> Outcome:
    surplus = Announce("stored", 0, ((4, Prefixes(PROMPT).id_of(4)),))
    return Outcome(mirrored(STORED, surplus), mirrored(STORED, surplus, replace(surplus, what="removed")))


# ---- system ----------------------------------------------------------------------------------------------------------

FAILURE = Failure("AssertionError", "allocate", "vllm/core.py", 12, "no blocks")


@case("system.exception", r"^AssertionError in allocate \(vllm/core.py:12\): no blocks$")
def _() -> Outcome:
    broken = Bench(ONE).feed(Schedule(), failure=FAILURE)
    assert broken[0].signature == "system.exception AssertionError allocate"
    return Outcome(broken, Bench(ONE).feed(Schedule(), plan=step()))


@case("system.hang", "hangs in ")
def _() -> Outcome:
    """Whoever watches the process reports it."""
    watched = Watched("toy", limits=Limits(stall_seconds=0.5), loader=LOADER)
    try:
        return Outcome(list(watched.judge(run_of("hang")).violations), list(watched.judge(run_of("fine")).violations))
    finally:
        watched.close()


@case("hits.skip", "a must compute its whole prompt and begins with 0 local and 4 external tokens")
def _() -> Outcome:
    """Without hits it may begin, and others may have them (R7.12)."""

    def begun(*, skip_reading: bool, external: int) -> list[Violation]:
        bench = Bench(HYBRID)
        bench.feed(Arrive(label="a", prompt=PROMPT, skip_reading=skip_reading))
        return bench.feed(Schedule(), Begin("a", 0, 0, external, 1, 0, False))

    sound = begun(skip_reading=True, external=0) + begun(skip_reading=False, external=4)
    return Outcome(begun(skip_reading=True, external=4), sound)


@case("content.answer", "the tokens of a are no longer those that they were")
def _() -> Outcome:
    """A session goes on with other tokens, a request does not (R8.8)."""

    def retold(*, session: bool) -> list[Violation]:
        bench = Bench(HYBRID)
        bench.feed(Arrive(label="a", prompt=PROMPT, session=session))
        return bench.feed(Complete(), Retold("a", (*PROMPT, 9)))

    return Outcome(retold(session=False), retold(session=True))


@case("system.reset", "the server declined to reset its prefix cache although it could preempt everybody")
def _() -> Outcome:
    """Nobody but running requests may hold blocks: no step, no load, no store, no fence, no pin, no open session."""

    def declined(status: str = "running", asked: bool = True, done: bool = False, **outside: Any) -> list[Violation]:
        bench = Bench(ONE, a=PROMPT)
        seen = {name: outside.pop(name) for name in ("deferred", "holders") if name in outside}
        view = view_of(ONE, {"a": ((3,),)}, requests={"a": request_view(status)}, **seen)
        bench.feed(Schedule(), plan=step(seq=1), view=view)
        refused = "" if done else "the server declined"
        return bench.feed(Reset(running=asked), refused=refused, view=view, **outside)

    sound = declined(done=True) + declined(asked=False) + declined(deferred=1) + declined(holders=((4, 1),))
    for outstanding in ("in_flight", "pending_loads", "pending_stores", "unreported"):
        sound += declined(**{outstanding: 1})
    for status in ("loading", "idle"):
        sound += declined(status)
    return Outcome(declined(), sound)


# ---- tables ----------------------------------------------------------------------------------------------------------


def retabled(new_table: tuple[int, ...], kind: str = "running") -> list[Violation]:
    bench = Bench(ONE, a=PROMPT)
    bench.feed(Schedule(), plan=step(seq=1), view=view_of(ONE, {"a": ((1, 2),)}))
    item = running("a", 3, 1, 8) if kind == "running" else replace(new("a", PROMPT, (new_table,)), kind=kind)
    return bench.feed(Schedule(), plan=step(item, seq=2), view=view_of(ONE, {"a": (new_table,)}))


@case("tables.append-only", "the table of a in group 0 was changed under the worker")
def _() -> Outcome:
    """Nulled columns are none of the worker's business; a resumed request has a new table."""
    sound = retabled((1, 2)) + retabled((1, 2, 3)) + retabled((0, 2)) + retabled((0, 0, 2))
    return Outcome(retabled((1, 3)) + retabled((1,)), sound + retabled((3, 4), "resumed"))


@case("tables.executable", "a: group 0 writes column 1, which is the null block")
def _() -> Outcome:
    def bad(status: str) -> list[Violation]:
        bench = Bench(ONE, a=PROMPT)
        bench.feed(Schedule(), view=view_of(ONE, requests={"a": request_view(status)}))
        return bench.feed(Complete(), bad=[BadPlan("a", 0, "writes column 1, which is the null block")])

    return Outcome(bad("running"), bad("held"))


def planned(*items: object, **settings: object) -> list[Violation]:
    layout = layout_of(full(2), **settings)
    return Bench(layout, a=PROMPT, b=PROMPT).feed(Schedule(), plan=step(*items))  # type: ignore[arg-type]


@case("tables.plan", "a runs 2 tokens of which 2 are drafts")
def _() -> Outcome:
    """Drafts come after a token that is known."""
    return Outcome(planned(running("a", 4, 2, 5, drafts=2)), planned(running("a", 4, 3, 5, drafts=2)))


@case("tables.plan", "a runs 0 tokens")
def _() -> Outcome:
    return Outcome(planned(running("a", 4, 0, 5)), planned(running("a", 4, 1, 5)))


@case("tables.plan", "a runs up to 33 tokens")
def _() -> Outcome:
    return Outcome(planned(running("a", 30, 3, 33)), planned(running("a", 30, 2, 32)))


@case("tables.plan", "a step runs 9 tokens, more than 8")
def _() -> Outcome:
    """The budget is one for all requests."""
    broken = planned(running("a", 4, 5, 9), running("b", 4, 4, 8), token_budget=8)
    return Outcome(broken, planned(running("a", 4, 4, 8), running("b", 4, 4, 8), token_budget=8))


@case("tables.plan", "a step runs 2 requests")
def _() -> Outcome:
    items = running("a", 4, 1, 5), running("b", 4, 1, 5)
    return Outcome(planned(*items, max_requests=1), planned(*items, max_requests=2))


# ---- all of them -----------------------------------------------------------------------------------------------------


NAMED = [pytest.param(item, id=f"{item.invariant}-{number}") for number, item in enumerate(CASES)]


@pytest.mark.parametrize("item", NAMED)
def test_what_is_wrong_is_reported_and_nothing_else(item: Case) -> None:
    outcome = item.make()
    assert found(outcome.broken) == {item.invariant}
    assert re.search(item.text, outcome.broken[0].message), outcome.broken[0].message
    assert outcome.sound == []


def test_every_invariant_has_a_case() -> None:
    assert {item.invariant for item in CASES} == {item.id for item in all_invariants()}


def test_every_invariant_is_told_completely() -> None:
    for item in all_invariants():
        assert re.fullmatch(r"[a-z]+\.[a-z-]+", item.id)
        assert item.claim[0].islower()
        assert not item.claim.endswith(".")
        assert MEANING[item.severity]
        assert item.kind in ("always", "eventually", "watched")
        assert item.rules


def test_signatures_have_no_numbers() -> None:
    for item in CASES:
        for violation in item.make().broken if item.invariant != "system.hang" else ():
            assert not re.search(r"\d", violation.signature), violation.signature


# ---- the rules -------------------------------------------------------------------------------------------------------

CITED = re.compile(r"\bR\d+(?:\.\d+)*\b")


def known_rules() -> set[str]:
    """Every id that docs/rules.md defines, and the sections that have ids or a heading."""
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    rules = set(re.findall(r"\*\*(R\d+(?:\.\d+)*)\*\*", text)) | set(re.findall(r"^#+ (R\d+)\b", text, re.MULTILINE))
    return rules | {rule.rpartition(".")[0] for rule in rules if "." in rule}


def test_the_rules_that_invariants_cite_exist() -> None:
    rules = known_rules()
    assert len(rules) > 150
    cited = {item.id: [rule for rule in item.rules if rule.startswith("R")] for item in all_invariants()}
    assert {key: sorted(set(ids) - rules) for key, ids in cited.items() if set(ids) - rules} == {}
    assert all(re.fullmatch(r"R\d+(\.\d+)*|#\d+", rule) for item in all_invariants() for rule in item.rules)


def test_the_rules_that_the_sources_cite_exist() -> None:
    rules, missing = known_rules(), {}
    files = [f for folder in ("model", "invariants", "kvcheck") for f in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 50
    for file in files:
        unknown = set(CITED.findall(file.read_text(encoding="utf-8"))) - rules
        if unknown:
            missing[file.relative_to(ROOT).as_posix()] = sorted(unknown)
    assert missing == {}


def test_the_rules_cite_each_other_rightly() -> None:
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert sorted(set(CITED.findall(text)) - known_rules()) == []
    ids = re.findall(r"\*\*(R\d+(?:\.\d+)*)\*\*", text)
    assert len(ids) == len(set(ids))


def test_no_two_witnesses_or_invariants_share_words() -> None:
    descriptions = [w.description for w in WITNESSES.values()] + [i.claim for i in all_invariants()]
    assert len(descriptions) == len(set(descriptions))
