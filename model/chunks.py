"""Where the chunks of a prefill end (R8.4)."""

from __future__ import annotations

from kvcheck.model import laws
from kvcheck.model.faults import Faults
from kvcheck.model.layout import Layout
from kvcheck.model.request import Request


class Chunks:
    """The stops of one server. ``grid`` is G of R8.4; 0 without Mamba groups. ``threshold``: the most tokens of a
    request in one pass; 0 without a limit."""

    def __init__(self, layout: Layout, partial: bool, faults: Faults) -> None:
        self.layout = layout
        self.faults = faults
        self.partial = partial
        self.stops_at_tail = partial and layout.hash_block < layout.scheduler_block
        self.eagle = bool(layout.drafter and layout.drafter.is_eagle)
        self.grid = laws.chunk_grid(layout.mamba_block, layout.chunk_grid, faults) if layout.has_mamba else 0
        self.threshold = laws.prefill_threshold(layout.long_prefill_threshold, layout.prefill_lookahead, faults)
        self.largest = laws.largest_chunk(layout.token_budget, layout.draft_slots, self.threshold, faults)

    def limited(self, count: int) -> int:
        """At most the threshold for long prefills."""
        return min(count, self.threshold) if self.threshold else count

    def cut(self, request: Request, start: int, count: int, reserve: bool = True) -> int:
        """How many of ``count`` tokens run from ``start`` on."""
        if self.grid and start < laws.prefill_end(request.prompt, request.known):
            count = self._end(request, start, start + count) - start
        if reserve:
            count = self.reserve(request, start, count)
        return max(count, 0)

    def _end(self, request: Request, start: int, end: int) -> int:
        """Where a chunk ends that could run to ``end`` (R8.4.1 to R8.4.6)."""
        tail = laws.prompt_tail(request.prompt, self.layout.hash_block) if self.stops_at_tail else 0
        return laws.chunk_end(
            start,
            end,
            request.known,
            request.prompt,
            tail,
            request.junction,
            self.grid,
            self.largest,
            self.eagle,
            self.faults,
        )

    def reserve(self, request: Request, start: int, count: int) -> int:
        """A chunk that leaves too little for the drafter's last one is shortened, unless it must end there (R8.4.7)."""
        if self.layout.prefill_lookahead < 2:
            return count
        end = start + count
        tail = laws.prompt_tail(request.prompt, self.layout.hash_block) if self.partial else 0
        if self.grid and laws.must_end(end, self.grid, tail, self.faults):
            return count
        return max(0, laws.lookahead_kept(request.known, start, end, self.layout.prefill_lookahead) - start)
