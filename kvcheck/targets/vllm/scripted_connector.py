"""The class that vLLM's connector factory finds by name; import it only after a release has been loaded.

vLLM code and this class see one scheduler-side connector. What it answers is decided by the handler that
`connector.set_handler` has set when the scheduler is built.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (  # type: ignore[import-not-found, unused-ignore]
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)

from kvcheck.targets.vllm.connector import current_handler


class ScriptedMetadata(KVConnectorMetadata):  # type: ignore[misc, unused-ignore]
    """What a step tells the worker's side of the connector."""

    def __init__(self, content: object = None) -> None:
        self.content = content


class ScriptedConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc, unused-ignore]
    """A connector without a network: every answer comes from the handler."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.handler = current_handler()

    # ---- what the scheduler asks -----------------------------------------------------------------------------------

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        return self.handler.divergent

    @property
    def requires_kv_delivery(self) -> bool:
        return self.handler.requires_delivery

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self.handler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.handler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> ScriptedMetadata:
        return ScriptedMetadata(self.handler.build_meta(scheduler_output))

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        return self.handler.finished(request, (block_ids,)), None

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, None]:
        return self.handler.finished(request, block_ids), None

    def take_events(self) -> Iterable[Any]:
        return self.handler.events()

    # ---- the worker's side, which does not exist here ------------------------------------------------------------

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def wait_for_layer_load(self, layer_name: str) -> None:
        raise NotImplementedError

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def wait_for_save(self) -> None:
        raise NotImplementedError
