"""A layout scaled down: the ratios of its sizes stay, so that a request of some dozen tokens crosses every boundary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kvcheck.layouts.presets import SPARE_BLOCKS
from kvcheck.model.arith import ceil_div
from kvcheck.model.layout import Group, Layout

MOST_UNITS = 16
"""Match units a block, and blocks a window or chunk: more show nothing that these do not, and need long requests."""
SHORTEST, STEP = 64, 32
"""Tokens of the longest request and of a step, where blocks are small."""
FEW = 4
"""Tokens of a request that is shorter than a block, if the block has more."""
MOST_REQUESTS = 4

replace = msgspec.structs.replace


def scaled(layout: Layout) -> tuple[Layout, list[str]]:
    """The layout with small sizes, and in words what of its ratios could not be kept."""
    common = math.gcd(*(group.block_size for group in layout.groups))
    units, notes = _units(common, layout.match_unit)
    least = _least(layout, common, units)
    scale = _Scale(common, least, least // units, notes)
    groups = tuple(scale.group(group) for group in layout.groups)
    small = replace(
        layout,
        groups=groups,
        match_unit=layout.match_unit and scale.unit,
        retention=scale.tokens(layout.retention) if isinstance(layout.retention, int) else layout.retention,
        long_prefill_threshold=0,
    )
    small = _with_steps(layout, small, scale)
    return replace(small, num_blocks=small.min_blocks + SPARE_BLOCKS), list(dict.fromkeys(notes))


def _units(common: int, unit: int | None) -> tuple[int, list[str]]:
    """Match units that the common part of all blocks has here: a divisor of what it has, or as even or odd."""
    real = common // unit if unit else 1
    if real <= MOST_UNITS:
        return real, []
    few = next((count for count in range(MOST_UNITS, 3, -1) if real % count == 0), 4 + real % 2)
    return few, [f"{common} tokens are {real} match units, {few} here"]


def _least(layout: Layout, common: int, units: int) -> int:
    """Tokens here for the common part of all blocks: so many that there are some in a unit, that blocks have several,
    and that the drafts of a step stay below a block of states."""
    ratio = min(group.block_size for group in layout.groups) // common
    alike = len({group.block_size for group in layout.groups}) == 1
    usual = (8 if layout.has_mamba else 4 if len(layout.groups) == 1 else 2) if alike else 1
    wanted = max(2 * units, usual) if units > 1 and units <= MOST_UNITS // 2 else max(units, usual)
    if layout.has_mamba:
        wanted = max(wanted, ceil_div(layout.draft_tokens + 1, ratio))
    return units * ceil_div(wanted, units)


class _Scale(msgspec.Struct):
    """``common`` tokens of the server become ``least`` tokens here, and a match unit becomes ``unit`` tokens."""

    common: int
    least: int
    unit: int
    notes: list[str]

    def whole_tokens(self, size: int) -> int:
        """So many tokens of the server, here, and not a part of one more: what is below a number of blocks stays so."""
        return size * self.least // self.common

    def tokens(self, size: int) -> int:
        """So many tokens of the server, here."""
        return ceil_div(size * self.least, self.common)

    def group(self, group: Group) -> Group:
        """The group with small sizes. ``checkpoint_alignment`` of one token stays one, others are whole match units."""
        block = self.tokens(group.block_size)
        alignment = group.checkpoint_alignment
        return replace(
            group,
            block_size=block,
            window=self._reach(group.window, group.block_size, block, "window"),
            chunk=self._reach(group.chunk, group.block_size, block, "chunk"),
            checkpoint_alignment=alignment
            and (1 if alignment == 1 else self.unit * ceil_div(self.tokens(alignment), self.unit)),
        )

    def _reach(self, reach: int, real: int, block: int, what: str) -> int:
        """A window or chunk of as many blocks as before, as far as that is of use."""
        if not reach:
            return 0
        if reach <= MOST_UNITS * real:
            return max(2, self.tokens(reach))
        self.notes.append(f"the {what} of {reach} tokens is {reach / real:g} blocks, {MOST_UNITS} here")
        return MOST_UNITS * block


class _Known(NamedTuple):
    """A size in tokens, as it is and here."""

    what: str
    real: int
    here: int

    def is_kept_by(self, other: _Known) -> bool:
        """Whether the other stands to it here as it does there."""
        return (other.real >= self.real) == (other.here >= self.here)


def _with_steps(layout: Layout, small: Layout, scale: _Scale) -> Layout:
    """``small`` with the longest request, the step and the threshold of the layout: of as many blocks as there, or of
    fewer where more are of no use, but on the same side of each block, window and chunk, and of each other."""
    sizes, drafts = _sizes(layout, small), small.draft_tokens
    enough = max(SHORTEST, 2 * small.scheduler_block + 16, *(2 * (g.window or g.chunk) for g in small.groups))

    def settle(what: str, real: int, wanted: int, least: int = 1) -> int:
        one = _Known(what, real, max(least, _ordered(real, wanted, sizes)))
        scale.notes += [_lost(one, other) for other in sizes if not other.is_kept_by(one)]
        sizes.append(one)
        return one.here

    real_longest, real_budget = layout.max_model_len, layout.token_budget
    longest = settle("the longest request", real_longest, min(enough, max(FEW, scale.whole_tokens(real_longest))))
    usual = max(STEP, round(longest * real_budget / real_longest))
    budget = settle("a step", real_budget, min(longest, usual, scale.whole_tokens(real_budget)), 2 * drafts + 1)
    threshold = layout.long_prefill_threshold
    if threshold:
        threshold = settle("a long prefill", threshold, round(budget * threshold / real_budget), 2 * drafts + 2)
    return replace(
        small,
        max_model_len=longest,
        token_budget=budget,
        long_prefill_threshold=min(budget, threshold),
        max_requests=min(MOST_REQUESTS, layout.max_requests, budget),
    )


def _sizes(layout: Layout, small: Layout) -> list[_Known]:
    """Blocks, windows and chunks."""
    found = []
    for index, (real, here) in enumerate(zip(layout.groups, small.groups, strict=True)):
        found.append(_Known("a block", layout.block_tokens(index), small.block_tokens(index)))
        found += [_Known("a window", real.window, here.window)] if real.window else []
        found += [_Known("a chunk", real.chunk, here.chunk)] if real.chunk else []
    return list(dict.fromkeys(found))


def _ordered(real: int, wanted: int, known: Sequence[_Known]) -> int:
    """The nearest to ``wanted`` that stands to the known sizes here as ``real`` does there."""
    least = max((one.here for one in known if one.real <= real), default=1)
    most = min((one.here - 1 for one in known if one.real > real), default=wanted)
    return max(1, least, min(wanted, most))


def _lost(one: _Known, other: _Known) -> str:
    below = "below" if one.real < other.real else "not below"
    return f"{one.what} of {one.real} tokens is {below} {other.what} of {other.real}; here {one.here} and {other.here}"
