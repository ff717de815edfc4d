"""Agreement: one hit length, aligned, for which every group has valid state (R4, R7)."""

from __future__ import annotations

from collections.abc import Iterator

from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.reach import block_serves, needed_columns, with_unit_behind
from kvcheck.invariants.registry import Finding, Severity, invariant
from kvcheck.model.observation import NOBODY, Begin, Lookup


@invariant(
    "agreement.granularity",
    "an agreed hit is a multiple of the granularity and never longer than allowed",
    Severity.CORRUPTION,
    "R3.6 R4.1 R4.3",
    event=Lookup,
)
def granularity(lookup: Lookup, ledger: Ledger) -> Iterator[Finding]:
    """Checked on agreed lookups; lookups of each group on its own may end anywhere."""
    if lookup.how != "agreed":
        return
    unit = ledger.layout.hash_block if ledger.promises.partial_hits else ledger.layout.scheduler_block
    if lookup.length % unit:
        yield Finding(f"{lookup.label} hits {lookup.length} tokens, not a multiple of {unit}")
    if lookup.length > lookup.cap:
        yield Finding(f"{lookup.label} hits {lookup.length} tokens of at most {lookup.cap}", detail="past-cap")


@invariant(
    "agreement.valid",
    "every group has what the agreed hit needs, in blocks registered for this request's tokens",
    Severity.CORRUPTION,
    "R2 R4.3 #43559",
    event=Lookup,
)
def valid(lookup: Lookup, ledger: Ledger) -> Iterator[Finding]:
    """Looks at the blocks that the lookup returned."""
    if lookup.how != "agreed" or not lookup.label or not lookup.length:
        return
    for group, blocks in enumerate(lookup.blocks):
        for column in needed_columns(ledger, group, lookup.length):
            block = blocks[column] if column < len(blocks) else 0
            if block and block_serves(ledger, lookup.label, group, block, column, lookup.length):
                continue
            what = f"block {block} has no key for it" if block else "there is no block"
            yield Finding(
                f"{lookup.label} hits {lookup.length} tokens, but in group {group} column {column} {what}", (group,)
            )
            break


@invariant(
    "agreement.peek",
    "an EAGLE group resumes only where it has found the unit behind, which is then computed again",
    Severity.DRAFT_QUALITY,
    "R4.5 R4.8 R10.5",
    event=Lookup,
)
def peek(lookup: Lookup, ledger: Ledger) -> Iterator[Finding]:
    """Without it the last entries of the hit may stem from a request that went on with another token (R1.21)."""
    if lookup.label == NOBODY or lookup.how != "agreed":
        return
    found = with_unit_behind(ledger, lookup)
    missing = [group for group in ledger.promises.drops if group not in found]
    if missing:
        yield Finding(
            f"{lookup.label} hits {lookup.length} tokens, but group {missing[0]} has not found the unit behind them",
            (missing[0],),
        )


@invariant(
    "agreement.resume",
    "a request resumes only where every group has valid state",
    Severity.CORRUPTION,
    "R7.5 R7.6 R7.7 #46453 #48425",
    event=Begin,
)
def resume(begin: Begin, ledger: Ledger) -> Iterator[Finding]:
    """Local hits of unequal length may be adopted only if the connector brings what the shorter groups lack."""
    lookup = ledger.lookups.get(begin.label) or ledger.lookups.get(NOBODY)
    if begin.computed or begin.external or not begin.local or lookup is None or lookup.how != "each":
        return
    for group, length in enumerate(lookup.lengths):
        if length < begin.local and needed_columns(ledger, group, begin.local):
            yield Finding(
                f"{begin.label} resumes after {begin.local} tokens, of which group {group} has only {length}",
                (group,),
            )
