"""Hits: two lower bounds from first principles (R4, R11)."""

from __future__ import annotations

from collections.abc import Container, Iterator

from kvcheck.invariants.ledger import Key, Ledger
from kvcheck.invariants.reach import longest_hit
from kvcheck.invariants.registry import Finding, Severity, invariant
from kvcheck.model.observation import Begin, Lookup


def _missed(lookup: Lookup, ledger: Ledger, there: Container[Key], text: str) -> Iterator[Finding]:
    """A longer hit than the lookup's that these keys would serve."""
    if lookup.how != "agreed" or not lookup.label:
        return
    possible = longest_hit(ledger, there, lookup.label, lookup.cap, lookup.length)
    if possible > lookup.length:
        groups = tuple(range(len(ledger.layout.groups)))
        yield Finding(f"{lookup.label} hits {lookup.length} tokens, but {text.format(possible)}", groups)


@invariant(
    "hits.complete",
    "a lookup finds what is registered for every group, reachable and not evicted",
    Severity.LOST_REUSE,
    "R4 R4.3 #32802 #42948",
    event=Lookup,
)
def complete(lookup: Lookup, ledger: Ledger) -> Iterator[Finding]:
    """A lower bound from first principles, computed from the keys that exist at the instant of the lookup."""
    return _missed(lookup, ledger, ledger.keys, "all groups hold its first {}")


@invariant(
    "hits.repeat",
    "with nothing evicted, a repeat or an extension resumes where the computed stops promise",
    Severity.LOST_REUSE,
    "R11.1 R8.4 R5.6",
    event=Lookup,
)
def repeat(lookup: Lookup, ledger: Ledger) -> Iterator[Finding]:
    """The promise is computed from the stops that were really made, the cap, and what is kept of them."""
    return _missed(lookup, ledger, ledger.promised, "its first {} were computed and not evicted")


@invariant(
    "hits.resume",
    "a request resumes no lower than the hit that was found for it",
    Severity.LOST_REUSE,
    "R7.2 R7.6 R12.41",
    event=Begin,
)
def resume(begin: Begin, ledger: Ledger) -> Iterator[Finding]:
    """External tokens replace a local tail only if they reach further."""
    lookup = ledger.lookups.get(begin.label)
    if begin.computed or lookup is None or lookup.how != "agreed" or _runs(begin.label, ledger):
        return
    start = begin.local + begin.external
    if start < lookup.length:
        yield Finding(f"{begin.label} hits {lookup.length} tokens and resumes after {start}")


def _runs(label: str, ledger: Ledger) -> bool:
    """Whether the request runs already: then it was set back (R7.10), and its lookup is an old one."""
    before = ledger.moment.before if ledger.moment is not None else None
    return before is not None and label in before.requests and before.requests[label].status == "running"


@invariant(
    "hits.skip",
    "a request that must compute its whole prompt begins with nothing that it has not computed",
    Severity.CORRUPTION,
    "R7.12 #57269",
    event=Begin,
)
def skip(begin: Begin, ledger: Ledger) -> Iterator[Finding]:
    """What it asked of each position of its prompt is never filled in where it took a hit."""
    if ledger.arrivals[begin.label].skip_reading and (begin.local or begin.external):
        yield Finding(
            f"{begin.label} must compute its whole prompt and begins with {begin.local} local and {begin.external} "
            f"external tokens"
        )
