"""What a target is: something that actions can drive and that shows its bookkeeping after each of them."""

from __future__ import annotations

from typing import Protocol

import msgspec

from kvcheck.model.actions import Arrive, Extend, Level
from kvcheck.model.layout import Layout
from kvcheck.model.observation import CacheView, Event, Processed, Promises, StepPlan, Store, TargetInfo
from kvcheck.targets.errors import TargetError


class UnsupportedLayout(TargetError):
    """The target cannot express this layout (a feature that its release does not have)."""


class StepOutput(msgspec.Struct, frozen=True):
    """What the workers report of one executed step.

    ``sampled``: tokens by label. ``proposed``: how many drafts there are for the next step, by label. ``received``
    and ``sent``: requests whose load or store is over. ``invalid``: blocks that a load did not fill, ``failed``:
    requests whose load failed.
    """

    sampled: dict[str, tuple[int, ...]]
    proposed: dict[str, int]
    received: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()
    invalid: tuple[int, ...] = ()
    failed: tuple[str, ...] = ()


class Session(Protocol):
    """One server with one layout. Whatever the system under test raises comes out of these methods as it is."""

    promises: Promises

    def arrive(self, request: Arrive) -> None:
        """Add a request."""

    def extend(self, update: Extend) -> None:
        """Give a session its next input, or end it."""

    def schedule(self) -> StepPlan:
        """One scheduling pass."""

    def process(self, output: StepOutput) -> Processed:
        """Process the output of the oldest step in flight."""

    def abort(self, label: str) -> None:
        """End a request from outside."""

    def evict(self, group: int, label: str, prefix: int) -> bool:
        """Evict the cached blocks with this key; False if there are none."""

    def reset(self, running: bool) -> bool:
        """Reset the prefix cache; False if the server declines."""

    def pause(self, what: str) -> bool:
        """Pause or go on; False if the target has no such thing."""

    def settle(self) -> None:
        """From now on the connector answers at once and loads arrive whole."""

    def view(self) -> CacheView:
        """The bookkeeping as it is."""

    def take_log(self) -> tuple[Event, ...]:
        """Events since the last call."""

    def take_stores(self) -> tuple[Store, ...]:
        """Stores that began since the last call."""


class Target(Protocol):
    """Code under test, loaded: one in a process."""

    info: TargetInfo

    def supports(self, layout: Layout) -> str:
        """Why this target cannot express the layout; empty if it can."""

    def start(self, layout: Layout, level: Level = "scheduler") -> Session:
        """A new server.

        Raises:
            UnsupportedLayout: the release has no such feature.
        """
