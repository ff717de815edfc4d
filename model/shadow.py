"""The shadow worker: what the GPU would do, on content identities instead of tensors.

A pure function of layout, actions and step plans. It keeps its own append-only tables from the plans alone, as a
real worker does (R8.3), and executes a step when that step runs, not when it is scheduled (R8.2). Every read that
a step makes is compared with what should be there; blocks are poisoned when they are handed out.

Within a step: fresh blocks are poisoned, listed ones zeroed, copies gathered and then scattered (R6), synchronous
loads written, Mamba states moved to the column that the step writes, states read and then written, attention
written and then read (layer by layer, all writes of a step come before its reads: R5.5), drafts last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from kvcheck.model.arith import ceil_div
from kvcheck.model.content import EMPTY, GARBAGE, POISON, UNSETTLED, Ids, Prefixes
from kvcheck.model.layout import MOST_GROUPS, Layout
from kvcheck.model.observation import NULL_BLOCK, Load, Promises, Register, Scheduled, StepPlan, Store

_GROUP_MASKS = tuple((0x2545F4914F6CDD1D * (i + 1)) & ((1 << 62) - 1) for i in range(MOST_GROUPS))


class WrongRead(msgspec.Struct, frozen=True):
    """A read that did not find what it should.

    ``what``: the forward pass, a recurrent state, a draft module, a store, a published key. ``position``: the first
    wrong one; ``column`` and ``block`` where it lies. ``held``: what was there, in words; ``expected`` likewise.
    """

    label: str
    group: int
    what: Literal["forward", "state", "draft", "store", "key"]
    position: int
    column: int
    block: int
    expected: str
    held: str


class BadPlan(msgspec.Struct, frozen=True):
    """A plan that a worker cannot execute: it names a column that the worker's table does not have, or none."""

    label: str
    group: int
    text: str


class StepResult(msgspec.Struct):
    """What a step gave: sampled tokens by label (empty where it samples nothing), and what went wrong."""

    sampled: dict[str, tuple[int, ...]]
    wrong: list[WrongRead]
    bad: list[BadPlan]


class _Row:
    """The worker's state of one request. ``accepted``: tokens that the last step gave (1 without drafts)."""

    __slots__ = ("accepted", "computed", "first", "known", "prefixes", "state_column", "tables")

    def __init__(self, prefixes: Prefixes, tables: list[list[int]], computed: int, known: int) -> None:
        self.prefixes = prefixes
        self.tables = tables
        self.computed = computed
        self.first = computed
        self.known = known
        self.state_column: int | None = None
        self.accepted = 1

    def copy(self) -> _Row:
        """The same row with tables of its own."""
        row = _Row(self.prefixes, [table.copy() for table in self.tables], self.computed, self.known)
        row.first, row.state_column, row.accepted = self.first, self.state_column, self.accepted
        return row


class _Part:
    """One request's share of the step being executed: tokens ``start`` to ``end``, known ones up to ``base``."""

    __slots__ = ("accepted", "base", "column", "drafts", "end", "label", "row", "samples", "start")

    def __init__(self, row: _Row, item: Scheduled, start: int, accepted: int) -> None:
        self.row = row
        self.label = item.label
        self.start = start
        self.end = start + item.count
        self.drafts = item.drafts
        self.base = self.end - item.drafts
        self.accepted = accepted
        self.samples = self.base >= row.known
        self.column = 0


