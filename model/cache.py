"""The cache manager: what the scheduler asks of the cache (R4, R7.5, R8.1)."""

from __future__ import annotations

from typing import NamedTuple

from kvcheck.model import laws
from kvcheck.model.coordinator import Blocks, Coordinator
from kvcheck.model.faults import Faults
from kvcheck.model.layout import Layout
from kvcheck.model.managers import Need
from kvcheck.model.pool import Pool, ServerError
from kvcheck.model.request import Request, Status


class Local(NamedTuple):
    """A local hit: blocks by group, tokens, junction, and whether some group has less (R7.5.2)."""

    blocks: Blocks
    length: int
    junction: int
    diverged: bool = False


class Cache:
    """One server's cache: pool, coordinator, and the blocks that are kept for a connector."""

    def __init__(self, layout: Layout, faults: Faults) -> None:
        self.layout = layout
        self.faults = faults
        self.pool = Pool(layout.num_blocks, len(layout.groups), layout.events, faults)
        self.coordinator = Coordinator(layout, self.pool, faults)
        self.managers = self.coordinator.managers
        self.giving_up = [m for m in self.managers if not m.group.keeps_whole_prefix]
        self.nothing = Local([[] for _ in layout.groups], 0, 0)
        self.watermark = int(layout.watermark * layout.num_blocks)
        self.pins: dict[str, list[int]] = {}

    # ---- lookup --------------------------------------------------------------------------------------------------

    def lookup(self, request: Request) -> Local:
        """The local hit that all groups agree on (R4). Nothing without caching, or if the request must compute its
        whole prompt (R7.12)."""
        if not self.layout.caching or request.skip_reading:
            return self.nothing
        agreed = self.coordinator.agree(request.names, laws.cap(request.known, self.faults))
        return Local(agreed.blocks, agreed.length, agreed.junction)

    def lookup_for_connector(self, request: Request) -> Local:
        """The local hit beside a connector that supports diverged hits: that of full attention, if none is deeper."""
        reference = self.coordinator.full_attention
        several = len(self.managers) > 1 and self.layout.has_mamba and reference is not None
        if not several or not self.layout.caching or request.skip_reading:
            return self.lookup(request)
        assert reference is not None
        blocks, lengths = self.coordinator.each(request.names, laws.cap(request.known, self.faults))
        full, deepest, faults = lengths[reference], max(lengths), self.faults
        if laws.takes_agreed(full, deepest, faults):
            return self.lookup(request)
        length = laws.diverged_length(full, deepest, faults)
        return Local(blocks, length, 0, laws.is_diverged(min(lengths), length, faults))

    def truncated(self, blocks: Blocks, length: int) -> Blocks:
        """The blocks of a hit without its tail, ``length`` being a multiple of all block sizes (R7.2)."""
        cut = []
        for manager, columns in zip(self.managers, blocks, strict=True):
            whole = length // manager.block
            if self.faults.diverged_hit_truncated and manager.group.is_attention and whole > len(columns):
                raise ServerError("diverged-hit-truncated")
            cut.append(columns[:whole])
        return cut

    # ---- allocation ----------------------------------------------------------------------------------------------

    def allocate(
        self,
        request: Request,
        new: int,
        local: Local,
        external: int = 0,
        lookahead: int = 0,
        delayed: bool = False,
        whole: bool = False,
        reserved: int = 0,
        others_run: bool = True,
    ) -> Blocks | None:
        """Blocks for ``new`` tokens behind computed ones, hit and external ones: whole or not at all (R8.1).

        ``lookahead``: places for the drafter. ``delayed``: nothing is registered before a load is over (R7.9).
        ``whole``: the whole sequence must fit (R8.5). ``reserved``: blocks that others still need (R8.5.2). Returns
        what is new in each table, or None if memory is short.
        """
        label, longest = request.label, self.layout.max_model_len
        computed = request.computed + local.length
        total = min(computed + external, longest)
        resume = laws.resumes_at(total, request.known, self.faults) if external else total
        settled = laws.settled(total, request.in_flight, self.faults)
        waiting = request.status in (Status.WAITING, Status.PREEMPTED)
        watermark = self.watermark if others_run and waiting else 0
        if not self.faults.admission_before_giving_up:
            self.give_up(label, settled)
        if whole:
            full = min(request.known, longest)
            need = Need(full, full, resume, computed, external, True)
            if self._estimate(label, local.blocks, need) + watermark > self.free:
                return None
        main = total + new
        tokens = min(main + lookahead, longest)
        if self.faults.admission_before_giving_up:
            self.give_up(label, settled)
        needed = self._estimate(label, local.blocks, Need(tokens, main, resume, computed, external, False))
        if needed + watermark > self.free - reserved:
            return None
        if external or any(local.blocks):
            self.coordinator.adopt(label, local.blocks, resume, total, computed, external)
        grown = self.coordinator.grow(label, tokens, main)
        if not delayed or self.faults.load_registered_at_once:
            known = min(main, request.known)
            self.register(request, known, laws.state_planned(known, main, self.faults))
        return grown

    @property
    def free(self) -> int:
        """Free blocks."""
        return self.pool.free_count

    def _estimate(self, label: str, hits: Blocks, need: Need) -> int:
        """What all groups need."""
        managers = zip(self.managers, hits, strict=True)
        return sum([manager.estimate(label, blocks, need) for manager, blocks in managers])

    def missing(self, request: Request) -> int:
        """Blocks that a request needs for the rest of its sequence, and for the drafter's places behind it (R8.5.2)."""
        longest = self.layout.max_model_len
        ahead = 0 if self.faults.lookahead_not_reserved else self.layout.lookahead
        full = min(request.known, longest)
        need = Need(min(full + ahead, longest), full, request.computed, request.computed, 0, True)
        return self._estimate(request.label, self.nothing.blocks, need)

    def register(self, request: Request, tokens: int, state: int) -> None:
        """Publish keys (R5), if there is caching."""
        if self.layout.caching:
            self.coordinator.register(request, tokens, state)

    # ---- giving back ---------------------------------------------------------------------------------------------

    def give_up(self, label: str, settled: int) -> None:
        """Give back what is out of reach in every group (R2)."""
        for manager in self.giving_up:
            manager.give_up(label, settled)

    def free_request(self, label: str) -> None:
        """Give back all that a request holds, group by group, tails first (R1.14)."""
        self.pool.release(self.pins.pop(label, ()))
        for manager in self.managers:
            manager.free(label)

    def remove_request(self, label: str) -> list[int]:
        """All that a request holds, not given back yet (R8.2.2)."""
        blocks = self.pins.pop(label, [])
        for manager in self.managers:
            blocks = blocks + manager.remove(label)
        return blocks

    def cut_back(self, label: str, tokens: int) -> None:
        """Give back the blocks behind a request's first ``tokens`` tokens, a multiple of all block sizes."""
        for manager in self.managers:
            manager.cut_back(label, tokens)

    def unpublish(self, label: str) -> None:
        """The keys that a request's blocks got in this pass go: its step will not run (R5.5.1)."""
        for table in self.coordinator.tables(label):
            for block in table:
                self.pool.unpublish(block)

    def forget_zeroing(self, label: str) -> None:
        """Blocks that a request got in this pass need not be zeroed: its step will not run."""
        for manager in self.managers:
            lost = set(manager.rows[label].blocks)
            manager.to_zero = [block for block in manager.to_zero if block not in lost]

    # ---- the end of a pass ---------------------------------------------------------------------------------------

    def pin_handed_over(self) -> None:
        """Copied tails that a connector may read are kept until their request ends (R12.44), through all turns of a
        session (R10.52)."""
        for manager in self.managers:
            for label, block in manager.handed_over:
                self.pool.touch((block,))
                self.pins.setdefault(label, []).append(block)

    def take_copies(self) -> list[tuple[int, int]]:
        """The copies of this pass: source and target, which both have a reference more (R6.3)."""
        copies: list[tuple[int, int]] = []
        for manager in self.managers:
            copies += manager.copies
            manager.copies.clear()
            manager.handed_over.clear()
        return copies

    def take_zeroed(self) -> list[int]:
        """Blocks that the worker must zero before the step."""
        blocks: list[int] = []
        for manager in self.managers:
            blocks += manager.to_zero
            manager.to_zero.clear()
        return blocks
