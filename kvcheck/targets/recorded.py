"""A session that gives back what a trace has recorded, so that a recording can be judged again without its target."""

from __future__ import annotations

from typing import TypeVar

from kvcheck.model.actions import Arrive, Extend
from kvcheck.model.observation import CacheView, Event, Failure, Observation, Processed, StepPlan, Store, Trace
from kvcheck.targets.base import StepOutput
from kvcheck.targets.errors import TargetError

T = TypeVar("T")


class RecordedFailure(Exception):
    """Stands for an exception that was recorded."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class RecordedSession:
    """Each action of the trace's run is answered from its observation; ``advance`` goes to the next one."""

    def __init__(self, trace: Trace) -> None:
        self.promises = trace.promises
        self._observations = iter(trace.observations)
        self._now = Observation(index=-1)

    def advance(self) -> None:
        """The next action's observation becomes the current one."""
        self._now = next(self._observations)

    def _current(self) -> Observation:
        if self._now.failure is not None:
            raise RecordedFailure(self._now.failure)
        return self._now

    def arrive(self, request: Arrive) -> None:
        """Nothing but a recorded failure."""
        self._current()

    def extend(self, update: Extend) -> None:
        """Nothing but a recorded failure."""
        self._current()

    def abort(self, label: str) -> None:
        """Nothing but a recorded failure."""
        self._current()

    def settle(self) -> None:
        """Nothing but a recorded failure."""
        self._current()

    def schedule(self) -> StepPlan:
        """The recorded plan."""
        return self._recorded(self._current().plan, "plan")

    def process(self, output: StepOutput) -> Processed:
        """What the server made of the step."""
        return self._recorded(self._current().processed, "processed step")

    def evict(self, group: int, label: str, prefix: int) -> bool:
        """Whether something was evicted."""
        return not self._current().skipped

    def reset(self, running: bool) -> bool:
        """Whether it was done."""
        return not self._current().refused

    def pause(self, what: str) -> bool:
        """Whether it was done."""
        return not self._current().skipped

    def view(self) -> CacheView:
        """The recorded view."""
        return self._recorded(self._current().view, "view")

    def take_log(self) -> tuple[Event, ...]:
        """The recorded events."""
        return self._now.log

    def take_stores(self) -> tuple[Store, ...]:
        """The recorded stores."""
        return self._now.stores

    def _recorded(self, value: T | None, what: str) -> T:
        if value is None:
            raise TargetError(f"the trace has no {what} for action {self._now.index}: it is of another run")
        return value
