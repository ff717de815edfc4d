"""What is estimated before an allocation covers what it takes, and what others still need is left (R8.1, R8.5.2)."""

from __future__ import annotations

from collections.abc import Iterator

from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.moment import Moment
from kvcheck.invariants.registry import Finding, Severity, invariant
from kvcheck.model.arith import ceil_div
from kvcheck.model.layout import Layout
from kvcheck.model.observation import CacheView, End

NULL_BLOCK = 0


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
    """Else it takes what a prefill needs next, and the two can take turns for ever.

    Looked at where the load is the last to get blocks in its pass. Requests that were set back are left out: whether
    they count as in flight is the server's choice.
    """
    view, plan = moment.view, moment.observation.plan
    if view is None or plan is None or any(one.kind != "running" for one in plan.requests):
        return
    loading = [load.label for load in plan.loads if load.asynchronous]
    if len(loading) != 1 or loading[0] not in view.requests:
        return
    needed = {
        label: _still_needed(ledger.layout, view, label)
        for label, r in view.requests.items()
        if label != loading[0]
        and (r.status == "loading" or (r.status == "running" and r.computed < r.prompt))
        and r.computed >= ledger.high_water.get(label, 0)
    }
    if sum(needed.values()) > len(view.free):
        by = ", ".join(f"{label} {blocks}" for label, blocks in needed.items() if blocks)
        yield Finding(f"the load of {loading[0]} leaves {len(view.free)} blocks free, and others still need more: {by}")


def _still_needed(layout: Layout, view: CacheView, label: str) -> int:
    """Blocks that a request has still to take, at least, until it has run all tokens that it knows, lookahead included;
    states are not counted."""
    blocks, tokens = 0, min(view.requests[label].known + layout.lookahead, layout.max_model_len)
    for gi, table in enumerate(view.tables[label]):
        if layout.groups[gi].is_attention:
            missing = max(0, ceil_div(tokens, layout.block_tokens(gi)) - len(table))
            most = layout.most_at_once(gi)
            kept = sum(block != NULL_BLOCK for block in table)
            blocks += missing if most is None else min(missing, max(0, most - kept))
    return blocks
