"""Hits: what is registered, reachable and not evicted is found (R4)."""

from __future__ import annotations

from collections.abc import Iterator

from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.reach import longest_hit
from kvcheck.invariants.registry import Finding, Severity, invariant
from kvcheck.model.observation import Lookup


@invariant(
    "hits.complete",
    "a lookup finds what is registered for every group, reachable and not evicted",
    Severity.LOST_REUSE,
    "R4 R4.3 #32802 #42948",
    event=Lookup,
)
def complete(lookup: Lookup, ledger: Ledger) -> Iterator[Finding]:
    """A lower bound from first principles, computed from the keys that exist at the instant of the lookup."""
    if lookup.how != "agreed" or not lookup.label:
        return
    possible = longest_hit(ledger, lookup.label, lookup.cap, lookup.length)
    if possible > lookup.length:
        yield Finding(
            f"{lookup.label} hits {lookup.length} tokens, but all groups hold its first {possible}",
            tuple(range(len(ledger.layout.groups))),
        )
