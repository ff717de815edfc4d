"""The scripted KV connector: the part that needs no vLLM.

A handler decides what the connector answers. `set_handler` comes before the scheduler is built, because vLLM builds
the connector itself, from a module path (`config.CONNECTOR_MODULE`).
"""

# ruff: noqa: ARG002 - these are the signatures of a protocol

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol


class Handler(Protocol):
    """What a scheduler asks of its connector, and tells it."""

    divergent: bool
    """supports_divergent_local_hybrid_hits (0.28.0 and later)."""
    requires_delivery: bool
    """requires_kv_delivery (0.27.0 and later)."""

    def matched(self, request: Any, num_local_tokens: int) -> tuple[int | None, bool]:
        """How many further tokens can be loaded (None: ask later), and whether asynchronously."""

    def allocated(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The request has blocks now, for this many tokens to load."""

    def finished(self, request: Any, block_ids: tuple[list[int], ...]) -> bool:
        """Whether the blocks must stay until the connector reports that they were sent."""

    def build_meta(self, scheduler_output: Any) -> object:
        """What a step tells the worker's side; called once for each step."""

    def events(self) -> Iterable[Any]:
        """KV events of the connector's own."""


class NothingRemote:
    """The handler of a connector that has nothing and keeps nothing."""

    divergent = True
    requires_delivery = False

    def matched(self, request: Any, num_local_tokens: int) -> tuple[int | None, bool]:
        return 0, False

    def allocated(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        return None

    def finished(self, request: Any, block_ids: tuple[list[int], ...]) -> bool:
        return False

    def build_meta(self, scheduler_output: Any) -> object:
        return None

    def events(self) -> Iterable[Any]:
        return ()


_handler: Handler = NothingRemote()


def set_handler(handler: Handler) -> None:
    """The handler of connectors that are built from now on."""
    global _handler  # noqa: PLW0603 - vLLM builds the connector, so there is nobody to hand the handler to
    _handler = handler


def current_handler() -> Handler:
    """The handler that was set last."""
    return _handler
