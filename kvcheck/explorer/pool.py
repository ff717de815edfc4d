"""The block pool alone as something to explore: requests that take blocks, publish, copy, hit and give them back."""

from __future__ import annotations

import marshal
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from kvcheck.explorer.saving import NO_SHARING
from kvcheck.invariants.registry import REGISTRY, Violation, all_invariants
from kvcheck.model.faults import Faults
from kvcheck.model.pool import Key, Pool

RESET = "reset"
NUMBERS = range(255)
MARK = 255
"""Told in a key where something new begins; no block has this number."""


class PoolLayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pool of so many ``blocks``, the null block among them, and ``requests`` that hold up to ``columns`` each.

    All requests have the same tokens: a column has the same key whoever holds it.
    """

    blocks: int
    requests: int
    columns: int


class PoolMove(NamedTuple):
    """What a request does; a reset is of no request."""

    kind: str
    request: int = -1

    def __str__(self) -> str:
        """In words."""
        return self.kind if self.request < 0 else f"request {self.request}: {self.kind}"


class PoolState(NamedTuple):
    """All that pool and requests hold. ``holders``: by name, the blocks with that key, the oldest first."""

    refs: tuple[int, ...]
    free: tuple[int, ...]
    keys: tuple[tuple[int, tuple[Key, ...]], ...]
    holders: tuple[tuple[int, tuple[int, ...]], ...]
    tables: tuple[tuple[int, ...], ...]
    published: tuple[int, ...]


class PoolWorld:
    """One pool. ``symmetric``: states that differ in the names of blocks and requests only are one.

    ``tables``: blocks by request. ``published``: by request, how many of its columns have their key, or never get it
    again.
    """

    def __init__(self, layout: PoolLayout, faults: Faults, symmetric: bool = True) -> None:
        self.layout = layout
        self.pool = Pool(layout.blocks, 1, True, faults)
        self.tables: list[list[int]] = [[] for _ in range(layout.requests)]
        self.published = [0] * layout.requests
        self._symmetric = symmetric
        self._do: dict[str, Callable[[int], str]] = {
            "take": self._take,
            "publish": self._publish,
            "copy": self._copy,
            "hit": self._hit,
            "give back": self._give_back,
            RESET: self._reset,
        }
        self._clear = PoolMove(RESET)
        self._moves = [
            [PoolMove(kind, request) for kind in self._do if kind != RESET] for request in range(layout.requests)
        ]

    # ---- states --------------------------------------------------------------------------------------------------

    def save(self) -> PoolState:
        """All of it."""
        pool = self.pool
        return PoolState(
            tuple(pool.refs),
            tuple(pool.free),
            tuple([(block, tuple(keys)) for block, keys in pool.keys.items()]),
            tuple([(name, tuple(blocks)) for name, blocks in pool.holders[0].items()]),
            tuple([tuple(table) for table in self.tables]),
            tuple(self.published),
        )

    def load(self, state: PoolState) -> None:
        """Be there again."""
        refs, free, keys, holders, tables, published = state
        pool = self.pool
        pool.refs = list(refs)
        pool.free = OrderedDict.fromkeys(free)
        pool.free_count = len(free)
        pool.keys = {block: list(held) for block, held in keys}
        pool.holders = [{name: list(blocks) for name, blocks in holders}]
        self.tables = [list(table) for table in tables]
        self.published = list(published)

    def canonical(self) -> bytes:
        """The same for two states that differ in names only, or if names matter the state as it is."""
        return self._renamed() if self._symmetric else self._plain()

    def _renamed(self) -> bytes:
        """Blocks are numbered in the order of the free queue, then by key and age; then requests are put in the order
        of what is known of their tables, and the blocks that only they know are numbered."""
        pool, published = self.pool, self.published
        number = dict(zip(pool.free, NUMBERS, strict=False))
        told = [len(number)]
        for name, blocks in sorted(pool.holders[0].items()):
            told += MARK, name
            for block in blocks:
                told.append(number.setdefault(block, len(number)))
        known = [
            [n, *[number.get(block, MARK) for block in table]] for n, table in zip(published, self.tables, strict=True)
        ]
        for request in sorted(range(len(known)), key=known.__getitem__):
            told += MARK, published[request]
            for block in self.tables[request]:
                told.append(number.setdefault(block, len(number)))
        return bytes(told)

    def _plain(self) -> bytes:
        pool = self.pool
        return marshal.dumps(
            (tuple(pool.free), sorted(pool.holders[0].items()), self.tables, self.published), NO_SHARING
        )

    # ---- moves ---------------------------------------------------------------------------------------------------

    def moves(self) -> Iterator[PoolMove]:
        """All that can happen now."""
        pool, columns = self.pool, self.layout.columns
        for request, table in enumerate(self.tables):
            take, publish, copy, hit, give_back = self._moves[request]
            if pool.free_count and len(table) < columns:
                yield take
            if self.published[request] < len(table):
                yield publish
            elif table and pool.free_count and table[-1] in pool.keys and pool.refs[table[-1]] == 1:
                yield copy
            if table:
                yield give_back
            elif pool.holders[0].get(1):
                yield hit
        if pool.keys and not any(self.tables):
            yield self._clear

    def kind_of(self, move: PoolMove) -> str:
        """The kind of move."""
        return move.kind

    def own_move(self) -> PoolMove | None:
        """Nothing happens by itself."""
        return None

    def apply(self, move: PoolMove) -> list[Violation]:
        """Let it happen; what it breaks."""
        broken = self._do[move.kind](move.request)
        announced = self._announced_wrongly() if self.pool.events else ""
        self.pool.new_pass()
        return [_violation(text) for text in (broken, announced) if text] if broken or announced else []

    def check(self) -> list[Violation]:
        """What is wrong with the state itself."""
        broken = self._miscounted() or self._unmapped()
        return [_violation(broken)] if broken else []

    def _take(self, request: int) -> str:
        """The next free block, which loses its keys."""
        pool = self.pool
        first = next(iter(pool.free))
        (block,) = pool.take(1)
        self.tables[request].append(block)
        return "ownership.reuse-order" if block != first or block in pool.keys else ""

    def _publish(self, request: int) -> str:
        """The next column gets its key."""
        column = self.published[request]
        self.published[request] += 1
        self.pool.register(self.tables[request][column], (0, column + 1, column + 1))
        return ""

    def _copy(self, request: int) -> str:
        """The last column is written on: a copy takes its keys, and is free again when it is made (R6.5)."""
        source = self.tables[request][-1]
        (target,) = self.pool.take(1)
        self.pool.move_keys(source, target)
        self.pool.release((target,))
        return "registration.map" if source in self.pool.keys or target not in self.pool.keys else ""

    def _hit(self, request: int) -> str:
        """The request's longest cached prefix."""
        pool, table = self.pool, self.tables[request]
        for name in range(1, self.layout.columns + 1):
            found = pool.find((0,), name)
            if found is None:
                break
            table += found
        pool.touch(table)
        self.published[request] = len(table)
        return ""

    def _give_back(self, request: int) -> str:
        """All blocks of a request, tails first; those without a key are reused first, the others last (R1.14)."""
        pool, table = self.pool, self.tables[request]
        others = list(pool.free)
        table.reverse()
        pool.release(table)
        free = [block for block in table if not pool.refs[block]]
        first = [block for block in free if block not in pool.keys]
        last = [block for block in free if block in pool.keys]
        self.tables[request], self.published[request] = [], 0
        return "" if [*first, *others, *last] == list(pool.free) else "ownership.reuse-order"

    def _reset(self, _request: int) -> str:
        """All keys go, as nobody holds a block."""
        return "" if self.pool.reset() and not self.pool.keys else "system.reset"

    # ---- what must hold ------------------------------------------------------------------------------------------

    def _announced_wrongly(self) -> str:
        """A key is announced as removed only when no block has it any more."""
        events = self.pool.events or []
        gone = [name for event in events if event.what == "removed" for _, name in event.keys]
        events.clear()
        return "registration.events" if any(name in self.pool.holders[0] for name in gone) else ""

    def _miscounted(self) -> str:
        """References are counted, and what has none is in the queue."""
        pool = self.pool
        held = [0] * self.layout.blocks
        for table in self.tables:
            for block in table:
                held[block] += 1
        if held != pool.refs:
            return "ownership.references"
        idle = {block for block, count in enumerate(held) if block and not count}
        return "" if idle == set(pool.free) and len(idle) == pool.free_count else "ownership.free-queue"

    def _unmapped(self) -> str:
        """Blocks know their keys, and keys their blocks."""
        pool = self.pool
        there = {(block, name) for name, blocks in pool.holders[0].items() for block in blocks}
        back = {(block, key[1]) for block, keys in pool.keys.items() for key in keys}
        return "" if there == back else "registration.map"


def _violation(invariant: str) -> Violation:
    """A violation of an invariant of the registry, found without a moment."""
    all_invariants()
    known = REGISTRY[invariant]
    return Violation(invariant, str(known.severity), known.claim, f"{invariant} pool", 0)
