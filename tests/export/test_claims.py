"""Every invariant has a claim that an exported test can make, or a reason why none can."""

from __future__ import annotations

from kvcheck.export import claims
from kvcheck.invariants.registry import all_invariants


def test_every_invariant_can_be_exported_or_says_why_not() -> None:
    assert {one.id for one in all_invariants()} == set(claims._CLAIMS) | set(claims._REFUSED)
    assert not set(claims._CLAIMS) & set(claims._REFUSED)
