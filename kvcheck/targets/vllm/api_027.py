"""0.26 to 0.29: partial tails handed to a connector are pinned by the manager (where a release hands them over)."""

from __future__ import annotations

from typing import Any

from kvcheck.targets.vllm.api_030 import Api030


class Api027(Api030):
    """The generation of 0.26 to 0.29."""

    def holders(self, manager: Any, scheduler: Any) -> tuple[tuple[tuple[int, int], ...], int]:
        """References held outside the tables; pins of partial tails among them."""
        outside, deferred = super().holders(manager, scheduler)
        held = dict(outside)
        for blocks in getattr(manager, "_partial_tail_pins", {}).values():
            self._count(held, blocks)
        return tuple(sorted(held.items())), deferred
