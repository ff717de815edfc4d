"""Two targets driven side by side: everything that one shows is compared with what the other shows.

A difference is raised as an exception where it is seen first. Block numbers need no renaming: both hand out blocks in
the order of their free queues, so the first block that differs *is* a difference of that order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from kvcheck.model.actions import Arrive, Extend, Level
from kvcheck.model.layout import Layout
from kvcheck.model.observation import (
    Announce,
    CacheView,
    Drop,
    Event,
    Failure,
    Processed,
    Register,
    Retold,
    StepPlan,
    Store,
    TargetInfo,
)
from kvcheck.targets.base import Session, StepOutput, Target, UnsupportedLayout
from kvcheck.targets.errors import TargetError
from kvcheck.targets.failures import failure_of
from kvcheck.targets.recorded import RecordedFailure

CRASHES: dict[str, tuple[str, str]] = {
    "pool-exhausted": ("ValueError", "get_new_blocks"),
    "fine-grained-window": ("AssertionError", "find_longest_cache_hit"),
    "diverged-lookup-block-size": ("AssertionError", "resolve_block_hashes"),
    "diverged-hit-truncated": ("AssertionError", "truncate_computed_blocks"),
    "failed-load-several-groups": ("ValueError", "_update_requests_with_invalid_blocks"),
    "completion-not-expected": ("AssertionError", "_update_from_kv_xfer_finished"),
    "nothing-to-run": ("AssertionError", "schedule"),
    "output-not-expected": ("AssertionError", "_update_request_with_output"),
    "shared-tail-not-in-place": ("AssertionError", "_apply_cow"),
    "tail-not-in-place": ("AssertionError", "allocate_new_blocks"),
}
"""What the model's errors are called in vLLM: the type of the exception and the function that raises it."""


DIFFERENCE = "Difference"


class Difference(RecordedFailure):
    """The two targets show something else; ``what`` names it without numbers."""

    def __init__(self, what: str, left: object, right: object) -> None:
        message = f"{_short(left)} against {_short(right)}"
        super().__init__(Failure(type=DIFFERENCE, function=what, file="", line=0, message=message))


class PairedSession:
    """Two servers with one layout, driven alike."""

    def __init__(self, left: Session, right: Session) -> None:
        self.left = left
        self.right = right
        self.promises = left.promises
        self._log: tuple[Event, ...] = ()

    def arrive(self, request: Arrive) -> None:
        """Add a request."""
        self._both("arrive", request)

    def extend(self, update: Extend) -> None:
        """Give a session its next input, or end it."""
        self._both("extend", update)

    def schedule(self) -> StepPlan:
        """One scheduling pass."""
        plan: StepPlan = self._both("schedule")
        return plan

    def process(self, output: StepOutput) -> Processed:
        """Process the output of the oldest step in flight."""
        processed: Processed = self._both("process", output)
        return processed

    def abort(self, label: str) -> None:
        """End a request from outside."""
        self._both("abort", label)

    def evict(self, group: int, label: str, prefix: int) -> bool:
        """Evict the cached blocks with this key; False if there are none."""
        return bool(self._both("evict", group, label, prefix))

    def reset(self, running: bool) -> bool:
        """Reset the prefix cache; False if the server declines."""
        return bool(self._both("reset", running))

    def pause(self, what: str) -> bool:
        """Pause scheduling or go on."""
        return bool(self._both("pause", what))

    def settle(self) -> None:
        """From now on the connector answers at once and loads arrive whole."""
        self._both("settle")

    def view(self) -> CacheView:
        """The bookkeeping, after it and the log were compared."""
        view, other = self.left.view(), self.right.view()
        self._log = self._compare_logs()
        for name in CacheView.__struct_fields__:
            left, right = _plain(name, getattr(view, name)), _plain(name, getattr(other, name))
            if left != right:
                raise Difference(f"view {name}", *_apart(left, right))
        return view

    def take_log(self) -> tuple[Event, ...]:
        """Events since the last call."""
        log, self._log = self._log, ()
        return log

    def take_stores(self) -> tuple[Store, ...]:
        """Stores that began since the last call."""
        left, right = self.left.take_stores(), self.right.take_stores()
        if left != right:
            raise Difference("stores", left, right)
        return left

    def _both(self, method: str, *arguments: Any) -> Any:
        left, left_failure, error = _called(self.left, method, arguments)
        right, right_failure, _ = _called(self.right, method, arguments)
        if error is not None:
            if _crash(left_failure) != _crash(right_failure):
                raise Difference(f"crash in {method}", left_failure, right_failure or right) from error
            self.right.take_log()
            self.left.take_log()
            raise error
        if right_failure is not None:
            raise Difference(f"crash in {method}", left, right_failure)
        if isinstance(left, msgspec.Struct):
            for name in left.__struct_fields__:
                mine, other = getattr(left, name), getattr(right, name)
                if mine != other:
                    raise Difference(f"{method} {name}", *_apart(mine, other))
        elif left != right:
            raise Difference(method, left, right)
        return left

    def _compare_logs(self) -> tuple[Event, ...]:
        log, other = self.left.take_log(), self.right.take_log()
        for index, (left, right) in enumerate(zip(_ordered(log), _ordered(other), strict=False)):
            if left != right:
                raise Difference(f"event {type(left).__name__} or {type(right).__name__}", left, (index, right))
        if len(_ordered(log)) != len(_ordered(other)):
            raise Difference("number of events", _ordered(log), _ordered(other))
        left_keys, right_keys = _unordered(log), _unordered(other)
        if left_keys != right_keys:
            raise Difference("keys", left_keys - right_keys, right_keys - left_keys)
        return log


