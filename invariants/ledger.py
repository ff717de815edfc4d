"""What the checks need to remember of the moments before: keys, allocations under way, steps, progress.

The key map here is fed by the event log alone, so at every event it says what was registered at that instant; a
view at the end of a pass could not, because one pass looks up, evicts and registers for several requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from kvcheck.invariants.moment import Moment
from kvcheck.invariants.promised import book_promises
from kvcheck.invariants.reach import with_unit_behind
from kvcheck.model.actions import Arrive
from kvcheck.model.content import Prefixes
from kvcheck.model.layout import Layout
from kvcheck.model.observation import (
    NOBODY,
    Asked,
    Begin,
    CacheView,
    Clear,
    Commit,
    Drop,
    End,
    Estimate,
    Event,
    Lookup,
    Promises,
    Register,
    Retold,
    StepPlan,
    Take,
    Touch,
)
from kvcheck.model.shadow import Shadow

Key = tuple[int, int, int]
"""Group, prefix length in tokens, name."""


class Allocation:
    """One allocation under way: what was estimated for the step and what was taken, by group, in blocks."""

    def __init__(self, begin: Begin, groups: int) -> None:
        self.begin = begin
        self.estimates: list[int | None] = [None] * groups
        self.taken = [0] * groups
        self.revived = [0] * groups


class Ledger:
    """Facts of one run so far.

    ``keys``: block -> its registration, by key. ``ever``: keys registered since the last reset. ``promised``: keys
    that R5 promises for what was computed, less those evicted since. ``due``: registrations whose step has not run
    yet, with the number of the pass that they wait for. ``steps``: those that are in flight. ``resumed_at``: tokens
    of the last local hit, by label; ``peeked``: EAGLE groups that had the unit behind it. ``lives``: the pass in
    which a request began, was resumed or began to load last.
    """

    def __init__(self, layout: Layout, promises: Promises, shadow: Shadow) -> None:
        self.layout = layout
        self.promises = promises
        self.shadow = shadow
        self.keys: dict[Key, dict[int, Register]] = {}
        self.by_block: dict[tuple[int, int], set[Key]] = {}
        self.ever: set[Key] = set()
        self.allocation: Allocation | None = None
        self.lookups: dict[str, Lookup] = {}
        self.due: deque[tuple[int, Register]] = deque()
        self.scheduled = 0
        self.executed = 0
        self.steps: deque[StepPlan] = deque()
        self.prefixes: dict[str, Prefixes] = {}
        self.retold: set[str] = set()
        self.failed_loads: set[str] = set()
        self.loaded: set[str] = set()
        self.resumed_at: dict[str, int] = {}
        self.peeked: dict[str, set[int]] = {}
        self.lives: dict[str, int] = {}
        self.promised: set[Key] = set()
        self.promised_up_to: dict[tuple[str, int], int] = {}
        self.arrivals: dict[str, Arrive] = {}
        self.high_water: dict[str, int] = {}
        self.passes_without_progress = 0
        self.load_came = False
        self.frozen_passes = 0
        self.paused = False
        self.announced: set[tuple[int, int, int]] = set()
        self.moment: Moment | None = None

    # ---- names ---------------------------------------------------------------------------------------------------

    def key(self, group: int, label: str, length: int) -> Key:
        """The key under which a prefix of this request's tokens is registered."""
        return group, length, self.prefixes[label].id_of(length + self.promises.hash_lookahead)

    def registration(self, group: int, block: int) -> Register | None:
        """The longest prefix that a block is registered for; None: it has no key."""
        keys = self.by_block.get((group, block))
        return self.keys[max(keys)][block] if keys else None

    # ---- feeding -------------------------------------------------------------------------------------------------

    def begin(self, moment: Moment) -> None:
        """An action has happened; its events follow."""
        self.moment = moment
        if isinstance(moment.action, Arrive) and not moment.observation.skipped:
            self._arrive(moment.action, moment.action.sequence)
        plan = moment.observation.plan
        if plan is not None:
            self.scheduled = plan.seq
            self.steps.append(plan)
            self.lives.update((item.label, plan.seq) for item in plan.requests if item.kind != "running")
            self.lives.update((load.label, plan.seq) for load in plan.loads)
            self.failed_loads.update(load.label for load in plan.loads if load.arrives is not None)

    def apply(self, event: Event) -> None:
        """Book one event."""
        book = self._BOOKS.get(type(event))
        if book is not None:
            book(self, event)

    def end(self, moment: Moment) -> None:
        """All events of the action are booked."""
        if moment.executed is not None:
            self.executed = moment.executed.seq
            while self.steps and self.steps[0].seq <= self.executed:
                self.steps.popleft()

    def note_progress(self, view: CacheView) -> bool:
        """Book how far requests are; whether one has got further than it ever was, or has ended."""
        further = {
            label: r.computed for label, r in view.requests.items() if r.computed > self.high_water.get(label, -1)
        }
        gone = self.high_water.keys() - view.requests.keys()
        self.high_water.update(further)
        for label in gone:
            del self.high_water[label]
        return bool(further or gone)

    def _name_lookup(self, label: str) -> None:
        """A lookup that the scheduler made without saying for whom was for the request that it goes on with."""
        if NOBODY in self.lookups:
            self.lookups[label] = self.lookups.pop(NOBODY)

    def _take(self, event: Take) -> None:
        if self.allocation is not None and event.group >= 0:
            self.allocation.taken[event.group] += len(event.blocks)

    def _touch(self, event: Touch) -> None:
        if self.allocation is not None and event.group >= 0:
            self.allocation.revived[event.group] += event.revived

    def _estimate(self, event: Estimate) -> None:
        if self.allocation is not None and not event.admission:
            self.allocation.estimates[event.group] = event.blocks

    def _end_allocation(self, _event: End) -> None:
        self.allocation = None

    def _commit(self, event: Commit) -> None:
        book_promises(event, self)

    def _lookup(self, event: Lookup) -> None:
        self.lookups[event.label] = event
        if event.label != NOBODY:
            self.peeked[event.label] = with_unit_behind(self, event)

    def _asked(self, event: Asked) -> None:
        self._name_lookup(event.label)

    def _retold(self, event: Retold) -> None:
        self._arrive(self.arrivals[event.label], event.tokens)
        self.retold.add(event.label)

    def _dropped(self, event: Drop) -> None:
        self._drop((event.group, event.length, event.key), event.block)

    def _clear(self, _event: Clear) -> None:
        for book in (self.keys, self.by_block, self.ever, self.promised, self.promised_up_to, self.due):
            book.clear()

    def _begin_allocation(self, begin: Begin) -> None:
        self._name_lookup(begin.label)
        self.allocation = Allocation(begin, len(self.layout.groups))
        if begin.external:
            self.loaded.add(begin.label)
        if not begin.computed:
            self.resumed_at[begin.label] = begin.local

    def _arrive(self, arrival: Arrive, tokens: tuple[int, ...]) -> None:
        self.arrivals[arrival.label] = arrival
        self.prefixes[arrival.label] = Prefixes(tokens, arrival.salt, arrival.adapter)

    def _register(self, event: Register) -> None:
        key = event.group, event.length, event.key
        self.keys.setdefault(key, {})[event.block] = event
        self.by_block.setdefault((event.group, event.block), set()).add(key)
        self.ever.add(key)
        if event.label:
            self.due.append((self.scheduled, event))

    def _drop(self, key: Key, block: int) -> None:
        blocks = self.keys.get(key)
        if blocks is None:
            return
        blocks.pop(block, None)
        if not blocks:
            del self.keys[key]
            self.promised.discard(key)
        group = key[0]
        held = self.by_block.get((group, block))
        if held is not None:
            held.discard(key)
            if not held:
                del self.by_block[group, block]

    _BOOKS: ClassVar[dict[type, Callable[[Ledger, Any], None]]] = {
        Register: _register,
        Drop: _dropped,
        Take: _take,
        Touch: _touch,
        Estimate: _estimate,
        Begin: _begin_allocation,
        End: _end_allocation,
        Commit: _commit,
        Lookup: _lookup,
        Asked: _asked,
        Retold: _retold,
        Clear: _clear,
    }
