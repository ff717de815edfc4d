"""Bounds of registration (R5): what a lookup can look at has a key, and nothing that is not final."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvcheck.model import laws
from kvcheck.model.actions import Run
from kvcheck.model.arith import aligned, both, equal, ite, minimum, negated, round_down
from kvcheck.model.faults import Faults
from kvcheck.prover.law import Numbers, law
from kvcheck.prover.runs import alone, group, layout, mtp
from kvcheck.prover.sizes import EVERY
from kvcheck.prover.words import every, implies

if TYPE_CHECKING:
    from kvcheck.prover.statement import Statement


def _bounds_shown(n: Numbers) -> Iterator[Run]:
    """Full attention beside Mamba blocks of the scheduler block, and prompts from the shortest on."""
    h, b, whole = n["hash block"], n["block"], n["scheduler block"]
    of = layout(group("full", b), group("mamba", whole), match_unit=h, drafter=mtp(n["re-prefillable"]))
    plain = layout(group("full", b), group("mamba", whole), match_unit=h)
    for prompt in range(1, 2 * whole + 2):
        yield alone(of, prompt, 3)
        yield alone(plain, prompt, 3)


@law(
    "registration.bounds",
    "bounds are exact: every block that a lookup can look at is registered, and no token that is not final",
    "R5.1 R5.2 R5.3 R5.3.1",
    "any number of tokens and of re-prefillable ones",
    sizes=EVERY,
    refutes="eagle-bound-rounded bound-rounded-to-hash",
    replays=_bounds_shown,
    shows="registration.",
)
def bounds(s: Statement, faults: Faults) -> None:
    """``reach``: any length that a hit can have."""
    h = s.size("hash block")
    b = s.size("block", of=[h])
    whole = s.size("scheduler block", of=[b])
    n, r, reach = s.tokens("computed"), s.tokens("re-prefillable"), s.tokens("hit")
    partial = s.truth("partial hits")
    s.given(implies(partial, whole > h))
    unit = laws.granularity(partial, h, whole)
    ordinary = laws.ordinary_bound(n, partial, whole, h, faults)
    eagle = laws.eagle_bound(n, r, b, partial, whole, faults)
    final = ite(n > r, n - r, 0)
    hit = ite(partial, round_down(reach, h), round_down(reach, whole))

    s.claim("an ordinary group registers nothing that is not computed", ordinary <= n)
    s.claim("an EAGLE group registers nothing that is not final", eagle <= final)
    s.claim("every hit that can be is registered", hit <= ordinary, when=hit <= n)
    s.claim(
        "the block behind every hit that can be is registered for EAGLE groups, as far as it is final",
        minimum(hit + b, final) <= eagle,
        when=every(hit <= final, unit <= n),
    )
    s.claim("with partial hits an ordinary bound is not rounded", equal(ordinary, n), when=partial)
    s.claim("with partial hits an EAGLE bound is not rounded", equal(eagle, final), when=both(partial, n > 0))
    last = ite(partial, final, round_down(final, whole))
    s.claim("an EAGLE group registers at most one block behind the last hit that can be", eagle <= last + b)
    s.claim(
        "without partial hits an ordinary bound is a hit that can be", aligned(ordinary, whole), when=negated(partial)
    )
