"""Where the chunks of a prefill end (R8.4)."""

from __future__ import annotations

from kvcheck.model import laws
from kvcheck.model.faults import Faults
from kvcheck.model.layout import Layout
from kvcheck.model.request import Request


class Chunks:
    """The stops of one server. ``grid`` is G of R8.4; 0 without Mamba groups."""

    def __init__(self, layout: Layout, partial: bool, faults: Faults) -> None:
        self.layout = layout
        self.faults = faults
        self.partial = partial
        self.eagle = bool(layout.drafter and layout.drafter.is_eagle)
        self.grid = 0
        if layout.has_mamba:
            self.grid = layout.chunk_grid if faults.chunk_grid_smallest_block else layout.mamba_block
        self.largest = laws.largest_chunk(
            layout.token_budget, layout.draft_slots, layout.long_prefill_threshold, faults
        )

    def cut(self, request: Request, start: int, count: int, reserve: bool = True) -> int:
        """How many of ``count`` tokens run from ``start`` on."""
        if self.grid and start < laws.prefill_end(request.prompt, request.known):
            count = self._end(request, start, start + count) - start
        if reserve:
            count = self.reserve(request, start, count)
        return max(count, 0)

    def _end(self, request: Request, start: int, end: int) -> int:
        """States are kept where chunks end, so they end where a state is worth keeping (R8.4.1 to R8.4.6)."""
        grid, known, prompt = self.grid, request.known, request.prompt
        prefill = laws.prefill_end(prompt, known)
        cacheable = laws.last_cacheable(known, grid, self.eagle)
        if not self.faults.chunk_past_last_boundary or start < cacheable:
            end = laws.cut_to_grid(start, end, prefill, grid, self.largest, self.faults)
        stops = [cacheable]
        if not self.faults.chunk_starts_off_grid and (not self.faults.chunk_past_last_boundary or start < cacheable):
            stops.append(laws.next_grid(start, grid))
        if self.partial and self.layout.hash_block < self.layout.scheduler_block:
            stops.append(laws.tail_stop(laws.prompt_tail(prompt, self.layout.hash_block), cacheable, prompt))
        stops.append(laws.junction_stop(start, end, request.junction, grid))
        last = end
        for stop in stops:
            end = min(end, laws.stopped(start, last, stop))
        return end

    def reserve(self, request: Request, start: int, count: int) -> int:
        """A chunk that leaves too little for the drafter's last one is shortened, unless it must end there (R8.4.7)."""
        if self.layout.prefill_lookahead < 2:
            return count
        end = start + count
        tail = laws.prompt_tail(request.prompt, self.layout.hash_block) if self.partial else 0
        if laws.must_end(end, self.grid, tail) and not self.faults.mtp_reserve_over_stop:
            return count
        return max(0, laws.lookahead_kept(request.known, start, end, self.layout.prefill_lookahead) - start)
