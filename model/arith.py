"""The few operations that the laws are written in: on ints, and on the terms of a prover that registers its own.

Python's own ``//``, ``/``, ``==``, ``if``, ``and``, ``not``, ``in`` and ``min`` fail on symbolic terms. So the laws use
these functions instead. An int costs one call. Sizes of blocks come first in products (``block * columns``).
"""

from __future__ import annotations

from typing import Any, Protocol


class Terms(Protocol):
    """What a prover provides for its number type. Divisors are positive."""

    def floor_div(self, numerator: Any, denominator: Any) -> Any:
        """Quotient rounded down."""

    def ceil_div(self, numerator: Any, denominator: Any) -> Any:
        """Quotient rounded up."""

    def round_down(self, value: Any, multiple: Any) -> Any:
        """Largest multiple that is at most the value."""

    def equal(self, left: Any, right: Any) -> Any:
        """Whether two numbers are equal."""

    def ite(self, condition: Any, then: Any, otherwise: Any) -> Any:
        """One of two numbers."""

    def both(self, left: Any, right: Any) -> Any:
        """Conjunction."""

    def either(self, left: Any, right: Any) -> Any:
        """Disjunction."""

    def negated(self, condition: Any) -> Any:
        """Negation."""


class _NoTerms:
    """Stands until a prover has registered: whatever is neither an int nor a bool is a mistake."""

    def __getattr__(self, name: str) -> Any:
        raise TypeError(f"{name} of something that is no int, and no prover has registered its terms")


_terms: Any = _NoTerms()


def register_terms(terms: Terms) -> None:
    """From now on the laws work on this prover's terms too."""
    global _terms  # noqa: PLW0603  one prover a process; the model must not import it
    _terms = terms


def floor_div(numerator: int, denominator: int) -> int:
    """Largest integer that is at most ``numerator / denominator``; ``denominator`` is positive."""
    if numerator.__class__ is int and denominator.__class__ is int:
        return numerator // denominator
    return _terms.floor_div(numerator, denominator)  # type: ignore[no-any-return]


def ceil_div(numerator: int, denominator: int) -> int:
    """Smallest integer that is at least ``numerator / denominator``; ``denominator`` is positive."""
    if numerator.__class__ is int and denominator.__class__ is int:
        return -(-numerator // denominator)
    return _terms.ceil_div(numerator, denominator)  # type: ignore[no-any-return]


def round_down(value: int, multiple: int) -> int:
    """Largest multiple of ``multiple`` (positive) that is at most ``value``."""
    if value.__class__ is int and multiple.__class__ is int:
        return value - value % multiple
    return _terms.round_down(value, multiple)  # type: ignore[no-any-return]


def aligned(value: int, multiple: int) -> bool:
    """Whether ``value`` is a multiple of ``multiple``."""
    return equal(round_down(value, multiple), value)


def equal(left: int, right: int) -> bool:
    """Whether two numbers are equal."""
    if left.__class__ is int and right.__class__ is int:
        return left == right
    return _terms.equal(left, right)  # type: ignore[no-any-return]


def ite(condition: Any, then: int, otherwise: int) -> int:
    """``then`` if the condition holds, else ``otherwise``; both are computed."""
    if condition.__class__ is bool:
        return then if condition else otherwise
    return _terms.ite(condition, then, otherwise)  # type: ignore[no-any-return]


def minimum(left: int, right: int) -> int:
    """The smaller of two numbers."""
    if left.__class__ is int and right.__class__ is int:
        return left if left <= right else right
    return ite(left <= right, left, right)


def maximum(left: int, right: int) -> int:
    """The larger of two numbers."""
    if left.__class__ is int and right.__class__ is int:
        return left if left >= right else right
    return ite(left >= right, left, right)


def both(left: Any, right: Any) -> bool:
    """Whether both hold."""
    if left.__class__ is bool and right.__class__ is bool:
        return left and right
    return _terms.both(left, right)  # type: ignore[no-any-return]


def either(left: Any, right: Any) -> bool:
    """Whether one of them holds."""
    if left.__class__ is bool and right.__class__ is bool:
        return left or right
    return _terms.either(left, right)  # type: ignore[no-any-return]


def negated(condition: Any) -> bool:
    """Whether it does not hold."""
    if condition.__class__ is bool:
        return not condition
    return _terms.negated(condition)  # type: ignore[no-any-return]
