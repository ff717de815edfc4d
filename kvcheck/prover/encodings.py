"""In which numbers a law is said: all sizes symbolic, tokens in mixed radix, or literal sizes of real layouts.

Token counts are symbolic in all of them. The first size of a statement is its h; the others are multiples of sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Protocol

import z3

from kvcheck.model.layout import Layout
from kvcheck.prover.sizes import EVERY, LITERAL, MULTIPLES, NONE, RATIOS, UNITS
from kvcheck.prover.terms import Condition, Multiple, Tokens

MOST_COMBINED = 3
"""So many sizes have all combinations of ratios."""


class Encoding(Protocol):
    """A kind of numbers."""

    generality: str
    layout: Layout | None

    def size(self, name: str, of: Sequence[Any]) -> tuple[Any, list[Condition]]:
        """A size in tokens, a multiple of these, and its premises."""

    def tokens(self, name: str) -> tuple[Any, list[Condition]]:
        """A number of tokens, at least 0, and its premises."""


class Symbolic:
    """Every number is an integer, sizes too."""

    generality = EVERY
    layout: Layout | None = None

    def size(self, name: str, of: Sequence[Any]) -> tuple[Any, list[Condition]]:
        """Any positive number that all of these divide."""
        size = z3.Int(name)
        return size, [size >= 1, *(size % divisor == 0 for divisor in of), *(size >= divisor for divisor in of)]

    def tokens(self, name: str) -> tuple[Any, list[Condition]]:
        """Any number."""
        tokens = z3.Int(name)
        return tokens, [tokens >= 0]


class Radix:
    """Tokens as multiples of h and a rest. h is symbolic, sizes are literal multiples of it."""

    generality = MULTIPLES
    layout: Layout | None = None

    def __init__(self, ratios: Sequence[int]) -> None:
        if not ratios:
            self.generality = EVERY
        self._ratios = iter(ratios)
        self._unit: Any = None

    def size(self, name: str, of: Sequence[Any]) -> tuple[Any, list[Condition]]:
        """h itself, or the least common multiple of these times the next ratio."""
        if not of:
            self._unit = z3.Int(name)
            return Multiple(1, self._unit), [self._unit >= 1]
        return Multiple(math.lcm(*(size.times for size in of)) * next(self._ratios), self._unit), []

    def tokens(self, name: str) -> tuple[Any, list[Condition]]:
        """Any number."""
        whole, rest = z3.Int(f"{name}.whole"), z3.Int(f"{name}.rest")
        return Tokens(whole, rest, self._unit), [whole >= 0, rest >= 0, rest < self._unit]


class Literal:
    """Sizes are ints."""

    generality = LITERAL
    layout: Layout | None = None

    def __init__(self, unit: int, ratios: Sequence[int]) -> None:
        self._unit, self._ratios = unit, iter(ratios)

    def size(self, name: str, of: Sequence[Any]) -> tuple[Any, list[Condition]]:  # noqa: ARG002  it is literal
        """h itself, or the least common multiple of these times the next ratio."""
        return (math.lcm(*of) * next(self._ratios) if of else self._unit), []

    def tokens(self, name: str) -> tuple[Any, list[Condition]]:
        """Any number."""
        return Symbolic().tokens(name)


class Fixed(Symbolic):
    """A whole layout is literal. Statements about lookups ask for any set of cached blocks of it."""

    generality = NONE

    def __init__(self, layout: Layout) -> None:
        self.layout = layout


def stages(units: int, sizes: int) -> Iterator[list[Encoding]]:
    """From the most general on: kinds of numbers for a statement with an h (or none) and so many sizes besides.

    Mixed radix with h alone is as general as integers are, and easier.
    """
    if units and not sizes:
        yield [Radix(())]
    yield [Symbolic()]
    if not units:
        return
    ratios = list(_ratios(sizes))
    if sizes:
        yield [Radix(chosen) for chosen in ratios]
    yield [Literal(unit, chosen) for unit in UNITS for chosen in ratios]


def _ratios(sizes: int) -> Iterator[tuple[int, ...]]:
    """Ratios for so many sizes: all combinations for few of them, else each ratio in each place."""
    if sizes <= MOST_COMBINED:
        yield from product(RATIOS, repeat=sizes)
        return
    for first, step in product(range(len(RATIOS)), repeat=2):
        yield tuple(RATIOS[(first + step * place) % len(RATIOS)] for place in range(sizes))
