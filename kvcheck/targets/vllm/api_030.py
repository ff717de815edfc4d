"""0.30: one queue for all requests that were passed over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvcheck.targets.vllm.api import Api


class Api030(Api):
    """The generation of 0.30."""

    def waiting(self, scheduler: Any) -> Iterable[Iterable[Any]]:
        """The queues of requests that do not run."""
        return scheduler.waiting, scheduler.skipped_waiting
