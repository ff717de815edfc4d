"""Connectors and groups whose own hits diverge (R7): where a request resumes, every group has valid state."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

from kvcheck.model import laws
from kvcheck.model.actions import Run
from kvcheck.model.arith import aligned, both, either, equal, ite, maximum, minimum, negated
from kvcheck.model.faults import Faults
from kvcheck.prover.law import Numbers, law
from kvcheck.prover.runs import CONNECTOR, DIVERGENT, followed, group, holds, layout
from kvcheck.prover.sizes import EVERY
from kvcheck.prover.words import every

if TYPE_CHECKING:
    from kvcheck.prover.statement import Statement

MOST_GROUPS = 8


def _valid_shown(n: Numbers) -> Iterator[Run]:
    """Full attention and Mamba, of which single prefixes were evicted."""
    of = layout(group("full", 1), group("mamba", 1), connector=DIVERGENT)
    longest = max(n["full attention"], *(n[f"group {index}"] for index in range(1, MOST_GROUPS))) + 1
    for first in range(1, longest + 2):
        for evicted in product((0, 1), range(1, first + 1)):
            yield followed(of, first, first + 1, evicted=[evicted])


@law(
    "divergence.valid",
    "whatever the connector answers, a request resumes where every group has valid state, its own or a loaded one",
    "R7.5 R7.5.1 R7.5.2 R7.6 R7.7",
    f"full attention with 1 to {MOST_GROUPS - 1} other groups, validity of lengths uninterpreted",
    sizes=EVERY,
    refutes="diverged-hit-maximum diverged-no-fallback",
    replays=_valid_shown,
    shows="agreement.resume",
)
def valid(s: Statement, faults: Faults) -> None:
    """Known of validity: each group's own hit, and for every group the agreed length."""
    full, agreed, answer = s.tokens("full attention"), s.tokens("agreed"), s.tokens("answer")
    whole = s.size("scheduler block")
    serves_full = s.predicate("full attention serves")
    s.given(serves_full(full), serves_full(agreed), agreed <= full)
    deepest = shallowest = full
    held = [(full, serves_full)]
    for index in range(1, MOST_GROUPS):
        own, serves = s.tokens(f"group {index}"), s.predicate(f"group {index} serves")
        s.given(serves(own), serves(agreed))
        held.append((own, serves))
        deepest, shallowest = maximum(deepest, own), minimum(shallowest, own)
        take = laws.takes_agreed(full, deepest, faults)
        length = ite(take, agreed, laws.diverged_length(full, deepest, faults))
        diverged = both(negated(take), laws.is_diverged(shallowest, length, faults))
        tail = length - laws.told_to_connector(length, whole)
        external = laws.external_adopted(answer, tail, faults)
        local = ite(laws.falls_back(diverged, external, faults), agreed, laws.local_adopted(length, external, tail))
        s.claim(
            f"{index + 1} groups have valid state without a load",
            every(*(serves(local) for _, serves in held)),
            when=equal(external, 0),
        )
        s.claim(f"of {index + 1} groups full attention has the local hit", local <= full)
        s.claim(
            f"{index + 1} groups have it, or a load that goes on from what they have",
            every(*(either(serves(local), ite(take, agreed, own) <= local + external) for own, serves in held)),
            when=external > 0,
        )


def _external_shown(n: Numbers) -> Iterator[Run]:
    """A local hit that ends inside a block, and a connector that has about as much."""
    whole, hit, answer = n["scheduler block"], n["local hit"], n["answer"]
    of = layout(group("full", whole), group("mamba", whole), match_unit=1, connector=CONNECTOR)
    told = hit - hit % whole
    for beyond in range(1, whole + 1):
        yield followed(of, hit, hit + beyond, holds(told + answer))
        yield followed(of, hit, hit + beyond, holds(told + answer, asynchronous=True))


@law(
    "divergence.external",
    "external tokens are taken only where they reach further than the local tail, and then join it without a gap",
    "R7.1 R7.2",
    "any hit, any answer",
    sizes=EVERY,
    refutes="external-beside-tail",
    replays=_external_shown,
    shows="hits.",
)
def external(s: Statement, faults: Faults) -> None:
    """The connector counts its answer from what it was told."""
    whole = s.size("scheduler block")
    hit, answer = s.tokens("local hit"), s.tokens("answer")
    told = laws.told_to_connector(hit, whole)
    tail = hit - told
    taken = laws.external_adopted(answer, tail, faults)
    local = laws.local_adopted(hit, taken, tail)

    s.claim("nothing of the local hit is lost", local + taken >= hit)
    s.claim("the load begins where the local hit ends", equal(local, told), when=taken > 0)
    s.claim("the load begins at a whole block of every group", aligned(local, whole), when=taken > 0)
    s.claim("what reaches further is taken", equal(local + taken, told + answer), when=answer > tail)
