"""A law as it is said to the prover: variables, what is given of them, and what is claimed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import z3

from kvcheck.model.layout import Layout
from kvcheck.prover.encodings import Encoding
from kvcheck.prover.terms import Condition


class Claim(NamedTuple):
    """What must follow from the premises and ``when``, which must be possible together."""

    what: str
    when: Condition
    holds: Condition


class Need(NamedTuple):
    """A premise that no code checks. Without it some claim is wrong, which the prover shows."""

    what: str
    condition: Condition


class Statement:
    """One law in one kind of numbers. ``numbers``: the variables by name, as a counterexample tells them."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self.numbers: dict[str, Any] = {}
        self.premises: list[Condition] = []
        self.needs: list[Need] = []
        self.claims: list[Claim] = []
        self.units = self.sizes = 0

    @property
    def layout(self) -> Layout:
        """The literal layout that the law is said for."""
        assert self._encoding.layout is not None
        return self._encoding.layout

    # ---- variables -----------------------------------------------------------------------------------------------

    def size(self, name: str, of: Sequence[Any] = ()) -> Any:
        """A size of blocks in tokens, positive and a multiple of all ``of`` these."""
        self.units += not of
        self.sizes += bool(of)
        return self._new(name, *self._encoding.size(name, of))

    def tokens(self, name: str) -> Any:
        """A number of tokens, at least 0."""
        return self._new(name, *self._encoding.tokens(name))

    def count(self, name: str) -> Any:
        """A number of columns, blocks or steps, at least 0."""
        count = z3.Int(name)
        return self._new(name, count, [count >= 0])

    def truth(self, name: str) -> Any:
        """True or false."""
        return self._new(name, z3.Bool(name), [])

    def predicate(self, name: str) -> Callable[[Any], Condition]:
        """What may be true of some lengths and false of others."""
        return z3.Function(name, z3.IntSort(), z3.BoolSort())  # type: ignore[no-any-return]

    def cached(self, name: str, lengths: int) -> Callable[[int], Condition]:
        """Any set of cached prefixes of 1 to so many units: whether one is in it."""
        bits = self._new(name, z3.BitVec(name, lengths), [])
        cached = [z3.Extract(bit, bit, bits) == 1 for bit in range(lengths)]
        return lambda length: cached[length - 1]

    def _new(self, name: str, term: Any, premises: Sequence[Condition]) -> Any:
        self.numbers[name] = term
        self.premises += premises
        return term

    # ---- what is said of them ------------------------------------------------------------------------------------

    def given(self, *conditions: Condition) -> None:
        """The law speaks of such numbers only."""
        self.premises += conditions

    def needed(self, what: str, condition: Condition) -> None:
        """The law holds for such numbers only, and nothing makes sure that there are no others."""
        self.needs.append(Need(what, condition))

    def claim(self, what: str, holds: Condition, when: Condition = True) -> None:
        """It must hold ``when`` that does."""
        self.claims.append(Claim(what, when, holds))
