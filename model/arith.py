"""The few integer operations that the rules of the cache are written in."""

from __future__ import annotations


def ceil_div(numerator: int, denominator: int) -> int:
    """Smallest integer that is at least ``numerator / denominator``; ``denominator`` is positive."""
    return -(-numerator // denominator)


def round_down(value: int, multiple: int) -> int:
    """Largest multiple of ``multiple`` (positive) that is at most ``value``."""
    return value // multiple * multiple
