"""The numbers that laws are proved on: Z3's integers, and tokens in mixed radix. Both do what ``arith`` does on ints.

Z3 divides rounding down if the divisor is positive, up if it is negative, and says anything at all of a division by
zero: that divisors are positive is proved with each law.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import z3

from kvcheck.model.arith import register_terms

Condition = Any
"""A bool or a term of one."""


class Tokens:
    """A number of tokens in mixed radix: ``whole`` units of h, and ``rest`` more, at least 0 and less than h.

    h is symbolic. Rounding down to a multiple of h is to drop the rest, and to a literal multiple of it is to round
    ``whole``, so all is linear, for every h.
    """

    __slots__ = ("rest", "unit", "whole")

    def __init__(self, whole: Any, rest: Any, unit: Any) -> None:
        self.whole, self.rest, self.unit = whole, rest, unit

    def __add__(self, other: Tokens | int) -> Tokens:
        other = self.like(other)
        total = self.rest + other.rest
        carry = total >= self.unit
        whole = self.whole + other.whole + z3.If(carry, 1, 0)
        return Tokens(whole, z3.If(carry, total - self.unit, total), self.unit)

    __radd__ = __add__

    def __sub__(self, other: Tokens | int) -> Tokens:
        other = self.like(other)
        left = self.rest - other.rest
        borrow = left < 0
        whole = self.whole - other.whole - z3.If(borrow, 1, 0)
        return Tokens(whole, z3.If(borrow, left + self.unit, left), self.unit)

    def __rsub__(self, other: int) -> Tokens:
        return self.like(other) - self

    def __le__(self, other: Tokens | int) -> Condition:
        return _at_most(self, self.like(other))

    def __lt__(self, other: Tokens | int) -> Condition:
        return z3.Not(_at_most(self.like(other), self))

    def __ge__(self, other: Tokens | int) -> Condition:
        return _at_most(self.like(other), self)

    def __gt__(self, other: Tokens | int) -> Condition:
        return z3.Not(_at_most(self, self.like(other)))

    def __eq__(self, other: object) -> bool:
        raise TypeError("terms are compared with arith.equal")

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise TypeError("a symbolic number is neither true nor false")

    def like(self, other: Any) -> Tokens:
        """The same number with the same unit. Of plain numbers only 0, 1 and -1 are known to be tokens."""
        if isinstance(other, Tokens):
            return other
        if other.__class__ is not int or other not in (-1, 0, 1):
            raise TypeError(f"{other} has no unit")
        if other < 0:
            return Tokens(z3.IntVal(-1), self.unit - 1, self.unit)
        one = self.unit == 1
        return Tokens(z3.If(one, other, 0), z3.If(one, 0, other), self.unit)

    def same(self, other: Tokens | int) -> Condition:
        """Whether two numbers are equal."""
        other = self.like(other)
        return z3.And(self.whole == other.whole, self.rest == other.rest)


def _at_most(left: Tokens, right: Tokens) -> Condition:
    return z3.Or(left.whole < right.whole, z3.And(left.whole == right.whole, left.rest <= right.rest))


class Multiple(Tokens):
    """A literal multiple of h: a size of blocks that tokens can be divided by."""

    __slots__ = ("times",)

    def __init__(self, times: int, unit: Any) -> None:
        super().__init__(z3.IntVal(times), z3.IntVal(0), unit)
        self.times = times

    def __mul__(self, count: Any) -> Tokens:
        return Tokens(self.times * _integer(count), z3.IntVal(0), self.unit)


class _Terms:
    """What ``arith`` asks of a prover's numbers. ``divisors``: those that must be positive."""

    def __init__(self) -> None:
        self.divisors: list[z3.ArithRef] = []

    def floor_div(self, numerator: Any, denominator: Any) -> Any:
        if isinstance(denominator, Multiple):
            return _quotient(_tokens(numerator, denominator).whole, denominator.times)
        return _quotient(_integer(numerator), self._divisor(denominator))

    def ceil_div(self, numerator: Any, denominator: Any) -> Any:
        if isinstance(denominator, Multiple):
            tokens = _tokens(numerator, denominator)
            down = _quotient(tokens.whole, denominator.times)
            over = z3.Or(tokens.rest > 0, tokens.whole % denominator.times > 0)
            return down + z3.If(over, 1, 0)
        numerator, denominator = _integer(numerator), self._divisor(denominator)
        return _quotient(numerator + denominator - 1, denominator)

    def round_down(self, value: Any, multiple: Any) -> Any:
        if isinstance(multiple, Multiple):
            tokens = _tokens(value, multiple)
            return Tokens(tokens.whole - tokens.whole % multiple.times, z3.IntVal(0), multiple.unit)
        value = _integer(value)
        return value - value % self._divisor(multiple)

    def _divisor(self, value: Any) -> z3.ArithRef:
        divisor = _integer(value)
        if not any(divisor.eq(known) for known in self.divisors):
            self.divisors.append(divisor)
        return divisor

    def equal(self, left: Any, right: Any) -> Condition:
        if isinstance(left, Tokens):
            return left.same(right)
        if isinstance(right, Tokens):
            return right.same(left)
        return _term(left) == _term(right)

    def ite(self, condition: Condition, then: Any, otherwise: Any) -> Any:
        tokens = next((value for value in (then, otherwise) if isinstance(value, Tokens)), None)
        if tokens is None:
            return z3.If(condition, then, otherwise)
        then, otherwise = tokens.like(then), tokens.like(otherwise)
        whole = z3.If(condition, then.whole, otherwise.whole)
        return Tokens(whole, z3.If(condition, then.rest, otherwise.rest), tokens.unit)

    def both(self, left: Condition, right: Condition) -> Condition:
        return z3.And(_truth(left), _truth(right))

    def either(self, left: Condition, right: Condition) -> Condition:
        return z3.Or(_truth(left), _truth(right))

    def negated(self, condition: Condition) -> Condition:
        return z3.Not(_truth(condition))


