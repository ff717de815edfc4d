"""Ownership: reference counts, the free queue, and who holds which block (R1.12, R1.13, R8.7)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise, takewhile

from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.moment import Moment
from kvcheck.invariants.reach import first_column_read
from kvcheck.invariants.registry import Finding, Severity, invariant
from kvcheck.model.observation import (
    NULL_BLOCK,
    CacheView,
    Clear,
    Drop,
    End,
    Register,
    Release,
    StepPlan,
    Take,
    Touch,
)


def _columns(view: CacheView) -> Iterator[int]:
    """All blocks of all columns of all tables."""
    return chain.from_iterable(chain.from_iterable(view.tables.values()))


@invariant(
    "ownership.references",
    "a block's reference count is the number of its holders",
    Severity.CORRUPTION,
    "R1.12 R6.3 #33775",
)
def references(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """Holders are columns of tables, ends of pending copies, fenced frees and pins."""
    view = moment.view
    if view is None:
        return
    held = [0] * len(view.refs)
    for block in _columns(view):
        held[block] += 1
    for block, count in view.holders:
        held[block] += count
    held[NULL_BLOCK] = 0
    if tuple(held) != view.refs:
        block = next(b for b, count in enumerate(held) if count != view.refs[b])
        few = "fewer" if view.refs[block] < held[block] else "more"
        yield Finding(f"block {block} counts {view.refs[block]} references and has {held[block]} holders", detail=few)


@invariant(
    "ownership.free-queue",
    "the free queue holds each unreferenced block once, and nothing else",
    Severity.CORRUPTION,
    "R1.13 #42571",
)
def free_queue(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """A block in the queue twice gets two owners; one missing is lost."""
    view = moment.view
    if view is None:
        return
    queued = set(view.free)
    if len(queued) != len(view.free):
        yield Finding("the free queue holds a block twice", detail="twice")
    if view.free_count != len(view.free):
        yield Finding(f"the pool counts {view.free_count} free blocks, the queue has {len(view.free)}", detail="count")
    if NULL_BLOCK in queued:
        yield Finding("the null block is in the free queue", detail="null")
    idle = {block for block, count in enumerate(view.refs) if not count}
    idle.discard(NULL_BLOCK)
    if idle != queued:
        block = min(idle ^ queued)
        where = "in" if block in queued else "not in"
        yield Finding(f"block {block} has {view.refs[block]} references and is {where} the free queue", detail="state")


@invariant(
    "ownership.reuse-order",
    "blocks that are given back are reused first if they have no key, else last",
    Severity.LOST_REUSE,
    "R1.13 R1.14 #42656",
)
def reuse_order(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """Judged where an action does nothing to the free queue but give back."""
    before, view = moment.before, moment.view
    if before is None or view is None or before.free == view.free or not ledger.layout.caching:
        return
    if any(isinstance(event, Take | Touch | Drop | Register | Clear) for event in moment.observation.log):
        return
    old = set(before.free)
    first = list(takewhile(lambda block: block not in old, view.free))
    last = list(takewhile(lambda block: block not in old, reversed(view.free)))
    keyed = {block for _, block, _, _ in view.block_keys}
    if not old:
        return  # all are new: where the keyed ones begin is not told
    if wrong := [block for block in first if block in keyed] or [block for block in last if block not in keyed]:
        where = "first, and is cached" if wrong[0] in keyed else "last, and holds nothing"
        yield Finding(
            f"block {wrong[0]} was given back to be reused {where}", detail="cached" if wrong[0] in keyed else "empty"
        )


@invariant(
    "ownership.tails-first",
    "of the blocks that a request gives back at once, later columns are reused before earlier ones",
    Severity.LOST_REUSE,
    "R1.14",
    event=Release,
)
def tails_first(release: Release, ledger: Ledger) -> Iterator[Finding]:
    """A hit needs the head of a prompt, whatever becomes of its tail."""
    moment = ledger.moment
    before = moment.before if moment is not None else None
    tables = before.tables.get(release.label) if before is not None and release.group >= 0 else None
    if moment is None or tables is None or len(release.blocks) < 2:
        return
    if not ledger.layout.groups[release.group].is_attention:
        return  # states stand for themselves, and speculative blocks pass each other in the table (R8.3.1)
    column = {block: number for number, block in enumerate(tables[release.group])}
    for event in moment.observation.log:
        if isinstance(event, Take):  # it may stand in another column by now
            for block in event.blocks:
                column.pop(block, None)
    columns = [column[block] for block in release.blocks if block in column]
    if any(later > earlier for earlier, later in pairwise(columns)):
        yield Finding(f"{release.label} gives back column {min(columns)} before later ones", (release.group,))


@invariant(
    "ownership.one-hand",
    "a block stands in two tables only at the same column of the same group, and in one table only once",
    Severity.CORRUPTION,
    "R1.2 R1.4 #33775",
)
def one_hand(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """Sharing is sharing of a prefix: same group, same column."""
    view = moment.view
    if view is None:
        return
    held = [block for block in _columns(view) if block != NULL_BLOCK]
    if len(set(held)) == len(held):
        return
    place: dict[int, tuple[int, int, str]] = {}
    for label, tables in view.tables.items():
        for group, table in enumerate(tables):
            for column, block in enumerate(table):
                if block == NULL_BLOCK:
                    continue
                there = place.setdefault(block, (group, column, label))
                if there[:2] != (group, column) or (there[2] == label and there != (group, column, label)):
                    yield Finding(
                        f"block {block} is column {column} of group {group} of {label} and column {there[1]} of "
                        f"group {there[0]} of {there[2]}",
                        (group, there[0]),
                    )
                    return


@invariant(
    "ownership.in-flight",
    "with a connector that loads, a block that a step in flight writes, copies or zeroes is not free, nor of a request "
    "that it does not run and that may end any time",
    Severity.CORRUPTION,
    "R8.2.1 R8.2.2 #48481",
)
def in_flight(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """An asynchronous load could get it, and is in no order with that step: whichever comes second destroys what the
    other has written."""
    view, connector = moment.view, ledger.layout.connector
    if view is None or connector is None or connector.role == "producer" or not ledger.layout.asynchronous:
        return
    for step in ledger.steps:
        if shared := _used(step).intersection(view.free):
            yield Finding(f"block {min(shared)} is free, and step {step.seq} uses it")
            return
    plan = moment.observation.plan
    if plan is not None and plan.zero:
        yield from _zeroed_for_nobody(plan, view)


def _zeroed_for_nobody(plan: StepPlan, view: CacheView) -> Iterator[Finding]:
    """Blocks that a step zeroes for a request that it does not run. What a load writes is not for the step to zero, and
    its request cannot end before it."""
    zeroed, run = set(plan.zero), {item.label for item in plan.requests}
    for label, tables in view.tables.items():
        idle = label not in run and view.requests[label].status != "loading"
        shared = zeroed.intersection(chain.from_iterable(tables)) if idle else set()
        if shared:
            yield Finding(
                f"step {plan.seq} zeroes block {min(shared)} of {label}, and does not run it", detail="not run"
            )
            return


def _used(step: StepPlan) -> set[int]:
    """Blocks that a step zeroes or copies, and those that its requests got for it."""
    used = {*step.zero, *chain.from_iterable(step.copies)}
    for item in step.requests:
        used.update(set(step.fresh).intersection(chain.from_iterable(item.tables)))
    return used


@invariant(
    "ownership.beside",
    "with no step in flight, no more is held beside the tables than a copy of each group for each request",
    Severity.LEAK,
    "R8.6 R8.6.1",
)
def beside(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """Pins of a connector, above all: the pool has room for one copy of each group (R8.6). With no request left it is a
    leak."""
    view = moment.view
    if view is None or moment.in_flight or not view.requests:
        return
    held = sum(count for _, count in view.holders)
    most = len(view.requests) * len(ledger.layout.groups)
    if held > most:
        yield Finding(f"{held} blocks are held beside the tables of {len(view.requests)} requests")


@invariant(
    "ownership.out-of-reach",
    "what a request can read no more is given back when it gets blocks the next time",
    Severity.LEAK,
    "R2.13 R2.5 R2.7 R2.10",
    event=End,
)
def out_of_reach(end: End, ledger: Ledger) -> Iterator[Finding]:
    """Judged if no other step is in flight: all computed tokens are processed then."""
    moment, allocation = ledger.moment, ledger.allocation
    if not end.done or allocation is None or moment is None or moment.view is None or moment.in_flight > 1:
        return
    begin = allocation.begin
    if not begin.computed or begin.external:
        return
    for group, table in enumerate(moment.view.tables.get(end.label, ())):
        first = first_column_read(ledger, group, begin.computed)
        held = [column for column, block in enumerate(table[:first]) if block != NULL_BLOCK]
        if held:
            yield Finding(f"{end.label} reads from column {first} on and still holds columns {held}", (group,))


@invariant(
    "ownership.leak",
    "with no request left and nothing outstanding, every block but the null block is free",
    Severity.LEAK,
    "R8.7 #46283",
    kind="eventually",
)
def leak(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """Judged whenever the server is idle; who has ended and is held for nobody counts as gone."""
    view = moment.view
    if view is None or any(request.status != "held" for request in view.requests.values()):
        return
    if moment.in_flight or moment.pending_loads or moment.pending_stores:
        return
    if moment.unreported or view.deferred:
        return
    if len(view.free) != len(view.refs) - 1:
        lost = [b for b, count in enumerate(view.refs) if count and b != NULL_BLOCK]
        yield Finding(f"the server is idle and {len(lost)} blocks are not free: {lost[:8]}")
    if view.tables and any(any(table) for tables in view.tables.values() for table in tables):
        yield Finding("the server is idle and tables still hold blocks", detail="tables")
