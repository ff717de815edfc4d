"""Counters of requests stay in their ranges (R1.15)."""

from __future__ import annotations

from collections.abc import Iterator

from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.moment import Moment
from kvcheck.invariants.registry import Finding, Severity, invariant


@invariant(
    "counters.range",
    "no counter of a request is negative, and no request has more computed tokens than it can have",
    Severity.CORRUPTION,
    "R1.15 #48245",
)
def ranges(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """Computed tokens are at most the known ones, those to be sampled by steps in flight included."""
    view = moment.view
    if view is None:
        return
    for label, r in view.requests.items():
        for name, value in (("computed", r.computed), ("in flight", r.in_flight), ("placeholders", r.placeholders)):
            if value < 0:
                yield Finding(f"{label} has {value} {name} tokens", detail=name.replace(" ", "-"))
        if r.computed > r.known + r.placeholders + ledger.layout.draft_tokens:
            yield Finding(f"{label} has {r.computed} computed tokens of {r.known} known ones", detail="too-many")
