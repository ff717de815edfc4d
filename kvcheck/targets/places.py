"""Where in the server's source something happened."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Protocol, Self, runtime_checkable

import msgspec

from kvcheck.model.observation import Event, Failure
from kvcheck.targets.failures import is_server, package_path

_POOLS = ("vllm/v1/core/block_pool.py", "vllm/v1/core/kv_cache_utils.py", "model/pool.py")
"""The pool does what it is told: of interest is who told it."""


class Place(msgspec.Struct, frozen=True):
    """A line of the server. ``file``: its path from the package on."""

    file: str
    line: int
    function: str


@runtime_checkable
class Placing(Protocol):
    """A session that can tell where its events come from."""

    def place_events(self) -> PlacedLog:
        """From now on, note of each event where it comes from. That is slow."""


class PlacedLog(list[Event]):
    """An event log that knows which line of the server each event comes from."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        super().__init__(events)
        self.places: list[tuple[Event, Place]] = []

    def append(self, event: Event) -> None:
        """Note an event, and where the server stands now."""
        super().append(event)
        place = _here()
        if place is not None:
            self.places.append((event, place))

    def extend(self, events: Iterable[Event]) -> None:
        """The same of several."""
        for event in events:
            self.append(event)

    def __iadd__(self, events: Iterable[Event]) -> Self:  # type: ignore[override, misc]
        self.extend(events)
        return self

    def place_of(self, event: Event) -> Place | None:
        """Where this very event comes from."""
        return next((place for one, place in reversed(self.places) if one is event), None)


def place_of_failure(failure: Failure) -> Place:
    """Where an exception was raised."""
    return Place(failure.file, failure.line, failure.function)


def place_of_function(module: str, function: str, line: int) -> Place:
    """Where a function begins."""
    return Place(f"{module.replace('.', '/')}.py", line, function)


def _here() -> Place | None:
    """The innermost line of the server, outside of its pool."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  a stack is read in no other way
    while frame is not None:
        if is_server(frame):
            file = package_path(frame.f_code.co_filename)
            if file not in _POOLS:
                return Place(file, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None
