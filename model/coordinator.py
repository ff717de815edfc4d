"""All groups together: one hit length for all (R4), bounds of registration (R5), allocation for every group (R7.8)."""

from __future__ import annotations

from typing import NamedTuple

from kvcheck.model import laws
from kvcheck.model.arith import ceil_div
from kvcheck.model.faults import Faults
from kvcheck.model.layout import Layout
from kvcheck.model.managers import MANAGERS, Manager
from kvcheck.model.pool import Pool, ServerError
from kvcheck.model.request import Request

Blocks = list[list[int]]
"""Blocks by group and column."""


class Agreed(NamedTuple):
    """A hit that every group serves: its blocks, its length, and the junction behind it, if any (R4.10)."""

    blocks: Blocks
    length: int
    junction: int


class LookupGroup:
    """Groups with equal specifications, which are looked up together (R1.5)."""

    def __init__(self, layout: Layout, managers: list[Manager], groups: list[int]) -> None:
        self.groups = groups
        self.manager = managers[groups[0]]
        self.whole_prefix = layout.groups[groups[0]].keeps_whole_prefix
        self.is_mamba = not layout.groups[groups[0]].is_attention
        self.drops = self.manager.eagle and not self.is_mamba


class Coordinator:
    """The managers of all groups. ``partial`` and ``granularity`` as in R3."""

    def __init__(self, layout: Layout, pool: Pool, faults: Faults) -> None:
        self.layout = layout
        self.pool = pool
        self.faults = faults
        self.managers = [MANAGERS[g.kind](i, layout, pool, faults) for i, g in enumerate(layout.groups)]
        self.partial = layout.partial_hits_with(faults)
        self.granularity = laws.granularity(self.partial, layout.hash_block, layout.scheduler_block)
        self.retention = None if isinstance(layout.retention, str) else layout.retention
        together: dict[object, list[int]] = {}
        for index, group in enumerate(layout.groups):
            together.setdefault(layout.lookup_spec(group), []).append(index)
        lookup_groups = [LookupGroup(layout, self.managers, groups) for groups in together.values()]
        self.lookup_groups = sorted(lookup_groups, key=lambda g: not g.whole_prefix)
        first = self.lookup_groups[0]
        self.full_attention: int | None = first.groups[0] if first.whole_prefix else None

    # ---- lookup (R4) ---------------------------------------------------------------------------------------------

    def agree(self, names: list[int], cap: int) -> Agreed:
        """The longest hit that all groups serve: from the cap down, until no group shortens it (R4.2)."""
        blocks: Blocks = [[] for _ in self.managers]
        if len(self.managers) == 1:
            only = self.lookup_groups[0]
            found, length = self._find(only, names, cap, only.drops)
            return Agreed(found, length, 0)
        length, longest = cap, 0
        own: dict[int, int] = {}
        verified: set[int] = set()
        while True:
            candidate = length
            for index, group in enumerate(self.lookup_groups):
                if group.whole_prefix and index in own:  # looked up once, trimmed later (R4.4)
                    candidate = min(candidate, own[index])
                    continue
                found, got = self._verify(group, names, candidate, cap, group.drops and index not in verified)
                verified = self._verified(verified, index, group, got < candidate)
                for member, columns in zip(group.groups, found, strict=True):
                    blocks[member] = columns
                own[index], candidate = got, got
                longest = max(longest, got)
            if candidate >= length:
                break
            length = candidate
            if self._settles_at_once():
                break
        self._trim(blocks, length)
        return Agreed(blocks, length, laws.junction(longest, length))

    def _verify(
        self, group: LookupGroup, names: list[int], candidate: int, cap: int, drops: bool
    ) -> tuple[Blocks, int]:
        """Look up one group at a candidate; an EAGLE group that drops looks one unit further (R4.5)."""
        limit = candidate
        further = drops and not (self.faults.drop_repeated and candidate < cap)
        if further or (self.faults.mamba_looks_further and group.is_mamba and group.manager.eagle):
            manager = group.manager
            unit = laws.drop_unit(self.partial, manager.fine_grained, manager.block, self.layout.hash_block)
            limit = laws.looks_until(candidate, unit, cap)
        return self._find(group, names, limit, drops)

    def _find(self, group: LookupGroup, names: list[int], limit: int, drops: bool) -> tuple[Blocks, int]:
        manager = group.manager
        return manager.find(group.groups, names, limit, self.granularity, drops, manager.block)

    def _verified(self, verified: set[int], index: int, group: LookupGroup, shortened: bool) -> set[int]:
        """Lookup groups whose drop is verified at the candidate: not again for the same one (R4.7), all again for a
        shorter one (R4.8)."""
        dropped = group.manager.eagle and index not in verified
        verified = {i for i in verified if laws.drop_stands(True, shortened, dropped, self.faults)}
        return verified | {index} if laws.drop_verified(dropped, self.faults) else verified

    def _settles_at_once(self) -> bool:
        """One full-attention group and another: what the other serves, the first serves too (R2.3)."""
        return self.faults.single_pass_lookup or (len(self.lookup_groups) == 2 and self.lookup_groups[0].whole_prefix)

    def _trim(self, blocks: Blocks, length: int) -> None:
        """Full attention adopts nothing beyond the agreed length (R4.3)."""
        groups = [g for g in self.lookup_groups if g.whole_prefix]
        if self.faults.only_first_full_attention_trimmed:
            groups = groups[:1]
        for group in groups:
            for member in group.groups:
                del blocks[member][ceil_div(length, group.manager.block) :]

    def each(self, names: list[int], cap: int) -> tuple[Blocks, list[int]]:
        """What each group would serve on its own: blocks and lengths by group (R7.5)."""
        blocks: Blocks = [[] for _ in self.managers]
        lengths = [0] * len(self.managers)
        for group in self.lookup_groups:
            manager = group.manager
            block = manager.group.block_size if self.faults.diverged_lookup_ignores_dcp else manager.block
            if block % self.layout.hash_block:
                raise ServerError("diverged-lookup-block-size")
            found, length = manager.find(group.groups, names, cap, self.granularity, group.drops, block)
            for member, columns in zip(group.groups, found, strict=True):
                blocks[member], lengths[member] = columns, length
        return blocks, lengths

    # ---- registration (R5) ---------------------------------------------------------------------------------------

    def register(self, request: Request, tokens: int, state: int) -> None:
        """Publish what the first ``tokens`` tokens are worth; ``state``: those that the states stand after."""
        layout = self.layout
        r, whole = layout.reprefillable, layout.scheduler_block
        if len(self.managers) == 1:
            self.managers[0].register(request, laws.finalised(tokens, r), state, self.retention)
            return
        ordinary = laws.ordinary_bound(tokens, self.partial, whole, layout.hash_block, self.faults)
        for manager in self.managers:
            bound = ordinary
            if manager.eagle:
                bound = laws.eagle_bound(tokens, r, manager.block, self.partial, whole, self.faults)
            manager.register(request, bound, state, self.retention)

    # ---- allocation ----------------------------------------------------------------------------------------------

    def adopt(self, label: str, hits: Blocks, resume: int, total: int, local: int, external: int) -> None:
        """Take local hits of all groups, then blocks for external tokens (R7.8)."""
        for manager, blocks in zip(self.managers, hits, strict=True):
            manager.adopt(label, blocks, resume, local)
            if external and self.faults.local_blocks_touched_late:
                manager.load(label, total)
        if external and not self.faults.local_blocks_touched_late:
            for manager in self.managers:
                manager.load(label, total)

    def grow(self, label: str, tokens: int, main: int) -> Blocks:
        """Take the blocks of a step in all groups; what is new in each table."""
        return [manager.grow(label, tokens, main) for manager in self.managers]

    def tables(self, label: str) -> tuple[tuple[int, ...], ...]:
        """The request's tables."""
        rows = [manager.rows.get(label) for manager in self.managers]
        return tuple([tuple(row.blocks) if row else () for row in rows])
