"""Questions to Z3 in its own units of work: decided or not, whatever else the machine does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import z3

from kvcheck.prover.terms import Condition, parts_of

LEARNT, ANEW = 16, (32,) * 8 + (8,) * 8
"""The parts of a limit that attempts at a question have: the first, with what was learnt from earlier ones, and those
that begin anew; 1.3 limits in all. How long Z3 takes is mostly luck, so many short attempts decide more than a long
one."""
SMALLER_LIMIT, MOST = 1_000_000, 24
"""For one question whether there is a smaller counterexample, and how many are asked."""

_Answer = tuple[z3.CheckSatResult, z3.ModelRef | None]


class Undecided(Exception):
    """Z3 does not know."""


class Stopped(BaseException):
    """A proof is given up. No exception that a law could have raised."""


class Questions:
    """Questions to Z3 about the same premises. ``once``: the first attempt at each is the only one. ``goes_on``: asked
    before each question."""

    def __init__(self, premises: Sequence[Condition], limit: int, once: bool, goes_on: Callable[[], bool]) -> None:
        self._premises = premises
        self._limit = limit
        self._anew = () if once else ANEW
        self._goes_on = goes_on
        self._learning = _solver(premises)

    def numbers(self, what: str, *conditions: Condition) -> z3.ModelRef | None:
        """Numbers for which all of these hold; None: there are none.

        Raises:
            Undecided: Z3 does not know.
            Stopped: it does not go on.
        """
        if not self._goes_on():
            raise Stopped
        answer, model = _asked(self._learning, conditions, self._limit // LEARNT)
        for seed, part in enumerate(self._anew):
            if answer != z3.unknown:
                break
            answer, model = self._asked_anew(seed, conditions, self._limit // part)
        if answer == z3.unknown:
            raise Undecided(f"not decided: {what}")
        return model

    def smallest(self, model: z3.ModelRef, terms: Sequence[Any], *conditions: Condition) -> tuple[z3.ModelRef, bool]:
        """Numbers for which these hold, as ``model`` is, with a small sum, and whether it is the smallest."""
        solver = _solver([*self._premises, *conditions])
        total = z3.Sum([z3.IntVal(0), *(part for term in terms for part in parts_of(term))])
        low, high, sure = 0, _sum(model, total), True
        for _ in range(MOST):
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

    def _asked_anew(self, seed: int, conditions: Sequence[Condition], limit: int) -> _Answer:
        """Z3 has two ways to go about it: with all at once, and with conditions that may go again."""
        at_once = seed % 2 == 0
        solver = _solver([*self._premises, *conditions] if at_once else self._premises)
        solver.set("random_seed", seed)
        if not at_once:
            return _asked(solver, conditions, limit)
        solver.set("rlimit", limit)
        answer = solver.check()
        return answer, solver.model() if answer == z3.sat else None


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


def _sum(model: z3.ModelRef, total: Any) -> int:
    return int(model.eval(total, model_completion=True).as_long())
