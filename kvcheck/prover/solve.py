"""Proving a law: the most general numbers first; a statement that Z3 cannot decide is said in others.

Unknown is never taken for proved, and neither is a law whose premises cannot be met.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import z3

from kvcheck.model.faults import Faults
from kvcheck.prover import terms
from kvcheck.prover.encodings import Encoding, Fixed, Symbolic, stages
from kvcheck.prover.law import Law, Numbers
from kvcheck.prover.questions import Questions, Undecided
from kvcheck.prover.sizes import NONE
from kvcheck.prover.statement import Claim, Statement
from kvcheck.prover.terms import divisors_of, parts_of, use_terms, value_of

LIMIT, SYMBOLIC_LIMIT = 6_000_000, 4_000_000
"""For one question to Z3, in its own units of work, of which a core did one to five million a second: the answer does
not depend on how busy the machine is. Less where sizes are symbolic, because easier numbers follow."""
SMALL = 4
"""Premises are met by numbers up to this first, if they can be: such are found faster (in one law a hundred times)."""


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
        return self.law.said_for(self.sizes)


class Effort(NamedTuple):
    """How much is done for each question of a proof (see ``Questions``)."""

    limit: int = LIMIT
    once: bool = False
    goes_on: Callable[[], bool] = lambda: True


def prove(law: Law, faults: Faults, limit: int = LIMIT, goes_on: Callable[[], bool] = lambda: True) -> Proof:
    """Try to prove it, in less general numbers if need be.

    A counterexample that could not be made small is looked for again in the next numbers, which are easier.

    Raises:
        Stopped: it does not go on.
    """
    use_terms()
    began = time.monotonic()
    try:
        proof = _most_general(law, faults, Effort(limit, goes_on=goes_on))
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


def _most_general(law: Law, faults: Faults, effort: Effort) -> Proof:
    """The proof in the most general numbers that decide it.

    All numbers are tried with one attempt at each question first: what is easily refuted in some does not wait for
    what is hard in others. What is proved in some then is perhaps proved in more general ones.
    """
    proved: Proof | None = None
    for once in (True, False):
        large: Proof | None = None
        for place, encodings in enumerate(_kinds(law, faults)):
            if proved is not None and proved.sizes == encodings[0].generality:
                return proved
            proof = _stage(law, faults, encodings, effort._replace(once=once))
            if proof.result is Result.REFUTED:
                if proof.small:
                    return proof
                large = large or proof
            elif proof.result is Result.PROVED and large is None:
                if place == 0 or not once:
                    return proof
                proved = proof
                break
        if large is not None:
            return large
    return proved or proof


def _kinds(law: Law, faults: Faults) -> Iterator[Sequence[Encoding]]:
    """The kinds of numbers to say it in, one after the other."""
    if law.layouts:
        yield [Fixed(layout) for layout in law.layouts]
        return
    statement = Statement(Symbolic())
    law.says(statement, faults)
    yield from stages(statement.units, statement.sizes)


def _stage(law: Law, faults: Faults, encodings: Sequence[Encoding], effort: Effort) -> Proof:
    """One kind of numbers: for all literal sizes the claims hold, and for some of them they say something."""
    proof = Proof(law, Result.UNKNOWN, encodings[0].generality)
    if isinstance(encodings[0], Symbolic):
        effort = effort._replace(limit=min(effort.limit, SYMBOLIC_LIMIT))
    said: set[str] = set()
    spoke: set[str] = set()
    for encoding in encodings:
        statement = Statement(encoding)
        try:
            divisors = divisors_of(lambda: law.says(statement, faults))  # noqa: B023  it is called at once
            idle = _check(proof, statement, divisors, effort)
        except Undecided as undecided:
            proof.why = str(undecided)
            return proof
        except (TypeError, z3.Z3Exception) as error:
            proof.why = f"cannot be said in these numbers: {_told(error)}"
            return proof
        proof.sizes = encoding.generality if statement.units else NONE
        if proof.result is Result.REFUTED:
            return proof
        claims = {claim.what for claim in statement.claims}
        said |= claims
        spoke |= claims - idle
    lost = {need.what for need in statement.needs} - set(proof.needs)
    if silent := (said - spoke or lost or (set() if said else {"no claim"})):
        proof.why = f"says nothing: {min(silent)}"
    else:
        proof.result = Result.PROVED
    return proof


def _check(proof: Proof, statement: Statement, divisors: Sequence[z3.ArithRef], effort: Effort) -> set[str]:
    """Decide every claim. Returns those that say nothing here, because their premises cannot be met."""
    questions = Questions([*statement.premises, *(need.condition for need in statement.needs)], *effort)
    for divisor in divisors:
        if questions.numbers(f"{divisor} is positive", divisor <= 0) is not None:
            raise Undecided(f"it may divide by {divisor}, which need not be positive")
    idle = _check_claims(proof, statement, questions)
    for need in () if proof.result is Result.REFUTED else statement.needs:
        others = [other.condition for other in statement.needs if other is not need]
        without = Questions([*statement.premises, *others], *effort)
        broken = (_refuted(without, statement, claim) for claim in statement.claims)
        if (first := next((one for one in broken if one is not None), None)) is not None:
            proof.needs.setdefault(need.what, first[0])
    return idle


def _check_claims(proof: Proof, statement: Statement, questions: Questions) -> set[str]:
    """Decide them until one is refuted, also behind one that is not decided."""
    idle: set[str] = set()
    undecided: Undecided | None = None
    for claim in statement.claims:
        try:
            idle |= _judge(proof, questions, statement, claim)
        except Undecided as one:
            undecided = undecided or one
        if proof.result is Result.REFUTED:
            return idle
    if undecided is not None:
        raise undecided
    return idle


def _judge(proof: Proof, questions: Questions, statement: Statement, claim: Claim) -> set[str]:
    """Decide a claim; itself, if it says nothing."""
    if not _possible(questions, statement, claim):
        return {claim.what}
    if (found := _refuted(questions, statement, claim)) is not None:
        proof.result, proof.why = Result.REFUTED, claim.what
        proof.numbers, proof.small = found
    return set()


def _possible(questions: Questions, statement: Statement, claim: Claim) -> bool:
    """Whether there are numbers that a claim speaks of."""
    small = [part <= SMALL for term in statement.numbers.values() for part in parts_of(term)]
    with suppress(Undecided):
        if questions.numbers(claim.what, claim.when, *small) is not None:
            return True
    return questions.numbers(claim.what, claim.when) is not None


def _refuted(questions: Questions, statement: Statement, claim: Claim) -> tuple[Numbers, bool] | None:
    """A counterexample, if there is one, and whether it is the smallest."""
    broken = claim.when, z3.Not(claim.holds)
    model = questions.numbers(claim.what, *broken)
    if model is None:
        return None
    model, small = questions.smallest(model, list(statement.numbers.values()), *broken)
    return {name: value_of(model, term) for name, term in statement.numbers.items()}, small