class PairedTarget:
    """``left`` against ``right``."""

    def __init__(self, left: Target, right: Target) -> None:
        self.left = left
        self.right = right
        self.info = TargetInfo(
            spec=f"{left.info.spec} against {right.info.spec}", version=left.info.version, digest=left.info.digest
        )

    def supports(self, layout: Layout) -> str:
        """Why one of the two cannot express the layout; empty if both can."""
        return self.left.supports(layout) or self.right.supports(layout)

    def start(self, layout: Layout, level: Level = "scheduler") -> Session:
        """Two new servers with this layout."""
        if why := self.supports(layout):
            raise UnsupportedLayout(why)
        return PairedSession(self.left.start(layout, level), self.right.start(layout, level))


def _called(session: Session, method: str, arguments: Iterable[Any]) -> tuple[Any, Failure | None, Exception | None]:
    try:
        return getattr(session, method)(*arguments), None, None
    except TargetError:
        raise
    except Exception as error:  # noqa: BLE001  whatever a server raises is compared
        return None, failure_of(error), error


def _crash(failure: Failure | None) -> tuple[str, str] | None:
    if failure is None:
        return None
    return CRASHES.get(failure.function, (failure.type, failure.function))


def _ordered(log: Iterable[Event]) -> list[Event]:
    """Events whose order says something. What a session has become is noticed by each adapter in its own time."""
    return [event for event in log if not isinstance(event, Drop | Register | Announce | Retold)]


def _unordered(log: Iterable[Event]) -> Counter[Any]:
    """Keys that came and went, and what was told of them: a server may remove several keys of a block in any order."""
    found: Counter[Any] = Counter()
    for event in log:
        if isinstance(event, Drop):
            found["drop", event.group, event.block, event.length, event.key] += 1
        elif isinstance(event, Register):
            found["register", event.label, event.group, event.block, event.length, event.key] += 1
        elif isinstance(event, Announce):
            found.update((event.what, event.group, key) for key in event.keys)
    return found


def _plain(name: str, value: Any) -> Any:
    """A part of a view without what the servers may do as they like."""
    if name in ("keys", "block_keys"):
        return set(value)
    if name == "tables":
        return {label: tables for label, tables in value.items() if any(tables)}
    return value


def _apart(left: Any, right: Any) -> tuple[Any, Any]:
    """Only what differs, where that is easily said."""
    if isinstance(left, set):
        return left - right, right - left
    if isinstance(left, dict):
        keys = [key for key in {**left, **right} if left.get(key) != right.get(key)]
        return {key: left.get(key) for key in keys}, {key: right.get(key) for key in keys}
    return left, right


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 600 else text[:597] + "..."