_quotient = z3.ArithRef.__div__
"""Rounded down."""


def _tokens(value: Any, like: Tokens) -> Tokens:
    return like.like(value)


def _term(value: Any) -> Any:
    if isinstance(value, z3.ExprRef) or value.__class__ in (int, bool):
        return value
    raise TypeError(f"{value!r} is neither a number nor a term")


def _integer(value: Any) -> Any:
    if value.__class__ is int:
        return z3.IntVal(value)
    if isinstance(value, z3.ArithRef):
        return value
    raise TypeError(f"{value!r} has no unit, or another one")


def _truth(condition: Any) -> Any:
    if isinstance(condition, z3.BoolRef) or condition.__class__ is bool:
        return condition
    raise TypeError(f"{condition!r} is neither true nor false")


_TERMS = _Terms()


def use_terms() -> None:
    """From now on the laws work on these terms too, and Python's own words fail on them instead of meaning something
    else: Z3 takes ``if a == b`` for the question whether both are written alike, ``/`` for what ``//`` is, and a set of
    numbers for one without the term."""
    register_terms(_TERMS)
    z3.ArithRef.__hash__ = z3.BoolRef.__hash__ = None
    """From now on the laws work on these terms too, and Python's own words fail on them instead of meaning something
    else: Z3 takes ``if a == b`` for the question whether both are written alike, ``/`` for what ``//`` is, and finds no
    term in a set or a dictionary."""
    register_terms(_TERMS)
    z3.ArithRef.__hash__ = z3.BoolRef.__hash__ = None
    z3.BoolRef.__bool__ = _no_truth
    z3.ArithRef.__truediv__ = z3.ArithRef.__rtruediv__ = _no_quotient


def _no_truth(term: z3.BoolRef) -> bool:
    if z3.is_true(term) or z3.is_false(term):
        return bool(z3.is_true(term))
    raise TypeError("a condition of symbolic numbers is neither true nor false: no if, and, or, not, in, ==")


def _no_quotient(*_: Any) -> Any:
    raise TypeError("a quotient is no number of tokens or blocks: no /")


def divisors_of(says: Callable[[], None]) -> list[z3.ArithRef]:
    """What is divided by while something is said."""
    _TERMS.divisors.clear()
    says()
    return list(_TERMS.divisors)


def value_of(model: z3.ModelRef, term: Any) -> int | bool | list[int]:
    """A number or a truth in a model, or the lengths in a set; what the model leaves open is 0, false or empty."""
    if isinstance(term, Tokens):
        return _int_of(model, term.whole) * _int_of(model, term.unit) + _int_of(model, term.rest)
    if isinstance(term, z3.BitVecRef):
        bits = _int_of(model, term)
        return [length for length in range(1, term.size() + 1) if bits >> (length - 1) & 1]
    if isinstance(term, z3.BoolRef):
        return bool(z3.is_true(model.eval(term, model_completion=True)))
    return _int_of(model, term)


def _int_of(model: z3.ModelRef, term: Any) -> int:
    return term if term.__class__ is int else int(model.eval(term, model_completion=True).as_long())


def parts_of(term: Any) -> list[Any]:
    """The integers that say how large a term is; those of a truth are 0 and 1, of a set one for each length."""
    if isinstance(term, Tokens):
        return [term.whole, term.rest, term.unit]
    if isinstance(term, z3.BitVecRef):
        return [z3.If(z3.Extract(bit, bit, term) == 1, 1, 0) for bit in range(term.size())]
    if isinstance(term, z3.BoolRef):
        return [z3.If(term, 1, 0)]
    return [term] if isinstance(term, z3.ArithRef) else []
