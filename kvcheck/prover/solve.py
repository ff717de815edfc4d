"""Proving a law: the most general numbers first; a statement that Z3 cannot decide is said in others.

Unknown is never taken for proved, and neither is a law whose premises cannot be met.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import z3

from kvcheck.model.faults import Faults
from kvcheck.prover.encodings import Encoding, Fixed, Symbolic, stages
from kvcheck.prover.law import Law, Numbers
from kvcheck.prover.statement import Claim, Statement
from kvcheck.prover.terms import Condition, parts_of, use_terms, value_of

LIMIT, SYMBOLIC_LIMIT = 6_000_000, 3_000_000
"""For one question to Z3, in its own units of work, of which a core did one to five million a second: the answer does
not depend on how busy the machine is. Less where sizes are symbolic, because easier numbers follow."""
SMALLER_LIMIT, QUESTIONS = 1_000_000, 24
"""For one question whether there is a smaller counterexample, and how many are asked."""


class Result(StrEnum):
    """What came of a proof."""

    PROVED = "proved"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


@dataclass
class Proof:
    """``sizes``: for which sizes of blocks. ``why``: what is unknown, or which claim is refuted. ``numbers``: the
    counterexample, ``small`` if there is none with a smaller sum. ``needs``: premises that nothing checks, each with
    what happens without it."""

    law: Law
    result: Result
    sizes: str = ""
    why: str = ""
    numbers: Numbers | None = None
    small: bool = True
    needs: dict[str, Numbers] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def generality(self) -> str:
        """For which numbers it was proved, or refuted."""
        return "; ".join(filter(None, (self.law.scope, self.sizes)))


def prove(law: Law, faults: Faults, limit: int = LIMIT) -> Proof:
    """Try to prove it, in less general numbers if need be.

    A counterexample that could not be made small is looked for again in the next numbers, which are easier.
    """
    use_terms()
    began = time.monotonic()
    try:
        proof = _most_general(law, faults, limit)
    except Exception as error:  # noqa: BLE001  laws are edited by hand, and a mistake in one hides no other
        proof = Proof(law, Result.UNKNOWN, "")
        proof.why = f"cannot be said: {_told(error)}; laws are made of what model/arith.py has"
    proof.seconds = time.monotonic() - began
    return proof


def _told(error: Exception) -> str:
    """An exception and where it was raised, without what belongs to Z3."""
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "z3" not in Path(frame.filename).parts]
    return f"{type(error).__name__}: {error} ({Path(ours[-1].filename).name}:{ours[-1].lineno})"


def _most_general(law: Law, faults: Faults, limit: int) -> Proof:
    """The proof in the most general numbers that decide it."""
    large: Proof | None = None
    for encodings in _kinds(law, faults):
        symbolic = isinstance(encodings[0], Symbolic)
        proof = _stage(law, faults, encodings, min(limit, SYMBOLIC_LIMIT) if symbolic else limit)
        if proof.result is Result.REFUTED and not proof.small:
            large = large or proof
        elif proof.result is Result.REFUTED or (proof.result is Result.PROVED and large is None):
            break
    if proof.result is not Result.REFUTED and large is not None:
        proof = large
    return proof


def _kinds(law: Law, faults: Faults) -> Iterator[Sequence[Encoding]]:
    """The kinds of numbers to say it in, one after the other."""
    if law.layouts:
        yield [Fixed(layout) for layout in law.layouts]
        return
    statement = Statement(Symbolic())
    law.says(statement, faults)
    yield from stages(statement.units, statement.sizes)


def _stage(law: Law, faults: Faults, encodings: Sequence[Encoding], limit: int) -> Proof:
    """One kind of numbers: for all literal sizes the claims hold, and for some of them they say something."""
    proof = Proof(law, Result.UNKNOWN, encodings[0].generality)
    idle: set[str] | None = None
    for encoding in encodings:
        statement = Statement(encoding)
        try:
            law.says(statement, faults)
            idle_here = _check(proof, statement, limit)
        except _Undecided as undecided:
            proof.why = str(undecided)
            return proof
        except (TypeError, z3.Z3Exception) as error:
            proof.why = f"cannot be said in these numbers: {error}"
            return proof
        proof.sizes = encoding.generality if statement.units else ""
        if proof.result is Result.REFUTED:
            return proof
        idle = idle_here if idle is None else idle & idle_here
    lost = {need.what for need in statement.needs} - set(proof.needs)
    if idle or lost or not statement.claims:
        proof.why = f"says nothing: {min(idle or lost or {'no claim'})}"
    else:
        proof.result = Result.PROVED
    return proof


class _Undecided(Exception):
    """Z3 does not know."""


def _check(proof: Proof, statement: Statement, limit: int) -> set[str]:
    """Decide every claim. Returns those that say nothing here, because their premises cannot be met."""
    idle = set()
    solver = _solver([*statement.premises, *(need.condition for need in statement.needs)], limit)
    for claim in statement.claims:
        if not _possible(solver, claim.when, claim.what):
            idle.add(claim.what)
        elif (found := _refuted(solver, statement, claim)) is not None:
            proof.result, proof.why = Result.REFUTED, claim.what
            proof.numbers, proof.small = found
            break
    for need in () if proof.result is Result.REFUTED else statement.needs:
        others = [other.condition for other in statement.needs if other is not need]
        without = _solver([*statement.premises, *others], limit)
        broken = (_refuted(without, statement, claim) for claim in statement.claims)
        if (first := next((one for one in broken if one is not None), None)) is not None:
            proof.needs.setdefault(need.what, first[0])
    return idle


def _possible(solver: z3.Solver, condition: Condition, what: str) -> bool:
    answer = solver.check(condition)
    if answer == z3.unknown:
        raise _Undecided(f"not decided: {what}")
    return bool(answer == z3.sat)


def _solver(premises: Sequence[Condition], limit: int) -> z3.Solver:
    solver = z3.Solver()
    solver.set("rlimit", limit)
    solver.set("ctrl_c", False)  # an interrupt is for us; Z3 would take it and say that it does not know
    solver.add(*premises)
    return solver


def _refuted(solver: z3.Solver, statement: Statement, claim: Claim) -> tuple[Numbers, bool] | None:
    """A counterexample, if there is one, and whether it is the smallest."""
    solver.push()
    solver.add(claim.when, z3.Not(claim.holds))
    found = None
    if _possible(solver, True, claim.what):
        model, small = _smallest(solver, list(statement.numbers.values()))
        found = {name: value_of(model, term) for name, term in statement.numbers.items()}, small
    solver.pop()
    return found


def _smallest(solver: z3.Solver, terms: Sequence[Any]) -> tuple[z3.ModelRef, bool]:
    """A counterexample whose numbers have a small sum, and whether there is no smaller one."""
    model, sure = solver.model(), True
    total = z3.Sum([z3.IntVal(0), *(part for term in terms for part in parts_of(term))])
    low, high = 0, _sum(model, total)
    solver.set("rlimit", SMALLER_LIMIT)
    for _ in range(QUESTIONS):
        if low >= high:
            break
        middle = (low + high) // 2
        solver.push()
        solver.add(total <= middle)
        answer = solver.check()
        if answer == z3.sat:
            model = solver.model()
            high = _sum(model, total)
        else:
            low = middle + 1
            sure &= answer == z3.unsat
        solver.pop()
    return model, sure and low >= high


def _sum(model: z3.ModelRef, total: Any) -> int:
    return int(model.eval(total, model_completion=True).as_long())
