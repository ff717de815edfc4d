"""One server of the reference model, driven and observed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from kvcheck.model.actions import Arrive, Extend
from kvcheck.model.content import Prefixes
from kvcheck.model.faults import Faults
from kvcheck.model.layout import Layout
from kvcheck.model.observation import (
    Announce,
    Asked,
    CacheView,
    Event,
    Load,
    Processed,
    Promises,
    RequestView,
    Retold,
    StepPlan,
    Store,
    Tables,
)
from kvcheck.model.pool import NULL
from kvcheck.model.request import Request
from kvcheck.model.scheduler import Scheduler
from kvcheck.model.script import Script, ScriptState
from kvcheck.model.state import State, restore, snapshot
from kvcheck.targets.base import StepOutput
from kvcheck.targets.places import PlacedLog
from kvcheck.targets.reference.recorder import Recorder

Keys = tuple[tuple[int, int, int, int], ...]
"""Group, block, prefix length and name of each key."""


class SessionState(NamedTuple):
    """A server, its connector's script, what was noticed of its requests (names of prefixes, and the tokens that
    sampling gives), and what it will announce with the next output."""

    server: State
    script: ScriptState
    names: dict[str, tuple[int, ...]]
    expected: dict[str, Prefixes]
    announced: tuple[Announce, ...]


class ReferenceSession:
    """Drives one ``scheduler`` of the model. ``promises``: what the intended behaviour promises."""

    def __init__(self, layout: Layout, faults: Faults) -> None:
        self._layout = layout
        self._script = Script(layout, by_request=False)
        self.scheduler = Scheduler(layout, faults, self)
        self._cache = self.scheduler.cache
        self._recorder = Recorder(self._cache, self._notice)
        self._expected: dict[str, Prefixes] = {}
        self._names: dict[str, list[int]] = {}
        self._books: tuple[Keys, Keys] = ((), ())
        self.promises = Promises(
            drops=tuple(sorted(layout.eagle_groups)),
            retention=self._cache.coordinator.retention,
            partial_hits=layout.partial_hits,
            drafts_of_duplicates=False,
        )

    # ---- actions -------------------------------------------------------------------------------------------------

    def arrive(self, request: Arrive) -> None:
        """Add a request."""
        self._script.arrive(request)
        self._expected[request.label] = Prefixes(request.sequence, request.salt, request.adapter)
        self._notice(self.scheduler.arrive(request))

    def extend(self, update: Extend) -> None:
        """Give a session its next input, or end it."""
        self.scheduler.extend(update)

    def schedule(self) -> StepPlan:
        """One scheduling pass."""
        return self.scheduler.schedule()

    def process(self, output: StepOutput) -> Processed:
        """Process the output of the oldest step in flight."""
        self._script.over((*output.received, *output.failed))
        plan = self.scheduler.in_flight[0]
        processed = self.scheduler.process(output.sampled, sorted(output.received), sorted(output.sent), output.invalid)
        if self._layout.draft_tokens and not self._layout.asynchronous:
            self.scheduler.propose({item.label: output.proposed.get(item.label, 0) for item in plan.requests})
        events = self._cache.pool.events
        if events:
            self._recorder.log += events
            events.clear()
        return processed

    def abort(self, label: str) -> None:
        """End a request from outside."""
        self.scheduler.abort(label)

    def evict(self, group: int, label: str, prefix: int) -> bool:
        """Evict the cached blocks with this key; False if there are none."""
        names, index = self._names[label], prefix // self._layout.hash_block - 1
        if prefix % self._layout.hash_block or not 0 <= index < len(names):
            return False
        blocks = list(self._cache.pool.holders[group].get(names[index], ()))
        for block in blocks:
            self._cache.pool.withdraw(block)
        return bool(blocks)

    def owners(self) -> dict[int, tuple[str, int]]:
        """A request that each known prefix is one of, and its length in tokens, by name."""
        size = self._layout.hash_block
        return {n: (label, (i + 1) * size) for label, names in self._names.items() for i, n in enumerate(names)}

    def reset(self, running: bool) -> bool:
        """Reset the prefix cache; False if the server declines."""
        return self.scheduler.reset(running)

    def pause(self, what: str) -> bool:
        """Pause scheduling or go on."""
        self.scheduler.paused = what
        return True

    def settle(self) -> None:
        """From now on the connector answers at once and loads arrive whole."""
        self._script.settle()

    # ---- the scheduler asks these of its connector ---------------------------------------------------------------

    def ask(self, request: Request, local: int) -> tuple[int | None, bool]:
        """What the script answers."""
        external, asynchronous = self._script.ask(request.label, request.known, local)
        self._recorder.log.append(Asked(request.label, local, external, asynchronous))
        return external, asynchronous

    def allocated(self, request: Request, tables: Tables, fresh: Sequence[int], external: int) -> None:
        """The request has its blocks."""
        self._script.allocated(request.label, tables, fresh, external)

    def finished(self, request: Request, tables: Tables) -> bool:
        """The request is over; whether its blocks are kept for a store."""
        written = max(0, min(request.computed - request.in_flight, request.known - 1))
        return self._script.finished(request.label, request.ended_well and request.computed > 0, written, tables)

    def take_loads(self) -> tuple[Load, ...]:
        """Loads that began in this pass."""
        return self._script.take_loads()

    # ---- state ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> SessionState:
        """The state between two actions."""
        names = {label: tuple(names) for label, names in self._names.items()}
        announced = tuple(self._cache.pool.events or ())
        return SessionState(snapshot(self.scheduler), self._script.snapshot(), names, dict(self._expected), announced)

    def restore(self, state: SessionState, now: SessionState) -> None:
        """Put a state back. ``now``: the one that the session is in. What happened between them has not happened."""
        restore(self.scheduler, state.server, now.server)
        self._script.restore(state.script)
        self._names = {label: list(names) for label, names in state.names.items()}
        self._expected = dict(state.expected)
        self.take_log()
        if self._cache.pool.events is not None:
            self._cache.pool.events = list(state.announced)
        self._recorder.keys_changed = True

    # ---- observation ---------------------------------------------------------------------------------------------

    def place_events(self) -> PlacedLog:
        """From now on, note of each event where in the server it comes from."""
        self._recorder.log = log = PlacedLog(self._recorder.log)
        return log

    def take_log(self) -> tuple[Event, ...]:
        """Events since the last call."""
        return self._recorder.take()

    def take_stores(self) -> tuple[Store, ...]:
        """Stores that began since the last call."""
        return self._script.take_stores()

    def view(self) -> CacheView:
        """The bookkeeping as it is."""
        scheduler, pool = self.scheduler, self._cache.pool
        for request in scheduler.requests.values():
            self._notice(request)
        if self._recorder.keys_changed:  # most actions change none
            self._recorder.keys_changed = False
            self._books = self._map(), self._block_keys()
        return CacheView(
            refs=tuple(pool.refs),
            free=tuple(pool.free),
            free_count=pool.free_count,
            keys=self._books[0],
            block_keys=self._books[1],
            tables=self._tables(),
            holders=self._holders(),
            requests={label: _request_view(request) for label, request in scheduler.requests.items()},
            running=tuple([request.label for request in scheduler.running]),
            waiting=tuple([r.label for queue in (scheduler.waiting, scheduler.passed_over) for r in queue]),
            deferred=sum(len(blocks) for _, blocks in scheduler.fenced),
        )

    def _block_keys(self) -> Keys:
        held = self._cache.pool.keys.items()
        return tuple([(group, block, length, name) for block, keys in held for group, name, length in keys])

    def _map(self) -> Keys:
        length_of = {(group, name): length for held in self._cache.pool.keys.values() for group, name, length in held}
        return tuple(
            [
                (group, block, length_of.get((group, name), 0), name)
                for group, holders in enumerate(self._cache.pool.holders)
                for name, blocks in holders.items()
                for block in blocks
            ]
        )

    def _tables(self) -> dict[str, Tables]:
        labels = dict.fromkeys(label for manager in self._cache.managers for label in manager.rows)
        return {label: self._cache.coordinator.tables(label) for label in labels}

    def _holders(self) -> tuple[tuple[int, int], ...]:
        held: Counter[int] = Counter()
        for _, blocks in self.scheduler.fenced:
            held.update(blocks)
        for blocks in self._cache.pins.values():
            held.update(blocks)
        del held[NULL]
        return tuple(sorted(held.items()))

    def _notice(self, request: Request) -> None:
        """Remember a request's names for when it is gone; tell the log if its tokens are others than sampling gives."""
        self._names[request.label] = request.names
        expected = self._expected[request.label]
        if expected.token_list(request.known) != request.tokens:
            self._expected[request.label] = Prefixes(request.tokens, *expected.extra_keys)
            self._recorder.log.append(Retold(request.label, tuple(request.tokens)))


def _request_view(request: Request) -> RequestView:
    return RequestView(
        request.status.value, request.prompt, request.known, request.computed, request.in_flight, request.placeholders
    )