class Shadow:
    """The worker of one server with this layout.

    ``cells`` (shape ``[num_blocks, tokens a block]``) holds what the target model's layers see, ``draft_cells``
    what the drafter's layers see. A Mamba block has its one state in cell 0. ``awaited``: blocks that were given to an
    asynchronous load, and the pass that did: an earlier step that had them fresh does not poison them any more.
    """

    def __init__(self, layout: Layout, promises: Promises) -> None:
        self.layout = layout
        self.promises = promises
        self.sizes = [layout.block_tokens(i) for i in range(len(layout.groups))]
        shape = (layout.num_blocks, max(self.sizes))
        self.cells: npt.NDArray[np.int64] = np.full(shape, EMPTY, dtype=np.int64)
        self.draft_groups = [i for i in sorted(layout.eagle_groups) if layout.groups[i].is_attention]
        self.draft_cells = np.full(shape if self.draft_groups else (0, 0), EMPTY, dtype=np.int64)
        self.lookahead = layout.drafter.content_lookahead if layout.drafter else 0
        self.prefixes: dict[str, Prefixes] = {}
        self.rows: dict[str, _Row] = {}
        self.loads: dict[str, Load] = {}
        self.awaited: dict[int, int] = {}
        self.dirty: set[int] = set()
        self._identity: dict[str, tuple[str, int]] = {}
        self._wrong: list[WrongRead] = []
        self._bad: list[BadPlan] = []

    # ---- what happens outside of steps ---------------------------------------------------------------------------

    def arrive(self, label: str, prompt: Iterable[int], salt: str, adapter: int) -> None:
        """A request with these extra keys exists."""
        self._identity[label] = (salt, adapter)
        self.prefixes[label] = Prefixes(list(prompt), salt, adapter)

    def issued(self, plan: StepPlan) -> None:
        """The pass that made this plan is over: what asynchronous loads may overwrite is void from now on."""
        self._fill(plan.awaited, POISON)
        self.awaited.update(dict.fromkeys(plan.awaited, plan.seq))
        for load in plan.loads:
            if load.asynchronous:
                self.loads[load.label] = load

    def load_ends(self, label: str) -> tuple[int, ...] | None:
        """The asynchronous load of this request writes its blocks.

        Returns the blocks that it could not fill, or None if there is no such load.
        """
        load = self.loads.pop(label, None)
        return None if load is None else self._write_load(load)

    def read_store(self, store: Store) -> list[WrongRead]:
        """The connector reads a finished request's blocks."""
        self._wrong = []
        prefixes = self.prefixes[store.label]
        for gi, group in enumerate(self.layout.groups):
            if group.is_attention:
                self._compare(store.label, gi, prefixes, store.tables[gi], 0, store.length, "store", skip_null=True)
        return self._wrong

    # ---- one step ------------------------------------------------------------------------------------------------

    def execute(self, plan: StepPlan, accepted: Mapping[str, int]) -> StepResult:
        """Run a step. ``accepted``: by label, how many of the request's drafts are right."""
        self._wrong, self._bad = [], []
        for label in (*plan.finished, *plan.preempted):
            self.rows.pop(label, None)
        self._fill([b for b in plan.fresh if self.awaited.get(b, -1) < plan.seq], POISON)
        self.awaited = {block: seq for block, seq in self.awaited.items() if seq > plan.seq}
        self._fill(plan.zero, EMPTY)
        self._copy(plan.copies)
        for load in plan.loads:
            if not load.asynchronous:
                self._write_load(load)
        parts = [self._part(item, accepted) for item in plan.requests]
        for gi, group in enumerate(self.layout.groups):
            if not group.is_attention:
                self._run_mamba(gi, group.block_size, parts)
        for part in parts:
            self._write_attention(part)
        for part in parts:
            self._read_attention(part)
        if self.draft_groups:
            for part in parts:
                self._write_drafts(part)
            for part in parts:
                self._read_drafts(part)
        return StepResult({p.label: self._advance(p) for p in parts}, self._wrong, self._bad)

    # ---- published keys ------------------------------------------------------------------------------------------

    def check_key(self, key: Register, prefixes: Prefixes) -> WrongRead | None:
        """Whether a published key names what its block holds (R5.5, R6); ``prefixes`` are those of its request."""
        self._wrong = []
        size = self.sizes[key.group]
        column = (key.length - 1) // size
        if self.layout.groups[key.group].is_attention:
            table = [NULL_BLOCK] * column + [key.block]
            self._compare(key.label, key.group, prefixes, table, column * size, key.length, "key")
        elif int(self.cells[key.block, 0]) != (expected := prefixes.id_of(key.length)) ^ _GROUP_MASKS[key.group]:
            self._report(key.label, key.group, "key", key.length - 1, column, key.block, expected)
        return self._wrong[0] if self._wrong else None

    # ---- parts ---------------------------------------------------------------------------------------------------

    def _part(self, item: Scheduled, accepted: Mapping[str, int]) -> _Part:
        if item.kind != "running" or item.label not in self.rows:
            if item.kind == "running":
                self._bad.append(BadPlan(item.label, -1, "runs, but the worker was never told of it"))
            self.rows[item.label] = self._new_row(item)
        else:
            row = self.rows[item.label]
            for table, blocks in zip(row.tables, item.tables, strict=False):
                table.extend(blocks)
            row.known = min(row.known, item.known)
            row.first = min(row.first, item.start)
        row = self.rows[item.label]
        start = item.start
        if self.layout.asynchronous and self.layout.draft_tokens:
            start = min(start, row.computed)
        return _Part(row, item, start, max(0, min(accepted.get(item.label, 0), item.drafts)))

    def _new_row(self, item: Scheduled) -> _Row:
        prefixes = self.prefixes[item.label]
        tokens = item.tokens or ()
        if prefixes.token_list(len(tokens)) != list(tokens):
            prefixes = Prefixes(tokens, *self._identity[item.label])
            self.prefixes[item.label] = prefixes
        return _Row(prefixes, [list(table) for table in item.tables], item.start, item.known)

    def _advance(self, part: _Part) -> tuple[int, ...]:
        """The tokens that the step samples; the row moves on."""
        row = part.row
        if not part.samples:
            row.computed = part.end
            return ()
        given = part.accepted + 1
        row.computed = part.base + part.accepted
        row.known = row.computed + 1
        row.prefixes.id_of(row.known)
        return tuple(row.prefixes.tokens[part.base : part.base + given])

    # ---- attention -----------------------------------------------------------------------------------------------

    def _write_attention(self, part: _Part) -> None:
        right = part.base + part.accepted
        ids = part.row.prefixes.ids(max(right, part.end))
        for gi, group in enumerate(self.layout.groups):
            if not group.is_attention:
                continue
            values = ids[part.start : part.end] ^ _GROUP_MASKS[gi]
            if right < part.end:
                values = values.copy()
                values[right - part.start :] = UNSETTLED
            self._store(part.label, gi, part.row.tables[gi], part.start, values, self.cells)

    def _read_attention(self, part: _Part) -> None:
        for gi, group in enumerate(self.layout.groups):
            if group.is_attention:
                first = self._first_read(gi, part.start)
                self._compare(part.label, gi, part.row.prefixes, part.row.tables[gi], first, part.start, "forward")

    def _first_read(self, group: int, start: int) -> int:
        """The lowest position that a token at ``start`` attends to (R2)."""
        spec = self.layout.groups[group]
        if spec.kind == "sliding_window":
            return max(0, start - spec.window + 1)
        if spec.kind == "chunked_local":
            return start // spec.chunk * spec.chunk
        return 0

    # ---- drafts --------------------------------------------------------------------------------------------------

    def _write_drafts(self, part: _Part) -> None:
        """The drafter's first pass covers the step's tokens, and again those that it could not settle before."""
        row = part.row
        start = max(row.first, part.start - self.layout.reprefillable)
        end = part.base + part.accepted
        settled = end + 1 if part.samples else row.known
        ids = row.prefixes.ids(end + self.lookahead)[start + self.lookahead : end + self.lookahead]
        for gi in self.draft_groups:
            values = ids ^ _GROUP_MASKS[gi]
            if end + self.lookahead > settled:
                values[max(0, settled - self.lookahead - start) :] = UNSETTLED
            self._store(part.label, gi, row.tables[gi], start, values, self.draft_cells)

    def _read_drafts(self, part: _Part) -> None:
        if part.start == 0:
            return
        end = max(0, part.start - self.layout.reprefillable)
        for gi in self.draft_groups:
            first = self._first_read(gi, part.start)
            self._compare(part.label, gi, part.row.prefixes, part.row.tables[gi], first, end, "draft")

    # ---- Mamba align ---------------------------------------------------------------------------------------------

    def _run_mamba(self, gi: int, size: int, parts: list[_Part]) -> None:
        """All states are moved, then all read, then all written: a step cannot use what it writes (R5.5)."""
        for part in parts:
            self._move_state(gi, size, part)
        for part in parts:
            self._read_state(gi, part)
        for part in parts:
            self._write_states(gi, part)
        last = gi == max(i for i, g in enumerate(self.layout.groups) if not g.is_attention)
        for part in parts:
            self._keep_boundary_state(gi, size, part)
            if last:
                part.row.state_column = part.column
                part.row.accepted = self._accepted_after(size, part)

    def _previous(self, size: int, part: _Part) -> int:
        """Column that holds the state the step starts from; -1 without one."""
        column = part.row.state_column
        return (part.start - 1) // size if column is None else column

    def _move_state(self, gi: int, size: int, part: _Part) -> None:
        part.column = ceil_div(part.end, size) - 1
        previous = self._previous(size, part)
        if previous < 0 or previous == part.column:
            return
        source = self._state_block(gi, part, previous + part.row.accepted - 1)
        target = self._state_block(gi, part, part.column)
        if source and target:
            self.cells[target, 0] = self.cells[source, 0]
            self.dirty.add(target)

    def _read_state(self, gi: int, part: _Part) -> None:
        if part.start == 0:
            return
        moved = self._previous(self.layout.groups[gi].block_size, part) != part.column
        column = part.column if moved else part.column + part.row.accepted - 1
        block = self._state_block(gi, part, column)
        if block:
            expected = part.row.prefixes.id_of(part.start)
            if int(self.cells[block, 0]) != expected ^ _GROUP_MASKS[gi]:
                self._report(part.label, gi, "state", part.start - 1, column, block, expected)

    def _write_states(self, gi: int, part: _Part) -> None:
        for draft in range(part.drafts + 1):
            block = self._state_block(gi, part, part.column + draft)
            if block:
                right = draft <= part.accepted
                state = part.row.prefixes.id_of(part.base + draft) ^ _GROUP_MASKS[gi] if right else UNSETTLED
                self.cells[block, 0] = state
                self.dirty.add(block)
        self._write_checkpoint(gi, part)

    def _write_checkpoint(self, gi: int, part: _Part) -> None:
        """A state within the chunk, kept in the column before the one that the chunk ends in (R12.36)."""
        spec, position = self.layout.groups[gi], self._checkpoint(gi, part)
        column = ceil_div(part.end, spec.block_size) - 2
        if position and column < len(part.row.tables[gi]):
            block = part.row.tables[gi][column]
            if block != NULL_BLOCK:
                self.cells[block, 0] = part.row.prefixes.id_of(position) ^ _GROUP_MASKS[gi]
                self.dirty.add(block)

    def _checkpoint(self, gi: int, part: _Part) -> int:
        """The position of the state that a backend keeps within this chunk; 0 if it keeps none."""
        spec, unit, h = self.layout.groups[gi], self.promises.checkpoint_unit, self.layout.hash_block
        if unit is None or not spec.checkpoint_blocks or spec.checkpoint_alignment is None or part.drafts:
            return 0
        drops = bool(self.promises.drops)
        limit = part.end if drops else part.end - max(1, self.promises.hash_lookahead)
        position = limit // unit * unit - (unit if drops else 0)
        first_column, column = (part.start - 1) // spec.block_size, ceil_div(part.end, spec.block_size) - 2
        fits = part.start % h == 0 and column > first_column and part.start + h <= position < part.end
        return position if fits and (position - part.start) % spec.checkpoint_alignment == 0 else 0

    def _keep_boundary_state(self, gi: int, size: int, part: _Part) -> None:
        """Accepted drafts may have passed a block boundary: its state is copied to the column it belongs to."""
        boundary = (part.base + part.accepted) // size * size
        target = boundary // size - 1
        bias = boundary - part.base
        if not part.samples or bias < 0 or (target == part.column and bias == 0):
            return
        source_block = self._state_block(gi, part, part.column + bias)
        target_block = self._state_block(gi, part, target)
        if source_block and target_block:
            self.cells[target_block, 0] = self.cells[source_block, 0]
            self.dirty.add(target_block)

    @staticmethod
    def _accepted_after(size: int, part: _Part) -> int:
        """Where the next step finds its state: that many columns, less one, after this step's column."""
        boundary = (part.base + part.accepted) // size * size
        if not part.samples or (boundary >= part.base and boundary // size - 1 == part.column):
            return 1
        return part.accepted + 1

    def _state_block(self, gi: int, part: _Part, column: int) -> int:
        table = part.row.tables[gi]
        if 0 <= column < len(table) and table[column] != NULL_BLOCK:
            return table[column]
        where = "is the null block" if 0 <= column < len(table) else f"is outside its table of {len(table)}"
        self._bad.append(BadPlan(part.label, gi, f"state column {column} {where}"))
        return NULL_BLOCK

    # ---- memory --------------------------------------------------------------------------------------------------

    def _fill(self, blocks: Iterable[int], value: int) -> None:
        rows = list(blocks)
        if rows:
            self.cells[rows] = value
            if self.draft_groups:
                self.draft_cells[rows] = value
            self.dirty.update(rows)

    def _copy(self, copies: tuple[tuple[int, int], ...]) -> None:
        if not copies:
            return
        sources, targets = [c[0] for c in copies], [c[1] for c in copies]
        self.cells[targets] = self.cells[sources]
        if self.draft_groups:
            self.draft_cells[targets] = self.draft_cells[sources]
        self.dirty.update(targets)

    def _store(
        self, label: str, gi: int, table: list[int], start: int, values: Ids, cells: npt.NDArray[np.int64]
    ) -> None:
        """Write ``values`` at positions from ``start`` on."""
        size, end = self.sizes[gi], start + len(values)
        for column in range(start // size, ceil_div(end, size)):
            if column >= len(table) or table[column] == NULL_BLOCK:
                where = "is the null block" if column < len(table) else f"is outside its table of {len(table)}"
                self._bad.append(BadPlan(label, gi, f"writes column {column}, which {where}"))
                return
            first, last = max(start, column * size), min(end, (column + 1) * size)
            block = table[column]
            cells[block, first - column * size : last - column * size] = values[first - start : last - start]
            self.dirty.add(block)

    def _compare(
        self,
        label: str,
        gi: int,
        prefixes: Prefixes,
        table: Iterable[int],
        first: int,
        end: int,
        what: Literal["forward", "draft", "store", "key"],
        skip_null: bool = False,
    ) -> None:
        """Compare positions ``first`` to ``end`` with what this request's tokens say; report the first wrong one."""
        if first >= end:
            return
        size = self.sizes[gi]
        left, right = first // size, ceil_div(end, size)
        columns = list(table)[left:right]
        columns += [NULL_BLOCK] * (right - left - len(columns))
        shift = self.lookahead if what == "draft" else 0
        cells = self.draft_cells if what == "draft" else self.cells
        held = cells[columns, :size].reshape(-1)[first - left * size : end - left * size]
        expected = prefixes.ids(end + shift)[first + shift : end + shift] ^ _GROUP_MASKS[gi]
        wrong = held != expected
        if NULL_BLOCK in columns:
            null = np.repeat(np.array(columns) == NULL_BLOCK, size)[first - left * size : end - left * size]
            wrong = wrong & ~null if skip_null else wrong | null
        if wrong.any():
            position = first + int(wrong.argmax())
            column = position // size
            self._report(
                label, gi, what, position, column, columns[column - left], prefixes.id_of(position + shift + 1)
            )

    def _write_load(self, load: Load) -> tuple[int, ...]:
        """External tokens arrive: attention cells of every block they belong to, and the state at their end (R7)."""
        prefixes, end = self.prefixes[load.label], load.local + load.external
        arrived = end if load.arrives is None else load.local + load.arrives
        fresh = set(load.fresh)
        connector = self.layout.connector
        divergent = load.asynchronous and connector is not None and connector.divergent
        for gi, group in enumerate(self.layout.groups):
            table, size, mask = load.tables[gi], self.sizes[gi], _GROUP_MASKS[gi]
            if not group.is_attention:
                column = (end - 1) // size
                if column < len(table) and table[column] != NULL_BLOCK:
                    self.cells[table[column], 0] = prefixes.id_of(end) ^ mask if arrived == end else GARBAGE
                    self.dirty.add(table[column])
                continue
            for column in range(min(len(table), ceil_div(end, size))):
                block = table[column]
                if block == NULL_BLOCK or (divergent and block not in fresh):
                    continue
                first = max(column * size, 0 if divergent else load.local)
                last = min((column + 1) * size, end)
                if first < last:
                    self._write_span(gi, block, column, prefixes, first, last, arrived)
        return self.unfilled_blocks(load)

    def _write_span(
        self, gi: int, block: int, column: int, prefixes: Prefixes, first: int, last: int, arrived: int
    ) -> None:
        offset, mask, ahead = column * self.sizes[gi], _GROUP_MASKS[gi], self.lookahead
        values = prefixes.ids(last + ahead)
        self.cells[block, first - offset : last - offset] = values[first:last] ^ mask
        if gi in self.draft_groups:
            self.draft_cells[block, first - offset : last - offset] = values[first + ahead : last + ahead] ^ mask
        if arrived < last:
            start = max(first, arrived)
            self.cells[block, start - offset : last - offset] = GARBAGE
            if gi in self.draft_groups:
                self.draft_cells[block, start - offset : last - offset] = GARBAGE
        self.dirty.add(block)

    def unfilled_blocks(self, load: Load) -> tuple[int, ...]:
        """Blocks that a load which does not arrive whole leaves without their content."""
        if load.arrives is None or load.arrives >= load.external:
            return ()
        end, arrived = load.local + load.external, load.local + load.arrives
        blocks: list[int] = []
        for gi, group in enumerate(self.layout.groups):
            size = self.sizes[gi]
            first = arrived // size if group.is_attention else (end - 1) // size
            blocks += [b for b in load.tables[gi][first : ceil_div(end, size)] if b != NULL_BLOCK]
        return tuple(dict.fromkeys(blocks))

    # ---- words ---------------------------------------------------------------------------------------------------

    @staticmethod
    def identity(cell: int, group: int) -> int:
        """The identity of the prefix that a cell of this group was computed from, if it was computed at all."""
        return cell ^ _GROUP_MASKS[group]

    def _report(
        self,
        label: str,
        gi: int,
        what: Literal["forward", "state", "draft", "store", "key"],
        position: int,
        column: int,
        block: int,
        expected: int,
    ) -> None:
        mask = _GROUP_MASKS[gi]
        if what == "draft":
            held = int(self.draft_cells[block, position % self.sizes[gi]])
        else:
            held = int(self.cells[block, position % self.sizes[gi] if self.layout.groups[gi].is_attention else 0])
        text = "nothing: the null block" if block == NULL_BLOCK else self._describe(held, gi)
        wanted = self._describe(expected ^ mask, gi)
        self._wrong.append(WrongRead(label, gi, what, position, column, block, wanted, text))

    def _describe(self, value: int, group: int) -> str:
        words = {
            EMPTY: "nothing: it was never written",
            POISON: "nothing: it was handed out and not written since",
            UNSETTLED: "content of a rejected draft",
            GARBAGE: "what a failed load left",
        }
        if value in words:
            return words[value]
        for gi in (group, *(i for i in range(len(self.layout.groups)) if i != group)):
            for label, prefixes in self.prefixes.items():
                found = np.flatnonzero(prefixes.ids(len(prefixes.tokens)) == value ^ _GROUP_MASKS[gi])
                if len(found):
                    of = "" if gi == group else f" in group {gi}"
                    return f"the content of {label}'s first {int(found[0]) + 1} tokens{of}"
        return "content of a request that is gone"
