"""The estimate made before an allocation covers what it takes (R8.1)."""

from __future__ import annotations

from collections.abc import Iterator

from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.registry import Finding, Severity, invariant
from kvcheck.model.observation import End


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
