"""A whole server of the model as something to explore, with its worker and its judge."""

from __future__ import annotations

import marshal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import NamedTuple

import msgspec

from kvcheck.engines.execution import Execution
from kvcheck.explorer.saving import NO_SHARING, Fields, Values, copied_whole
from kvcheck.explorer.scope import ServerScope
from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.registry import Judge, Violation
from kvcheck.invariants.witnesses import happening, possible_witnesses
from kvcheck.model.actions import Abort, Action, Arrive, Complete, Evict, Reset, Schedule, Transfer, kind_of
from kvcheck.model.faults import Faults
from kvcheck.model.observation import Load
from kvcheck.model.request import Status
from kvcheck.model.state import Canonical, Numbering, canonical, numbering
from kvcheck.targets.reference.session import ReferenceSession, SessionState


class Saved(NamedTuple):
    """The server, and what its driver, its worker and its judge remember."""

    session: SessionState
    execution: Values
    shadow: Values
    ledger: Values


class Server:
    """One server of the model, judged at every move."""

    def __init__(self, scope: ServerScope, faults: Faults) -> None:
        self.scope = scope
        self.session = ReferenceSession(scope.layout, faults)
        self.execution = Execution(self.session, scope.layout)
        self.shadow = self.execution.shadow
        self.ledger = Ledger(scope.layout, self.session.promises, self.shadow)
        self.judge = Judge(self.ledger)
        self.situations = possible_witnesses(scope.layout)
        self.witnesses: Counter[str] = Counter()
        self._execution = Fields(self.execution, ("layout", "level", "session", "shadow"), {})
        self._shadow = Fields(
            self.shadow, ("layout", "promises", "sizes", "draft_groups", "lookahead"), {"rows": copied_whole}
        )
        self._ledger = Fields(
            self.ledger, ("layout", "promises", "shadow"), {"keys": copied_whole, "by_block": copied_whole}
        )
        self._others: dict[str, Callable[[], Iterable[Action]]] = {
            "accept": tuple,  # told by the completions
            "evict": self._evict,
            "abort": self._abort,
            "transfer": self._transfer,
            "reset": self._reset,
        }
        alike: dict[Arrive, int] = {}
        self._alike = {
            request.label: alike.setdefault(msgspec.structs.replace(request, label=""), len(alike))
            for request in scope.requests
        }
        self._state: SessionState = self.session.snapshot()

    # ---- states --------------------------------------------------------------------------------------------------

    def save(self) -> Saved:
        """All of it."""
        return Saved(self._state, self._execution.take(), self._shadow.take(), self._ledger.take())

    def load(self, saved: Saved) -> None:
        """Be there again."""
        self.session.restore(saved.session, self._state)
        self._state = saved.session
        self._execution.put(saved.execution)
        self._shadow.put(saved.shadow)
        self._ledger.put(saved.ledger)

    def canonical(self) -> bytes:
        """The same for two states that differ in names only."""
        numbers = numbering(self._state.server)
        order = list(numbers.blocks)
        cells = self.shadow.cells.take(order, 0).tobytes()
        drafts = self.shadow.draft_cells.take(order, 0).tobytes() if self.shadow.draft_groups else b""
        told = canonical(self._state.server, numbers), self._outside(numbers)
        return marshal.dumps(told, NO_SHARING) + cells + drafts

    def _outside(self, numbers: Numbering) -> Canonical:
        """What the driver, the worker and the connector remember of requests that live, which ones these are of those
        that are alike, and which have come."""
        labels, execution, shadow = numbers.labels, self.execution, self.shadow
        received, sent, invalid, failed = execution.unreported
        passes = self._state.server.counters[0]
        rows = [
            (
                labels[label],
                (row.state_column, row.accepted, row.computed, row.first, row.known),
                [[numbers.blocks[block] for block in table] for table in row.tables],
            )
            for label, row in shadow.rows.items()
            if label in labels
        ]
        return (
            tuple(sorted(rows, key=lambda row: row[0])),
            tuple(
                sorted(
                    [(labels[label], self._next(label, n)) for label, n in self._state.script.asked if label in labels]
                )
            ),
            tuple([numbers.of(some) for some in (execution.stores, received, sent, failed)]),
            tuple(sorted([(labels.get(load.label, -1), self._content_of(load)) for load in shadow.loads.values()])),
            tuple(sorted([numbers.blocks[block] for block in invalid])),
            tuple(sorted([(numbers.blocks[block], passes - seq) for block, seq in shadow.awaited.items()])),
            tuple([self._alike[label] for label in labels]),
            tuple(sorted([self._alike[label] for label in execution.arrivals])),
        )

    @staticmethod
    def _content_of(load: Load) -> tuple[int, int, int]:
        """What a load will write."""
        return load.local, load.external, load.external if load.arrives is None else load.arrives

    def _next(self, label: str, asked: int) -> int:
        """Which of its answers a request gets next; the last one repeats."""
        return min(asked, max(0, len(self.execution.arrivals[label].answers) - 1))

    def _says_later(self, label: str, asked: int) -> bool:
        """Whether the connector says "ask later" when it is asked for this request next. What it said last is no part
        of a state."""
        answers = self.execution.arrivals[label].answers
        return bool(answers) and answers[self._next(label, asked)].holds is None

    # ---- moves ---------------------------------------------------------------------------------------------------

    def moves(self) -> Iterator[Action]:
        """All that can happen now."""
        scope, execution = self.scope, self.execution
        yield from self._arrivals()
        if len(execution.in_flight) < scope.layout.steps_in_flight:
            yield Schedule()
        if execution.in_flight:
            yield from self._completions()
        for kind in scope.also:
            yield from self._others[kind]()

    def _arrivals(self) -> Iterator[Action]:
        coming: dict[int, Arrive] = {}
        for request in self.scope.requests:
            if request.label not in self.execution.arrivals:
                coming.setdefault(self._alike[request.label], request)
                if self.scope.in_order:
                    break
        yield from coming.values()

    def _completions(self) -> Iterator[Action]:
        items = [item for item in self.execution.in_flight[0].requests if item.drafts]
        if "accept" not in self.scope.also or not items:
            yield Complete()
            return
        for numbers in product(*[range(item.drafts + 1) for item in items]):
            yield Complete(accepted={item.label: n for item, n in zip(items, numbers, strict=True) if n})

    def _evict(self) -> Iterator[Action]:
        owners = self.session.owners()
        for group, holders in enumerate(self.session.scheduler.cache.pool.holders):
            for name in holders:
                label, length = owners[name]
                yield Evict(group=group, label=label, prefix=length)

    def _abort(self) -> Iterator[Action]:
        for label, request in self.session.scheduler.requests.items():
            if request.status is not Status.HELD:
                yield Abort(label=label)

    def _transfer(self) -> Iterator[Action]:
        for label in self.shadow.loads:
            yield Transfer(label=label)
        for label in self.execution.stores:
            yield Transfer(label=label, what="store")

    def _reset(self) -> Iterator[Action]:
        if not self.execution.in_flight or self.scope.layout.asynchronous:
            yield Reset(running=True)

    def own_move(self) -> Action | None:
        """The completion of the oldest step; with none in flight the end of a load, if loads may end; else a pass.

        A load that fails again and again is not the server's fault.
        """
        execution, server = self.execution, self.session.scheduler
        asked = dict(self._state.script.asked)
        later = any(
            request.status in (Status.WAITING, Status.PREEMPTED) and self._says_later(label, asked.get(label, 0))
            for label, request in server.requests.items()
        )
        works = any(request.status not in (Status.IDLE, Status.HELD) for request in server.requests.values())
        loads = [load for load in self.shadow.loads.values() if load.arrives is None and "transfer" in self.scope.also]
        if later or execution.stores or not works or len(loads) < len(self.shadow.loads):
            return None
        if execution.in_flight:
            return Complete()
        return Transfer(label=loads[0].label) if loads else Schedule()

    def apply(self, move: Action) -> list[Violation]:
        """Let it happen; what it breaks."""
        moment = self.execution.apply(move)
        assert not moment.observation.skipped, f"{move} could not happen: {moment.observation.skipped}"
        self._state = self.session.snapshot()
        found = self.judge.feed(moment)
        self.witnesses.update(happening(self.situations, moment, self.ledger))
        return found

    def check(self) -> list[Violation]:
        """Every move was judged."""
        return []

    def kind_of(self, move: Action) -> str:
        """The kind of action."""
        return kind_of(move)
