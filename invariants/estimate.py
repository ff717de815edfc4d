"""What is estimated before an allocation covers what it takes, and what others still need is left (R8.1, R8.5.2)."""

from __future__ import annotations

from collections.abc import Iterator

from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.moment import Moment
from kvcheck.invariants.reach import first_column_read
from kvcheck.invariants.registry import Finding, Severity, invariant
from kvcheck.model.arith import ceil_div
from kvcheck.model.observation import NULL_BLOCK, CacheView, End, Estimate


@invariant(
    "estimate.covers",
    "every group's estimate is at least what the allocation takes from the free queue for it",
    Severity.CRASH,
    "R8.1 #46892 #45856",
    event=End,
)
def covers(end: End, ledger: Ledger) -> Iterator[Finding]:
    """A short estimate is a crash as soon as the pool has no block to spare."""
    allocation = ledger.allocation
    if allocation is None or not end.done:
        return
    begin = allocation.begin
    tokens = f"(local {begin.local}, external {begin.external}, new {begin.new} tokens)"
    used = [taken + revived for taken, revived in zip(allocation.taken, allocation.revived, strict=True)]
    short = False
    for group, estimate in enumerate(allocation.estimates):
        if estimate is not None and used[group] > max(estimate, 0):
            short = True
            yield Finding(
                f"group {group} estimated {estimate} blocks for {end.label} and took {used[group]} {tokens}", (group,)
            )
    total = sum(estimate or 0 for estimate in allocation.estimates)
    if not short and sum(used) > max(total, 0) and None not in allocation.estimates:
        yield Finding(f"{total} blocks were estimated for {end.label} and {sum(used)} taken {tokens}", detail="sum")


@invariant(
    "estimate.whole-or-nothing",
    "an allocation that is refused has taken nothing",
    Severity.LEAK,
    "R8.1",
    event=End,
)
def whole_or_nothing(end: End, ledger: Ledger) -> Iterator[Finding]:
    """Blocks given up because they fell out of reach may be gone all the same."""
    allocation = ledger.allocation
    if allocation is None or end.done:
        return
    for group in range(len(allocation.taken)):
        if allocation.taken[group] or allocation.revived[group]:
            yield Finding(f"the allocation for {end.label} was refused after group {group} took blocks", (group,))


@invariant(
    "estimate.reserved",
    "an asynchronous load leaves room for what prefills and loads in flight still need",
    Severity.STALL,
    "R8.5.2",
)
def reserved(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """Else it takes what a prefill needs next, and the two can take turns for ever."""
    view = moment.view
    load, needed = blocks_still_needed(moment, ledger)
    if view is not None and sum(needed.values()) > len(view.free):
        by = ", ".join(f"{label} {blocks}" for label, blocks in needed.items() if blocks)
        yield Finding(f"the load of {load} leaves {len(view.free)} blocks free, and others still need more: {by}")


def blocks_still_needed(moment: Moment, ledger: Ledger) -> tuple[str | None, dict[str, int]]:
    """The load that came last in this pass, and the blocks that each of the others in flight has still to take."""
    load, view = load_beside_prefills(moment, ledger), moment.view
    if load is None or view is None:
        return None, {}
    return load, {label: _still_needed(ledger, view, label) for label in _others_in_flight(view, ledger, load)}


def load_beside_prefills(moment: Moment, ledger: Ledger) -> str | None:
    """The request whose asynchronous load was the last thing in this pass to get blocks, if others are in flight that
    still need some; else what came after it may have taken what it had left."""
    view, plan = moment.view, moment.observation.plan
    if view is None or plan is None:
        return None
    loads = {load.label for load in plan.loads if load.asynchronous}
    allocated = (
        [event.label for event in moment.observation.log if isinstance(event, End) and event.done] if loads else []
    )
    if not allocated or allocated[-1] not in loads:
        return None
    others = _others_in_flight(view, ledger, allocated[-1])
    return allocated[-1] if any(_still_needed(ledger, view, label) for label in others) else None


def _others_in_flight(view: CacheView, ledger: Ledger, load: str) -> list[str]:
    """Prefills and loads beside this one. Whether a request that a failed load has set back is one is the server's
    choice."""
    return [
        label
        for label, r in view.requests.items()
        if (r.status == "loading" or (r.status == "running" and r.computed < r.prompt))
        and label != load
        and label in view.tables
        and label not in ledger.failed_loads
    ]


def _still_needed(ledger: Ledger, view: CacheView, label: str) -> int:
    """Blocks that a request has still to take, at least, until its last token has run, lookahead included."""
    groups = range(len(ledger.layout.groups))
    return sum(_group_needs(ledger, view, label, group, ledger.layout.lookahead) for group in groups)


def _group_needs(ledger: Ledger, view: CacheView, label: str, group: int, ahead: int) -> int:
    """Blocks of one group that a request cannot do without for its next token, or for its last one with places
    ``ahead``, beside what it holds. How long its chunks are is not known, so that more may be needed; states are not
    counted."""
    layout, request = ledger.layout, view.requests[label]
    if not layout.groups[group].is_attention:
        return 0
    size, last = layout.block_tokens(group), request.known - 1
    computed, whole = min(request.computed, last), min(request.known + ahead, layout.max_model_len)
    at_once = [
        ceil_div(end, size) - first_column_read(ledger, group, before)
        for before, end in ((computed, computed + 1), (last, whole))
    ]
    return max(0, max(at_once) - sum(block != NULL_BLOCK for block in view.tables[label][group]))


@invariant(
    "estimate.remaining",
    "what is set aside for a prefill or a load in flight is at least what it cannot do without",
    Severity.STALL,
    "R8.5.2",
    event=Estimate,
)
def remaining(event: Estimate, ledger: Ledger) -> Iterator[Finding]:
    """The server asks before it admits an asynchronous load, for each of the others. Places for the drafter may be set
    aside in a sum of their own."""
    view = ledger.moment.view if ledger.moment else None
    if not event.admission or ledger.allocation is not None or view is None:
        return
    if event.label in _others_in_flight(view, ledger, load=""):
        needed = _group_needs(ledger, view, event.label, event.group, ahead=0)
        if needed > max(0, event.blocks):
            yield Finding(
                f"{event.blocks} blocks of group {event.group} are set aside for {event.label}, which needs {needed}",
                (event.group,),
            )
