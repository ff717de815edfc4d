"""Words of statements, on bools and on terms of them."""

from __future__ import annotations

from functools import reduce
from typing import Any

from kvcheck.model.arith import both, either, negated

Condition = Any
"""A bool or a term of one."""


def every(*conditions: Condition) -> Condition:
    """Whether all of them hold."""
    if False in map(_known, conditions):
        return False
    return reduce(both, (condition for condition in conditions if condition is not True), True)


def some(*conditions: Condition) -> Condition:
    """Whether one of them holds."""
    if True in map(_known, conditions):
        return True
    return reduce(either, (condition for condition in conditions if condition is not False), False)


def implies(condition: Condition, then: Condition) -> Condition:
    """Whether the second holds wherever the first does."""
    return some(negated(condition), then)


def _known(condition: Condition) -> bool | None:
    """A plain truth; None: it is a term."""
    return condition if condition.__class__ is bool else None
