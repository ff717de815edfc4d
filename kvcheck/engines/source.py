"""Where the generators of random runs take their choices from: a seeded generator, or Hypothesis."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[int]], int]


class Source(Protocol):
    """Choices. Whoever asks puts the simplest option first, and asks for a chance of what is more complicated."""

    def integer(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included; the lower the simpler."""

    def choose(self, options: Sequence[T]) -> T:
        """One of the options (at least one); the first is the simplest."""

    def chance(self, percent: int) -> bool:
        """True in ``percent`` of 100 cases; False is simpler."""

    def weighted(self, pairs: Sequence[tuple[T, int]]) -> T:
        """One of the options, each given with its weight; the first is the simplest. The weights' sum is positive."""


class RandomSource:
    """Choices of a seeded generator, for searches that try as many runs as they can."""

    def __init__(self, generator: random.Random) -> None:
        self._random = generator.random

    def integer(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included."""
        return low + int(self._random() * (high - low + 1))

    def choose(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[int(self._random() * len(options))]

    def chance(self, percent: int) -> bool:
        """True in ``percent`` of 100 cases."""
        return self._random() * 100 < percent

    def weighted(self, pairs: Sequence[tuple[T, int]]) -> T:
        """One of the options, each given with its weight."""
        return _at(pairs, int(self._random() * sum([weight for _, weight in pairs])))


class HypothesisSource:
    """Choices that Hypothesis draws, and shrinks: every one is an integer whose lowest value is the simplest option."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included."""
        return low if low == high else self._draw(st.integers(low, high))

    def choose(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.integer(0, len(options) - 1)]

    def chance(self, percent: int) -> bool:
        """True in ``percent`` of 100 cases."""
        return self.integer(0, 99) >= 100 - percent

    def weighted(self, pairs: Sequence[tuple[T, int]]) -> T:
        """One of the options, each given with its weight."""
        return _at(pairs, self.integer(0, sum(weight for _, weight in pairs) - 1))


def _at(pairs: Sequence[tuple[T, int]], point: int) -> T:
    """The option whose share of the line of all weights holds this point."""
    for option, weight in pairs:
        point -= weight
        if point < 0:
            return option
    raise ValueError("no option has a weight")
