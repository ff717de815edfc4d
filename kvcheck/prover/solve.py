"""Proving a law: the most general numbers first; a statement that Z3 cannot decide is said in others.

Unknown is never taken for proved, and neither is a law whose premises cannot be met.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import z3

from kvcheck.model.faults import Faults
from kvcheck.prover import terms
from kvcheck.prover.encodings import Encoding, Fixed, Symbolic, stages
from kvcheck.prover.law import Law, Numbers
from kvcheck.prover.sizes import NONE
from kvcheck.prover.statement import Claim, Statement
from kvcheck.prover.terms import Condition, parts_of, use_terms, value_of

LIMIT, SYMBOLIC_LIMIT = 6_000_000, 4_000_000
"""For one question to Z3, in its own units of work, of which a core did one to five million a second: the answer does
not depend on how busy the machine is. Less where sizes are symbolic, because easier numbers follow."""
LEARNT, ANEW = 16, (32,) * 8 + (8,) * 8
"""The parts of a limit: for the first attempt, with what was learnt from earlier questions, and for those that begin
anew. How long Z3 takes is mostly luck, so many short attempts decide more than a long one."""
SMALL = 4
"""Premises are met by numbers up to this, if they can be: such are found a hundred times as fast."""
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
    """An exception and where it was raised, without what belongs to Z3 and to its terms."""
    frames = [(Path(frame.filename), frame) for frame in traceback.extract_tb(error.__traceback__)]
    ours = [frame for file, frame in frames if "z3" not in file.parts and file != Path(terms.__file__)]
    return f"{type(error).__name__}: {error} ({Path(ours[-1].filename).name}:{ours[-1].lineno})"


def _most_general(law: Law, faults: Faults, limit: int) -> Proof:
    """The proof in the most general numbers that decide it.

    All numbers are tried with one attempt at each question first: what is easily refuted in some does not wait for
    what is hard in others.
    """
    for once in (True, False):
        large: Proof | None = None
        for place, encodings in enumerate(_kinds(law, faults)):
            symbolic = isinstance(encodings[0], Symbolic)
            proof = _stage(law, faults, encodings, min(limit, SYMBOLIC_LIMIT) if symbolic else limit, once)
            if proof.result is Result.REFUTED:
                if proof.small:
                    return proof
                large = large or proof
            elif proof.result is Result.PROVED and large is None:
                if place == 0 or not once:
                    return proof
                break  # there is no counterexample; perhaps it can be proved in more general numbers
        if large is not None:
            return large
    return proof


def _kinds(law: Law, faults: Faults) -> Iterator[Sequence[Encoding]]:
    """The kinds of numbers to say it in, one after the other."""
    if law.layouts:
        yield [Fixed(layout) for layout in law.layouts]
        return
    statement = Statement(Symbolic())
    law.says(statement, faults)
    yield from stages(statement.units, statement.sizes)


def _stage(law: Law, faults: Faults, encodings: Sequence[Encoding], limit: int, once: bool) -> Proof:
    """One kind of numbers: for all literal sizes the claims hold, and for some of them they say something."""
    proof = Proof(law, Result.UNKNOWN, encodings[0].generality)
    idle: set[str] | None = None
    for encoding in encodings:
        statement = Statement(encoding)
        try:
            law.says(statement, faults)
            idle_here = _check(proof, statement, limit, once)
        except _Undecided as undecided:
            proof.why = str(undecided)
            return proof
        except (TypeError, z3.Z3Exception) as error:
            proof.why = f"cannot be said in these numbers: {error}"
            return proof
        proof.sizes = encoding.generality if statement.units else NONE
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


class _Questions:
    """Questions to Z3 about the same premises. ``once``: the first attempt at each is the only one."""

    def __init__(self, premises: Sequence[Condition], limit: int, once: bool) -> None:
        self.premises = premises
        self._limit = limit
        self._anew = () if once else ANEW
        self._learning = _solver(premises)

    def numbers(self, what: str, *conditions: Condition) -> z3.ModelRef | None:
        """Numbers for which all of these hold; None: there are none."""
        answer, model = _asked(self._learning, conditions, self._limit // LEARNT)
        for seed, part in enumerate(self._anew):
            if answer != z3.unknown:
                break
            answer, model = self._asked_anew(seed, conditions, self._limit // part)
        if answer == z3.unknown:
            raise _Undecided(f"not decided: {what}")
        return model

    def _asked_anew(self, seed: int, conditions: Sequence[Condition], limit: int) -> _Answer:
        """Z3 has two ways to go about it: with all at once, and with conditions that may go again."""
        at_once = seed % 2 == 0
        solver = _solver([*self.premises, *conditions] if at_once else self.premises)
        solver.set("random_seed", seed)
        if not at_once:
            return _asked(solver, conditions, limit)
        solver.set("rlimit", limit)
        answer = solver.check()
        return answer, solver.model() if answer == z3.sat else None


_Answer = tuple[z3.CheckSatResult, z3.ModelRef | None]


def _solver(premises: Sequence[Condition]) -> z3.Solver:
    solver = z3.Solver()
    solver.set("ctrl_c", False)  # an interrupt is for us; Z3 would take it and say that it does not know
    solver.add(*premises)
    return solver


def _asked(solver: z3.Solver, conditions: Sequence[Condition], limit: int) -> _Answer:
    solver.set("rlimit", limit)
    solver.push()
    solver.add(*conditions)
    answer = solver.check()
    model = solver.model() if answer == z3.sat else None
    solver.pop()
    return answer, model


def _check(proof: Proof, statement: Statement, limit: int, once: bool) -> set[str]:
    """Decide every claim. Returns those that say nothing here, because their premises cannot be met."""
    questions = _Questions([*statement.premises, *(need.condition for need in statement.needs)], limit, once)
    idle = _check_claims(proof, statement, questions)
    for need in () if proof.result is Result.REFUTED else statement.needs:
        others = [other.condition for other in statement.needs if other is not need]
        without = _Questions([*statement.premises, *others], limit, once)
        broken = (_refuted(without, statement, claim) for claim in statement.claims)
        if (first := next((one for one in broken if one is not None), None)) is not None:
            proof.needs.setdefault(need.what, first[0])
    return idle


def _check_claims(proof: Proof, statement: Statement, questions: _Questions) -> set[str]:
    """Decide them until one is refuted, also behind one that is not decided."""
    idle: set[str] = set()
    undecided: _Undecided | None = None
    for claim in statement.claims:
        try:
            idle |= _judge(proof, questions, statement, claim)
        except _Undecided as one:
            undecided = undecided or one
        if proof.result is Result.REFUTED:
            return idle
    if undecided is not None:
        raise undecided
    return idle


def _judge(proof: Proof, questions: _Questions, statement: Statement, claim: Claim) -> set[str]:
    """Decide a claim; itself, if it says nothing."""
    if not _possible(questions, statement, claim):
        return {claim.what}
    if (found := _refuted(questions, statement, claim)) is not None:
        proof.result, proof.why = Result.REFUTED, claim.what
        proof.numbers, proof.small = found
    return set()


def _possible(questions: _Questions, statement: Statement, claim: Claim) -> bool:
    """Whether there are numbers that a claim speaks of."""
    small = [part <= SMALL for term in statement.numbers.values() for part in parts_of(term)]
    with suppress(_Undecided):
        if questions.numbers(claim.what, claim.when, *small) is not None:
            return True
    return questions.numbers(claim.what, claim.when) is not None


def _refuted(questions: _Questions, statement: Statement, claim: Claim) -> tuple[Numbers, bool] | None:
    """A counterexample, if there is one, and whether it is the smallest."""
    broken = claim.when, z3.Not(claim.holds)
    model = questions.numbers(claim.what, *broken)
    if model is None:
        return None
    solver = _solver([*questions.premises, *broken])
    model, small = _smallest(solver, model, list(statement.numbers.values()))
    return {name: value_of(model, term) for name, term in statement.numbers.items()}, small


def _smallest(solver: z3.Solver, model: z3.ModelRef, terms: Sequence[Any]) -> tuple[z3.ModelRef, bool]:
    """A counterexample whose numbers have a small sum, and whether there is no smaller one."""
    total = z3.Sum([z3.IntVal(0), *(part for term in terms for part in parts_of(term))])
    low, high, sure = 0, _sum(model, total), True
    for _ in range(QUESTIONS):
        if low >= high:
            break
        middle = (low + high) // 2
        answer, smaller = _asked(solver, [total <= middle], SMALLER_LIMIT)
        if smaller is not None:
            model = smaller
            high = _sum(model, total)
        else:
            low = middle + 1
            sure &= answer == z3.unsat
    return model, sure and low >= high


def _sum(model: z3.ModelRef, total: Any) -> int:
    return int(model.eval(total, model_completion=True).as_long())
