"""One group's blocks: what requests hold, what a lookup finds, what an allocation takes, what is registered (R2).

A manager for each kind of group. They share tables, estimates and allocation; they differ in what a hit needs, what
may be given up, and what is worth a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvcheck.model import laws
from kvcheck.model.arith import ceil_div, round_down
from kvcheck.model.faults import Faults
from kvcheck.model.layout import Group, Layout
from kvcheck.model.pool import NULL, Key, Pool, ServerError
from kvcheck.model.request import Request

Hit = tuple[list[list[int]], int]
"""What a lookup of some groups with one specification found: blocks by group and column, and the length in tokens."""


class Need(NamedTuple):
    """What an allocation is for. ``tokens`` are to have a place, ``main`` of them without lookahead; ``resume``: where
    the request goes on, ``local`` of these tokens being computed here and ``external`` ones loaded; ``whole``: to admit
    the whole sequence, not for one step only."""

    tokens: int
    main: int
    resume: int
    local: int
    external: int
    whole: bool


class Row:
    """What one request holds in one group.

    ``blocks``: its table (R1.4). ``registered``: columns that have got their key, or never will. ``tail``: a partial
    tail that must be copied before the request writes on: column and block (R6). For Mamba: ``grown``: it has been
    allocated blocks to run in; ``previous``: the column of the state before the running one, all that R10.50 looks at.
    ``prompt_tail``: the last hash boundary of a prompt of ``prompt`` tokens if it lies inside a block, else 0 (R5.4).
    """

    __slots__ = ("blocks", "grown", "previous", "prompt", "prompt_tail", "registered", "tail")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.registered = 0
        self.tail: tuple[int, int] | None = None
        self.grown = False
        self.previous: int | None = None
        self.prompt = self.prompt_tail = 0


class Manager:
    """Full attention and MLA, and what all kinds share.

    ``has_gaps``: tables have null columns between others, as chunks have passed them over.
    ``block``: the effective block size in tokens (R1.6). Of this pass: ``copies`` from block to block, blocks
    ``to_zero``, and copies of tails that are ``handed_over`` to a connector for a request. ``most_blocks``: what an
    admission counts at most.
    """

    has_gaps = False

    def __init__(self, index: int, layout: Layout, pool: Pool, faults: Faults) -> None:
        self.index = index
        self.layout = layout
        self.group: Group = layout.groups[index]
        self.pool = pool
        self.faults = faults
        self.block = layout.block_tokens(index)
        self.hash_block = layout.hash_block
        self.fine_grained = self.group.fine_grained
        self.has_tails = self.fine_grained and self.block != self.hash_block
        self.eagle = index in layout.eagle_groups
        self.rows: dict[str, Row] = {}
        self.handed_over: list[tuple[str, int]] = []
        self.copies: list[tuple[int, int]] = []
        self.to_zero: list[int] = []
        self.zeroes = self.group.is_attention and (layout.zeroing or layout.has_mamba)
        self.most_blocks = layout.most_at_once(index, 0 if faults.lookahead_not_reserved else layout.lookahead)

    def row(self, label: str) -> Row:
        """The request's row, an empty one if it has none yet."""
        row = self.rows.get(label)
        if row is None:
            row = self.rows[label] = Row()
        return row

    # ---- lookup (R2, R4) -----------------------------------------------------------------------------------------

    def find(self, groups: Sequence[int], names: list[int], limit: int, unit: int, drops: bool, block: int) -> Hit:
        """The longest hit of at most ``limit`` tokens, a multiple of ``unit`` (R3.6), for all these groups.

        Full attention: the first miss ends it (R2.1). An EAGLE group that ``drops`` gives up its last unit (R4.5).
        """
        h, columns = self.hash_block, []
        for end in range(block, limit + 1, block):
            found = self.pool.find(groups, names[end // h - 1])
            if found is None:
                break
            columns.append(found)
        length = len(columns) * block
        if unit < block:
            first = length
            last = min(first + block - unit, round_down(limit, unit))
            for end in range(last, first, -unit):
                found = self.pool.find(groups, names[end // h - 1])
                if found is not None:
                    columns.append(found)
                    length = end
                    break
        if drops and length:
            length -= min(unit, block)
        length = round_down(length, unit)
        del columns[ceil_div(length, block) :]
        return _by_group(columns, len(groups)), length

    def passed(self, tokens: int) -> int:
        """How many first tokens a request with ``tokens`` computed ones needs no more (R2.2)."""
        return 0

    # ---- estimate (R8.1) -----------------------------------------------------------------------------------------

    def estimate(self, label: str, hits: Sequence[int], need: Need) -> int:
        """Blocks that an allocation takes at most; more than there are if the hit cannot be used in this step."""
        if hits and self.unwritten(hits, need.local):
            return self.pool.blocks + 1
        row = self.rows.get(label)
        table = row.blocks if row else []
        passed = self.passed(need.resume)
        wanted = hits[max(0, passed // self.block - len(table)) :]
        columns = len(table) + len(hits)
        blocks = laws.attention_blocks(need.tokens, self.block, passed, columns)
        if need.whole and self.most_blocks is not None and not self.faults.admission_counts_whole_window:
            kept = sum([block != NULL for block in (*table, *wanted)])
            held = laws.counted_as_held(kept, max(passed // self.block, columns), self.faults)
            blocks = laws.at_once(blocks, self.most_blocks, held)
        if not hits:
            return blocks
        return laws.with_hits(blocks, self.ends_inside(hits, need.local), self.pool.evictable(wanted), self.faults)

    def ends_inside(self, hits: Sequence[int], local: int) -> bool:
        """Whether a local hit ends inside one of these blocks, so that it must be copied (R6.1)."""
        return len(hits) > 0 and local % self.block != 0

    def unwritten(self, hits: Sequence[int], local: int) -> bool:
        """Whether a hit needs what is written in this very step, too late for it (R5.5.3, R5.5.4)."""
        if self.faults.tail_copied_in_its_own_step or not self.ends_inside(hits, local):
            return False
        return self.pool.published_now(hits[-1])

    # ---- allocation (R6, R7.8, R8.1) -----------------------------------------------------------------------------

    def adopt(self, label: str, hits: Sequence[int], resume: int, local: int) -> None:
        """Take the blocks of a local hit into the table; columns that nobody will read are null (R2.11)."""
        row = self.row(label)
        passed = max(0, self.passed(resume) // self.block)
        row.blocks = [NULL] * passed + list(hits[passed:])
        self.pool.touch(row.blocks)
        row.registered = len(row.blocks)
        if self.ends_inside(hits[passed:], local) and not self.faults.hit_block_not_copied:
            row.registered = local // self.block
            row.tail = row.registered, hits[-1]

    def load(self, label: str, total: int) -> None:
        """Take blocks for external tokens (R7.3); columns that nobody will read are null already."""
        row = self.row(label)
        missing = ceil_div(total, self.block) - len(row.blocks)
        if missing > 0 or self.faults.only_first_full_attention_trimmed:  # the pool counts those above as free (R10.6)
            self._append(row, missing)

    def grow(self, label: str, tokens: int, main: int) -> list[int]:
        """Take the blocks that the step needs; returns what the worker must append to its table (R8.3)."""
        row = self.row(label)
        appended = []
        if row.tail is not None:
            appended.append(self._copy_shared_tail(row, self.pool.take(1)[0]))
            self.to_zero += appended
        missing = ceil_div(tokens, self.block) - len(row.blocks)
        return appended + self._append(row, missing) if missing > 0 else appended

    def _append(self, row: Row, count: int) -> list[int]:
        blocks = self.pool.take(count)
        row.blocks += blocks
        if self.zeroes:
            self.to_zero += blocks
        return blocks

    def _copy_shared_tail(self, row: Row, copy: int) -> int:
        """The request gets a copy of the block that it shares, in its place (R6.4); both ends are kept (R6.3)."""
        assert row.tail is not None
        column, source = row.tail
        row.tail = None
        if row.blocks[column] != source:
            raise ServerError("shared-tail-not-in-place")
        row.blocks[column] = copy
        self._order_copy(source, copy)
        self.pool.hold(copy)
        return copy

    def _order_copy(self, source: int, target: int) -> None:
        self.copies.append((source, target))

    # ---- giving up (R2, R1.14) -----------------------------------------------------------------------------------

    def give_up(self, label: str, settled: int) -> None:
        """Give back blocks that no token behind ``settled`` ones reads, from the last to the first (R8.2.4)."""
        row = self.rows.get(label)
        passed = self.passed(settled)
        if row is None or passed <= 0:
            return
        given = []
        for column in range(min(passed // self.block, len(row.blocks)) - 1, -1, -1):
            if row.blocks[column] == NULL:
                if self.has_gaps:
                    continue
                break
            given.append(row.blocks[column])
            row.blocks[column] = NULL
        if given:
            self.pool.release(given)
            if self.faults.block_freed_twice and self.pool.refs[given[0]] > 0:
                self.pool.release(given[:1])

    def cut_back(self, label: str, tokens: int) -> None:
        """Give back the columns behind the first ``tokens`` tokens, the last first."""
        blocks = self.rows[label].blocks
        kept = tokens // self.block
        self.pool.release(reversed(blocks[kept:]))
        del blocks[kept:]

    def free(self, label: str) -> None:
        """Give back all blocks of a request, the last first (R1.14)."""
        self.pool.release(reversed(self.remove(label)))

    def remove(self, label: str) -> list[int]:
        """The request's blocks in the order of its table; it holds none of them any more."""
        row = self.rows.pop(label, None)
        return row.blocks if row else []

    # ---- registration (R5) ---------------------------------------------------------------------------------------

    def register(self, request: Request, bound: int, state: int, retention: int | None) -> None:
        """Publish the keys of whole blocks below ``bound``, and of the prompt's tail.

        ``state``: tokens that the request's states stand after once its step has run.
        """
        row = self.row(request.label)
        whole = bound // self.block
        if row.registered < whole:
            self._register_whole(request, row, whole, retention)
        if not self.has_tails:
            return
        if row.prompt != request.prompt:
            tail = laws.prompt_tail(request.prompt, self.hash_block)
            row.prompt, row.prompt_tail = request.prompt, tail if laws.tail_inside(tail, self.block) else 0
        if row.prompt_tail:
            self.register_tail(request, row, bound, state)

    def _register_whole(self, request: Request, row: Row, whole: int, retention: int | None) -> None:
        stored = []
        for column in range(row.registered, whole):
            block = row.blocks[column] if column < len(row.blocks) else NULL
            if block != NULL and self.keeps(request, column, retention):
                key = self._key(request, (column + 1) * self.block)
                if self.pool.register(block, key):
                    stored.append(key)
        row.registered = whole
        self.pool.announce_stored(self.index, stored)

    def keeps(self, request: Request, column: int, retention: int | None) -> bool:
        """Whether this whole block is worth a key (R5.6.1)."""
        return True

    def register_tail(self, request: Request, row: Row, bound: int, state: int) -> None:
        """Publish the prompt's last hash boundary inside a block, once the bound has reached it (R5.4.1)."""
        column = row.prompt_tail // self.block
        if row.prompt_tail <= bound and column < len(row.blocks):
            self._publish_tail(request, row.blocks[column], row.prompt_tail)

    def _publish_tail(self, request: Request, block: int, tail: int) -> bool:
        if block == NULL:
            return False
        key = self._key(request, tail)
        if self.pool.register(block, key):
            self.pool.announce_stored(self.index, [key])
        return True

    def _key(self, request: Request, length: int) -> Key:
        return self.index, request.names[length // self.hash_block - 1], length

    def _boundaries(self, request: Request) -> list[int]:
        """Boundaries that are kept under every retention interval (R5.6.4, R5.6.6).

        Where groups drop, a replay of the prompt resumes a scheduler block lower.
        """
        boundaries = [] if self.faults.replay_boundary_not_kept else [request.prompt - 1]
        if boundaries and self.layout.eagle_groups and not self.faults.replay_boundary_out_of_reach:
            boundaries.append(laws.replay_with_drop(request.prompt, self.layout.scheduler_block))
        if request.junction and not self.faults.junction_not_kept:
            boundaries.append(request.junction)
        return boundaries


class WindowManager(Manager):
    """Sliding window."""

    def __init__(self, index: int, layout: Layout, pool: Pool, faults: Faults) -> None:
        super().__init__(index, layout, pool, faults)
        self.need = laws.window_blocks(self.group.window, self.block, faults)

    def find(self, groups: Sequence[int], names: list[int], limit: int, unit: int, drops: bool, block: int) -> Hit:
        """The blocks that the window of the next token reaches into, without a gap (R2.4), and the one that drops."""
        if unit % block:
            raise ServerError("fine-grained-window")
        peek = int(drops)
        need = self.need + peek
        for end in range(limit // block, 0, -1):
            if (end - peek) * block % unit:
                continue
            first = max(0, end - need)
            columns = self._run(groups, names, first, end)
            if columns is not None:
                kept = end - peek
                if self.faults.window_run_rounded_twice and drops and end < need:
                    kept = max(0, round_down(round_down(end * block, unit) - block, unit)) // block
                blocks = [[NULL] * first + group for group in _by_group(columns, len(groups))]
                return [group[:kept] for group in blocks], kept * block
        return [[] for _ in groups], 0

    def _run(self, groups: Sequence[int], names: list[int], first: int, end: int) -> list[list[int]] | None:
        """The blocks of columns ``first`` to ``end - 1``, if all are there; looked for from the last one on."""
        columns = []
        for column in range(end - 1, first - 1, -1):
            found = self.pool.find(groups, names[(column + 1) * self.block // self.hash_block - 1])
            if found is None:
                return None
            columns.append(found)
        columns.reverse()
        return columns

    def passed(self, tokens: int) -> int:
        """What lies below the window (R2.5)."""
        return laws.window_passed(tokens, self.group.window, self.layout.reprefillable)

    def keeps(self, request: Request, column: int, retention: int | None) -> bool:
        """What some kept boundary can reach (R5.6.2 to R5.6.7)."""
        peek, block = int(self.eagle), self.block
        need, whole = self.need + peek, self.layout.scheduler_block
        segment = whole if retention is None else retention
        if segment and laws.kept_by_segment(column, block, segment, need, peek):
            return True
        return retention is not None and any(
            laws.kept_by_boundary(column, block, boundary, whole, need, peek) for boundary in self._boundaries(request)
        )


class ChunkedManager(Manager):
    """Chunked local attention."""

    def find(self, groups: Sequence[int], names: list[int], limit: int, unit: int, drops: bool, block: int) -> Hit:
        """The blocks of the chunk that the next token falls in (R2.6); earlier chunks need nothing."""
        first = laws.chunk_start(limit, self.group.chunk) // block
        columns = []
        for column in range(first, limit // block):
            found = self.pool.find(groups, names[(column + 1) * block // self.hash_block - 1])
            if found is None:
                break
            columns.append(found)
        blocks = [[NULL] * first + group for group in _by_group(columns, len(groups))]
        return blocks, (first + len(columns)) * block

    def passed(self, tokens: int) -> int:
        """Earlier chunks (R2.7)."""
        return laws.chunk_start(tokens, self.group.chunk)


class MambaManager(Manager):
    """Mamba in align mode: one state for each request, kept where a block ends (R1.19)."""

    def __init__(self, index: int, layout: Layout, pool: Pool, faults: Faults) -> None:
        super().__init__(index, layout, pool, faults)
        self.speculative = self.group.speculative_blocks
        self.has_gaps = not faults.state_before_gap_kept
        self.producers: set[str] = set()

    def find(self, groups: Sequence[int], names: list[int], limit: int, unit: int, drops: bool, block: int) -> Hit:
        """The last state at or below ``limit`` (R2.9). It never drops (R4.9)."""
        for end in range(round_down(limit, unit), 0, -unit):
            found = self.pool.find(groups, names[end // self.hash_block - 1])
            if found is not None:
                column = laws.state_column(end, block)
                return [[NULL] * column + [state] for state in found], end
        return [[] for _ in groups], 0

    def passed(self, tokens: int) -> int:
        """All states before the last one (R2.10)."""
        return laws.states_passed(tokens)

    # ---- allocation ----------------------------------------------------------------------------------------------

    def estimate(self, label: str, hits: Sequence[int], need: Need) -> int:
        """A state to run in, the speculative ones, a copy, and the state of a load (R8.1). No lookahead: drafters have
        no recurrent layers."""
        if hits and self.unwritten(hits, need.local):
            return self.pool.blocks + 1
        row = self.rows.get(label)
        required = laws.states_required(need.main, self.block, self.speculative)
        if laws.counts_load(need.external, self.faults):
            columns = max(len(hits), laws.state_column(need.resume, self.block) + 1)
            blocks = laws.states_loaded(need.resume, self.block, len(hits))
            blocks += laws.states_behind_load(required, columns, self.speculative)
            return blocks + self.pool.evictable(hits[self.passed(need.resume) // self.block :])
        held = len(row.blocks) if row else 0
        tail = self.ends_inside(hits, need.local) or (row is not None and row.tail is not None)
        grown = row is not None and row.grown
        blocks = laws.states_missing(required, held + len(hits), self.speculative, grown, tail, self.faults)
        return blocks + self.pool.evictable(hits) if hits else blocks

    def unwritten(self, hits: Sequence[int], local: int) -> bool:
        """A state registered in this pass cannot be used in its step (R5.5.3)."""
        return not self.faults.state_hit_in_its_own_step and self.pool.published_now(hits[-1])

    def grow(self, label: str, tokens: int, main: int) -> list[int]:
        """The column of the running state and the speculative ones behind it; those passed over are null (R1.19).

        A running request takes its speculative blocks along to the right (R8.3.1).
        """
        row = self.row(label)
        required = laws.states_required(main, self.block, self.speculative)
        before = len(row.blocks)
        if required <= before and row.tail is None:
            row.grown = row.grown or not self.faults.first_growth_unmarked
            return []
        if row.grown:
            row.previous = before - 1 - self.speculative
        elif before:
            row.previous = before - 1
        running = required - self.speculative - 1
        row.blocks += [NULL] * (running - before)
        if row.grown:
            self._take_along(row, before, running)
        copies = int(row.tail is not None)
        taken = self.pool.take(max(0, required - len(row.blocks)) + copies)
        new = taken[copies:]
        appended = row.blocks[before:] + new
        if copies and row.grown:
            self._move_tail(label, row, taken[0])
        elif copies:
            appended.insert(0, self._copy_shared_tail(row, taken[0]))
        row.blocks += new
        row.grown = True
        return appended

    def _take_along(self, row: Row, before: int, running: int) -> None:
        for column in range(before - self.speculative, min(before, running)):
            row.blocks.append(row.blocks[column])
            row.blocks[column] = NULL

    def _move_tail(self, label: str, row: Row, copy: int) -> None:
        """The producer of a tail keeps its block, and the keys move to the copy (R6.5)."""
        assert row.tail is not None
        column, source = row.tail
        row.tail = None
        if row.blocks[column] != source:
            raise ServerError("tail-not-in-place")
        if not self.faults.registration_does_not_move:
            self.pool.move_keys(source, copy)
        self._order_copy(source, copy)
        self.pool.hold(source)
        if label in self.producers:
            self.producers.discard(label)
            self.handed_over.append((label, copy))

    def give_up(self, label: str, settled: int) -> None:
        """All states but the running one and, until its step has been processed, the one before it (R2.10)."""
        super().give_up(label, settled)
        if self.faults.state_before_gap_kept:
            self._give_up_previous(label, settled)

    def _give_up_previous(self, label: str, settled: int) -> None:
        row = self.rows.get(label)
        if row is None or row.previous is None or row.previous >= laws.state_column(settled, self.block):
            return
        block = row.blocks[row.previous]
        if block != NULL:
            self.pool.release([block])
            row.blocks[row.previous] = NULL

    def remove(self, label: str) -> list[int]:
        """The request's blocks; a tail of its that was to be handed over is not."""
        self.producers.discard(label)
        self.handed_over = [item for item in self.handed_over if item[0] != label]
        return super().remove(label)

    # ---- registration --------------------------------------------------------------------------------------------

    def keeps(self, request: Request, column: int, retention: int | None) -> bool:
        """States at kept boundaries (R5.6.3 to R5.6.7)."""
        if retention is None:
            return True
        block, whole = self.block, self.layout.scheduler_block
        if retention and laws.state_at_segment(column, block, retention):
            return True
        return any(laws.state_at_boundary(column, block, b, whole) for b in self._boundaries(request))

    def register_tail(self, request: Request, row: Row, bound: int, state: int) -> None:
        """Publish the state at the prompt's last hash boundary, if this step ends there (R5.4.2).

        It moves on with the next step, so its key must move before (R6.5, R6.6).
        """
        tail = row.prompt_tail
        lag = self.layout.reprefillable if self.eagle else 0
        if not laws.is_tail_state(bound, state, tail, lag, self.faults):
            return
        column = tail // self.block
        if column < len(row.blocks) and self._publish_tail(request, row.blocks[column], tail):
            row.tail = column, row.blocks[column]
            row.registered = column
            self.producers.add(request.label)


def _by_group(columns: list[list[int]], groups: int) -> list[list[int]]:
    """Blocks by group and column, from blocks by column and group."""
    return [[column[group] for column in columns] for group in range(groups)]


MANAGERS: dict[str, type[Manager]] = {
    "full": Manager,
    "mla": Manager,
    "sliding_window": WindowManager,
    "chunked_local": ChunkedManager,
    "mamba": MambaManager,
}
