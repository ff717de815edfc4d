"""Runs actions against a session, with the shadow worker beside it, and tells what was seen after each action."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from kvcheck.invariants.moment import Moment
from kvcheck.model.actions import (
    Abort,
    Action,
    Arrive,
    Complete,
    Evict,
    Extend,
    Level,
    Pause,
    Reset,
    Run,
    Schedule,
    Settle,
    Transfer,
    is_acceptable,
)
from kvcheck.model.layout import Layout
from kvcheck.model.observation import (
    CacheView,
    Load,
    Observation,
    Processed,
    StepPlan,
    Store,
)
from kvcheck.model.shadow import Shadow, StepResult
from kvcheck.targets.base import Session, StepOutput
from kvcheck.targets.errors import TargetError
from kvcheck.targets.failures import failure_of

NO_SUBJECT = "no such subject"


class Execution:
    """One server being driven. After a failure the server is dead: all further actions are no-ops.

    ``watcher`` is told of each action before it happens, so that a run that hangs or dies can be told of.
    """

    watcher: ClassVar[Callable[[Execution, Action], None] | None] = None

    def __init__(self, session: Session, layout: Layout, level: Level = "scheduler") -> None:
        self.layout = layout
        self.level = level
        self.session = session
        self.shadow = Shadow(layout, session.promises)
        self.dead = False
        self.scheduling_seconds = 0.0
        self.count = 0
        self.view: CacheView | None = None
        self.last: Observation | None = None
        self.in_flight: deque[StepPlan] = deque()
        self.arrivals: dict[str, Arrive] = {}
        self.stores: dict[str, Store] = {}
        self.ended_sessions: set[str] = set()
        self._session_tokens: dict[str, int] = {}
        self._reported: set[str] = set()
        self._received: list[str] = []
        self._sent: list[str] = []
        self._invalid: list[int] = []
        self._failed: list[str] = []

    def run(self, run: Run) -> Iterator[Moment]:
        """All moments of a run."""
        for action in run.actions:
            yield self.apply(action)

    def apply(self, action: Action) -> Moment:
        """Let one action happen."""
        if Execution.watcher is not None:
            Execution.watcher(self, action)
        index, self.count = self.count, self.count + 1
        moment = Moment(index=index, action=action, before=self.view, shadow=self.shadow)
        if self.dead:
            moment.observation = Observation(index=index, skipped="the server is dead")
        else:
            moment.observation = self._observe(action, moment)
        self.last = moment.observation
        moment.pending_loads = len(self.shadow.loads)
        moment.pending_stores = len(self.stores)
        moment.in_flight = len(self.in_flight)
        moment.unreported = len(self._received) + len(self._sent)
        return moment

    def _observe(self, action: Action, moment: Moment) -> Observation:
        seen: dict[str, Any] = {}
        try:
            self._dispatch(action, moment, seen)
            if "skipped" not in seen or self.view is None:
                self.view = self.session.view()
        except TargetError:
            raise
        except Exception as error:  # noqa: BLE001  whatever the system under test raises is what we look for
            seen["failure"] = failure_of(error)
            self.dead = True
            self.view = None
        stores = self.session.take_stores()
        self.stores.update((store.label, store) for store in stores)
        return Observation(index=moment.index, log=self.session.take_log(), stores=stores, view=self.view, **seen)

    def _dispatch(self, action: Action, moment: Moment, seen: dict[str, Any]) -> None:
        match action:
            case Schedule():
                seen.update(self._schedule())
            case Complete():
                seen.update(self._complete(action, moment))
            case Arrive():
                seen.update(self._arrive(action))
            case Extend():
                seen.update(self._extend(action))
            case Transfer():
                seen.update(self._transfer(action, moment))
            case Abort():
                seen.update(self._abort(action))
            case Evict():
                done = 0 <= action.group < len(self.layout.groups) and action.label in self.arrivals
                done = done and self.session.evict(action.group, action.label, action.prefix)
                seen.update({} if done else {"skipped": NO_SUBJECT})
            case Reset():
                seen.update(self._reset(action))
            case Pause():
                seen.update({} if self.session.pause(action.what) else {"skipped": NO_SUBJECT})
            case Settle():
                self.session.settle()

    @property
    def unreported(self) -> tuple[list[str], list[str], list[int], list[str]]:
        """What the next output will tell: loads that are over, stores, blocks that were not filled, failed loads."""
        return self._received, self._sent, self._invalid, self._failed

    # ---- each kind of action -------------------------------------------------------------------------------------

    def _schedule(self) -> dict[str, Any]:
        if len(self.in_flight) >= self.layout.steps_in_flight:
            return {"skipped": "as many steps are in flight as the layout allows"}
        began = time.perf_counter()
        plan = self.session.schedule()
        self.scheduling_seconds += time.perf_counter() - began
        self.in_flight.append(plan)
        self.shadow.issued(plan)
        for load in plan.loads:
            if load.asynchronous:  # from here on a report is one of this load, and not a late one of an earlier load
                self._reported.discard(load.label)
                self._received = [label for label in self._received if label != load.label]
        return {"plan": plan}

    def _complete(self, action: Complete, moment: Moment) -> dict[str, Any]:
        if not self.in_flight:
            return {"skipped": "no step is in flight"}
        plan = self.in_flight.popleft()
        result = self.shadow.execute(plan, action.accepted)
        moment.executed, moment.wrong, moment.bad = plan, result.wrong, result.bad
        for load in plan.loads:
            if not load.asynchronous:
                self._invalid += self.shadow.unfilled_blocks(load)
        output = StepOutput(
            sampled=result.sampled,
            proposed=self._proposed(action, result),
            received=tuple(self._received),
            sent=tuple(self._sent),
            invalid=tuple(dict.fromkeys(self._invalid)),
            failed=tuple(self._failed),
        )
        for reports in (self._received, self._sent, self._invalid, self._failed):
            reports.clear()
        processed: Processed = self.session.process(output)
        return {"processed": processed}

    def _proposed(self, action: Complete, result: StepResult) -> dict[str, int]:
        most = self.layout.draft_tokens
        return {
            label: max(0, min(most, action.proposed.get(label, most)))
            for label, tokens in result.sampled.items()
            if tokens
        }

    def _arrive(self, action: Arrive) -> dict[str, Any]:
        if action.label in self.arrivals:
            return {"skipped": "this label has arrived before"}
        if not is_acceptable(action, self.layout.max_model_len):
            return {"skipped": "no server would accept this request"}
        self.arrivals[action.label] = action
        self._session_tokens[action.label] = len(action.prompt) + action.max_tokens
        self.shadow.arrive(action.label, action.sequence, action.salt, action.adapter)
        self.session.arrive(action)
        return {}

    def _extend(self, action: Extend) -> dict[str, Any]:
        arrival, view = self.arrivals.get(action.label), self.view
        request = view.requests.get(action.label) if view else None
        if arrival is None or not arrival.session or request is None or action.label in self.ended_sessions:
            return {"skipped": NO_SUBJECT}
        tokens = self._session_tokens[action.label] + len(action.prompt) + action.max_tokens
        too_long = tokens >= self.layout.max_model_len
        if request.status == "held" or (action.prompt and too_long):
            return {"skipped": "no server would accept this input"}
        self._session_tokens[action.label] = tokens
        if not action.prompt:
            self.ended_sessions.add(action.label)
        self.session.extend(action)
        return {}

    def _transfer(self, action: Transfer, moment: Moment) -> dict[str, Any]:
        if action.what == "store":
            return self._store_ends(action, moment)
        load = self.shadow.loads.get(action.label)
        connector = self.layout.connector
        if load is None:
            if action.again and connector is not None and connector.duplicates and action.label in self._reported:
                self._received.append(action.label)
                return {}
            return {"skipped": NO_SUBJECT}
        unfilled = self.shadow.load_ends(action.label) or ()
        self._report_load(load, unfilled)
        return {}

    def _report_load(self, load: Load, unfilled: tuple[int, ...]) -> None:
        self._received.append(load.label)
        self._reported.add(load.label)
        if unfilled and self.session.promises.failed_by_request:
            self._failed.append(load.label)
        else:
            self._invalid += unfilled

    def _store_ends(self, action: Transfer, moment: Moment) -> dict[str, Any]:
        store = self.stores.pop(action.label, None)
        if store is None:
            return {"skipped": NO_SUBJECT}
        moment.wrong = self.shadow.read_store(store)
        self._sent.append(action.label)
        return {}

    def _abort(self, action: Abort) -> dict[str, Any]:
        request = self.view.requests.get(action.label) if self.view else None
        if request is None or request.status == "held":
            return {"skipped": NO_SUBJECT}
        self.session.abort(action.label)
        return {}

    def _reset(self, action: Reset) -> dict[str, Any]:
        if self.in_flight and not self.layout.asynchronous:
            return {"skipped": "a step is in flight"}
        return {} if self.session.reset(action.running) else {"refused": "the server declined"}
