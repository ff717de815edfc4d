"""Which release a vLLM behaves like: what it says of itself, or what its code can do if it says nothing useful.

A checkout that was never built has no version; it is dated by the newest feature that it has. A release newer than
those known is taken for what it says, so it counts as newest.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any

Era = tuple[int, int]
"""Major and minor number."""

OLDEST: Era = (0, 26)


def era_of(version: str | None) -> Era:
    """The era of the release that is loaded in this process."""
    said = re.match(r"(\d+)\.(\d+)", version or "")
    stated = (int(said.group(1)), int(said.group(2))) if said else (0, 0)
    return stated if stated >= OLDEST else _by_features()


def _by_features() -> Era:
    from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheConfig

    fields = {field.name for field in dataclasses.fields(KVCacheConfig)}
    features = (
        ((0, 33), _takes(KVCacheManager.__init__, "num_hash_lookahead_tokens")),
        ((0, 32), _takes(KVCacheManager.allocate_slots, "skip_zeroing_group_ids")),
        ((0, 31), _takes(KVCacheCoordinator.get_num_blocks_to_allocate, "prefill_end")),
        ((0, 30), hasattr(KVCacheManager, "finalize_partial_tail_offloads")),
        ((0, 29), "prefix_cache_retention_interval" in fields),
        ((0, 28), _takes(KVCacheManager.__init__, "num_prefill_lookahead")),
        ((0, 27), hasattr(KVCacheManager, "get_computed_blocks_for_connector")),
    )
    return next((era for era, there in features if there), OLDEST)


def _takes(callable_: Callable[..., Any], parameter: str) -> bool:
    return parameter in inspect.signature(callable_).parameters
