"""Capability (R3): hits end inside blocks if every group can serve that, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvcheck.model import laws
from kvcheck.model.actions import Run
from kvcheck.model.arith import aligned, both, either, negated
from kvcheck.model.faults import Faults
from kvcheck.model.layout import Group
from kvcheck.prover.law import Numbers, law
from kvcheck.prover.runs import alone, group, layout
from kvcheck.prover.sizes import EVERY
from kvcheck.prover.words import every, implies, some

if TYPE_CHECKING:
    from kvcheck.prover.statement import Statement

MOST_GROUPS = 8


def _exact_shown(n: Numbers) -> Iterator[Run]:
    """Groups of these kinds, the first two or more of them."""
    every_group = [_group(n, index) for index in range(1, MOST_GROUPS + 1)]
    for groups in range(2, MOST_GROUPS + 1):
        of = layout(*every_group[:groups], match_unit=n["hash block"])
        yield alone(of, of.scheduler_block + 1)


def _group(n: Numbers, index: int) -> Group:
    block, variant = n[f"block {index}"], index
    if n[f"Mamba {index}"]:
        return group("mamba", block, variant=variant)
    if n[f"fine-grained {index}"]:
        return group("full", block, variant=variant)
    return group("sliding_window", block, window=2, variant=variant)


@law(
    "capability.exact",
    "partial hits are on only if every group's lookup can serve each multiple of the granularity, and off only if one "
    "could not, or none would gain",
    "R3.2 R3.3 R3.5 R3.6",
    f"2 to {MOST_GROUPS} groups of any kinds",
    sizes=EVERY,
    refutes="no-capability-check",
    replays=_exact_shown,
    shows="system.exception",
)
def exact(s: Statement, faults: Faults) -> None:
    """A lookup that looks at whole blocks only asserts that the granularity is a multiple of its block."""
    h = s.size("hash block")
    names = range(1, MOST_GROUPS + 1)
    blocks = [s.size(f"block {i}", of=[h]) for i in names]
    whole = s.size("scheduler block", of=blocks)
    mamba, fine = [s.truth(f"Mamba {i}") for i in names], [s.truth(f"fine-grained {i}") for i in names]
    possible = s.truth("possible")
    s.given(*(implies(m, f) for m, f in zip(mamba, fine, strict=True)))
    wants = [laws.wants_partial_hits(m, b, h) for m, b in zip(mamba, blocks, strict=True)]
    gains = [both(m, b > h) for m, b in zip(mamba, blocks, strict=True)]
    can = [laws.can_end_inside(f, b, h) for f, b in zip(fine, blocks, strict=True)]
    for groups in range(2, MOST_GROUPS + 1):
        on = laws.partial_hits(possible, some(*wants[:groups]), every(*can[:groups]), faults)
        unit = laws.granularity(on, h, whole)
        asserted = [either(f, aligned(unit, b)) for f, b in zip(fine[:groups], blocks, strict=False)]
        hindered = [both(negated(f), negated(aligned(h, b))) for f, b in zip(fine[:groups], blocks, strict=False)]
        s.claim(f"lookups of {groups} groups can serve every hit", every(*asserted))
        s.claim(
            f"{groups} groups have partial hits unless one is hindered",
            some(on, *hindered),
            when=both(possible, some(*gains[:groups])),
        )
