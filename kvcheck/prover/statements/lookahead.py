"""The open question R9.1: does what a hit drops cover what the drafter reads ahead?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcheck.model import laws
from kvcheck.model.arith import aligned, ite
from kvcheck.model.faults import Faults
from kvcheck.prover.law import law
from kvcheck.prover.sizes import EVERY
from kvcheck.prover.words import implies

if TYPE_CHECKING:
    from kvcheck.prover.statement import Statement


@law(
    "lookahead.covered",
    "an EAGLE group resumes only where all tokens that its drafter's entries before it depend on were compared",
    "R1.21 R4.5 R4.6 R9.1",
    "any lookahead, any hit",
    sizes=EVERY,
    refutes="",
)
def covered(s: Statement, faults: Faults) -> None:  # noqa: ARG001  no fault is about it
    """A drafter's entry at a position depends on the m tokens behind it; a lookup has compared the unit behind the hit.

    The server refuses a scheduler block below m. But a unit is one block of the group, or h.
    """
    h = s.size("hash block")
    block = s.size("block", of=[h])
    whole = s.size("scheduler block", of=[block])
    lookahead, hit, entry = s.tokens("lookahead"), s.tokens("hit"), s.tokens("entry")
    partial, fine = s.truth("partial hits"), s.truth("fine-grained")
    s.given(lookahead > 0, whole >= lookahead, entry < hit, aligned(hit, ite(partial, h, whole)))
    s.given(implies(partial, whole > h))
    unit = laws.drop_unit(partial, fine, block, h)
    s.needed("no unit that a group drops is shorter than the lookahead", unit >= lookahead)

    s.claim("every token that an entry depends on was compared", entry + lookahead < hit + unit)
