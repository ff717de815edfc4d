"""Rows of a table of hits: stairs, what was not measured between them, and what of both comes again and again in one.

A group of rows that comes again is told once, each with how far apart it comes and where that ends: nothing is lost,
because hits are the same each time or grow by the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from kvcheck.engines.hit_map import Point, Stair, reasons, stairs, without_lengths

FEWEST_SPARED = 2
"""Rows that telling a group once must spare."""
MOST_ROWS = 64
"""In a group that comes again."""


class Part(msgspec.Struct, frozen=True):
    """A stair, or without points what was not measured from ``first`` to ``last`` shared tokens."""

    first: int
    last: int
    points: tuple[Point, ...] = ()


class Row(msgspec.Struct, frozen=True):
    """Parts that are alike; ``every``: tokens from one to the next, 0 if there is one."""

    parts: tuple[Part, ...]
    every: int = 0

    @property
    def points(self) -> tuple[Point, ...]:
        """All that was measured."""
        return tuple(point for part in self.parts for point in part.points)

    @property
    def lost(self) -> bool:
        """Whether these lengths could hit more."""
        return any(point.hit < point.most for point in self.points)


def rows(points: Sequence[Point], unit: int, grows: bool) -> list[Row]:
    """The rows of a map. ``unit``: tokens over which no stair goes on without being measured. ``grows``: points are
    the turns of a conversation, and nothing is told of what is between them."""
    return _told_once(_parts(stairs(points)) if grows else _with_gaps(_parts(stairs(points, unit))))


def _parts(found: Sequence[Stair]) -> list[Part]:
    return [Part(stair.first.shared, stair.last.shared, stair.points) for stair in found]


def _with_gaps(parts: Sequence[Part]) -> list[Part]:
    found: list[Part] = []
    for part in parts:
        if found and part.first > found[-1].last + 1:
            found.append(Part(found[-1].last + 1, part.first - 1))
        found.append(part)
    return found


def _told_once(parts: Sequence[Part]) -> list[Row]:
    """Groups that come again, those first that spare the most rows; all other parts by themselves."""
    found: list[Row] = []
    at = 0
    while at < len(parts):
        sizes = range(1, min(MOST_ROWS, (len(parts) - at) // 2) + 1)
        covered = {size: _covered(parts[at:], size) for size in sizes}
        size = max(covered, key=lambda size: covered[size] - size, default=1)
        count = covered.get(size, 1)
        if count - size < FEWEST_SPARED:
            size = count = 1
        found += _rows_of(parts[at : at + count], size)
        at += count
    return found


def _rows_of(parts: Sequence[Part], size: int) -> Iterator[Row]:
    every = parts[size].first - parts[0].first if len(parts) > size else 0
    for index in range(size):
        alike = tuple(parts[index::size])
        yield Row(alike, every if len(alike) > 1 else 0)


def _covered(parts: Sequence[Part], size: int) -> int:
    """How many parts the first ``size`` of them and what comes again of them are."""
    steps = [_step(parts[index], parts[index + size]) for index in range(size)]
    if None in steps or len({step[0] for step in steps if step}) != 1:
        return size
    count = 2 * size
    while count < len(parts) and _step(parts[count - size], parts[count]) == steps[count % size]:
        count += 1
    return count


def _step(one: Part, other: Part) -> tuple[int, int, int] | None:
    """How much more tokens another part shares, hits and could hit; None if it is not alike at all its lengths."""
    pairs = list(zip(one.points, other.points, strict=False))
    shared = other.first - one.first
    steps = {(b.shared - a.shared, b.hit - a.hit, b.most - a.most) for a, b in pairs}
    if len(one.points) != len(other.points) or other.last - one.last != shared or len(steps) > 1:
        return None
    if any(bool(a.hit) != bool(b.hit) or (a.hit < a.most) != (b.hit < b.most) for a, b in pairs):
        return None
    if _why(one) != _why(other):
        return None
    return steps.pop() if steps else (shared, 0, 0)


def _why(part: Part) -> set[str]:
    return {without_lengths(why) for why in reasons(part.points)}
