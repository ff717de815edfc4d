"""A layout scaled down: the ratios of its sizes stay, so that a request of some dozen tokens crosses every boundary."""

from __future__ import annotations

import math

import msgspec

from kvcheck.layouts.presets import SPARE_BLOCKS
from kvcheck.model.arith import ceil_div
from kvcheck.model.layout import Group, Layout

MOST_UNITS = 16
"""Match units a block, and blocks a window or chunk: more show nothing that these do not, and need long requests."""
SHORTEST, STEP = 64, 32
"""Tokens of the longest request and of a step, where blocks are small."""
MOST_REQUESTS = 4

replace = msgspec.structs.replace


def scaled(layout: Layout) -> tuple[Layout, list[str]]:
    """The layout with small sizes, and in words what of its ratios could not be kept."""
    common = math.gcd(*(group.block_size for group in layout.groups))
    units, notes = _units(common, layout.match_unit)
    scale = _Scale(common, _least(layout, common, units), notes)
    groups = tuple(scale.group(group) for group in layout.groups)
    small = replace(
        layout,
        groups=groups,
        match_unit=layout.match_unit and scale.least // units,
        retention=scale.tokens(layout.retention) if isinstance(layout.retention, int) else layout.retention,
        max_requests=min(MOST_REQUESTS, layout.max_requests),
        long_prefill_threshold=0,
    )
    longest = max(SHORTEST, 2 * small.scheduler_block + 16, *(2 * (g.window or g.chunk) for g in groups))
    share = layout.token_budget / layout.max_model_len
    budget = min(longest, max(round(longest * share), _least_budget(small)))
    threshold = _threshold(layout, longest, budget)
    small = replace(small, max_model_len=longest, token_budget=budget, long_prefill_threshold=threshold)
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
    """``common`` tokens of the server become ``least`` tokens here."""

    common: int
    least: int
    notes: list[str]

    def tokens(self, size: int) -> int:
        """So many tokens of the server, here."""
        return ceil_div(size * self.least, self.common)

    def group(self, group: Group) -> Group:
        """The group with small sizes. ``checkpoint_alignment`` of one token stays one."""
        block = self.tokens(group.block_size)
        alignment = group.checkpoint_alignment
        return replace(
            group,
            block_size=block,
            window=self._reach(group.window, group.block_size, block, "window"),
            chunk=self._reach(group.chunk, group.block_size, block, "chunk"),
            checkpoint_alignment=alignment and (1 if alignment == 1 else self.tokens(alignment)),
        )

    def _reach(self, reach: int, real: int, block: int, what: str) -> int:
        """A window or chunk of as many blocks as before, as far as that is of use."""
        if not reach:
            return 0
        if reach <= MOST_UNITS * real:
            return max(2, self.tokens(reach))
        self.notes.append(f"the {what} of {reach} tokens is {reach / real:g} blocks, {MOST_UNITS} here")
        return MOST_UNITS * block


def _least_budget(layout: Layout) -> int:
    return max(STEP, layout.max_requests, 2 * layout.draft_tokens + 1, layout.mamba_block)


def _threshold(layout: Layout, longest: int, budget: int) -> int:
    """The long-prefill threshold as the same share of the longest request, never below what drafts need."""
    if not layout.long_prefill_threshold:
        return 0
    wanted = round(longest * layout.long_prefill_threshold / layout.max_model_len)
    return min(budget, max(wanted, 2 * layout.draft_tokens + 2, 4))
