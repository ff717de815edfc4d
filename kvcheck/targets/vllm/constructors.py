"""The constructors of the server's configuration under light loading, as tests of the server call them.

A test that makes its scheduler from `vllm.config` runs without vLLM's dependencies after `give_constructors`. What it
passes becomes the strict configuration of `config`, so that a setting which nobody provides rings the alarm.
"""

from __future__ import annotations

import importlib
import os
from types import SimpleNamespace
from typing import Any

from kvcheck.targets.vllm.config import Settings, light_config
from kvcheck.targets.vllm.era import era_of
from kvcheck.targets.vllm.given import DTYPES, NoGrammar
from kvcheck.targets.vllm.release import Release

_PLAIN = (
    "CacheConfig",
    "DeviceConfig",
    "KVEventsConfig",
    "KVTransferConfig",
    "ModelConfig",
    "ParallelConfig",
    "SchedulerConfig",
)
"""Configurations that only keep what they are given."""
_USED = {
    "SchedulerConfig": {
        "max_model_len", "is_encoder_decoder", "max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold",
        "watermark", "scheduler_reserve_full_isl", "policy", "async_scheduling", "enable_chunked_prefill",
    },
    "CacheConfig": {"block_size", "enable_prefix_caching", "mamba_cache_mode"},
    "KVTransferConfig": {"kv_connector", "kv_connector_module_path", "kv_role", "kv_load_failure_policy"},
}  # fmt: skip
"""All that may be given to them, where anything else would be lost."""


def give_constructors(release: Release) -> None:
    """Make `vllm.config` (and what else tests construct) usable in this process, which has loaded the release light."""
    config: Any = importlib.import_module("vllm.config")
    for name in _PLAIN:
        setattr(config, name, _keeper(name))
    config.SpeculativeConfig = _Drafter
    config.VllmConfig = _engine(release)
    grammar: Any = importlib.import_module("vllm.v1.structured_output")
    grammar.StructuredOutputManager = _no_grammar
    types: Any = importlib.import_module("vllm.utils.torch_utils")
    types.STR_DTYPE_TO_TORCH_DTYPE = DTYPES


def _keeper(name: str) -> type:
    """A class whose instances keep what they are given."""
    known = _USED.get(name)

    def __init__(self: SimpleNamespace, **values: Any) -> None:  # noqa: N807  of the class that is made here
        unknown = set(values) - (known if known is not None else set(values))
        if unknown:
            raise TypeError(f"{name}: light loading knows nothing of {', '.join(sorted(unknown))}")
        SimpleNamespace.__init__(self, **values)

    return type(name, (SimpleNamespace,), {"__init__": __init__})


def _no_grammar(_config: Any) -> NoGrammar:
    return NoGrammar()


class _Drafter(SimpleNamespace):
    """A drafter's configuration, with that of the model which it would have."""

    def __init__(self, **values: Any) -> None:
        model = SimpleNamespace(hf_config=SimpleNamespace(num_nextn_predict_layers=1))
        super().__init__(draft_model_config=model, **values)


def _engine(release: Release) -> type:
    """A class that makes the strict configuration of a release."""

    def __new__(  # noqa: N807  of the class that is made here
        _class: type,
        *,
        model_config: Any,
        scheduler_config: Any,
        cache_config: Any,
        device_config: Any = None,  # noqa: ARG001  a test names the device, and there is none here
        parallel_config: Any = None,  # noqa: ARG001  of it the drafter's configuration is made
        kv_transfer_config: Any = None,
        kv_events_config: Any = None,
        speculative_config: Any = None,
    ) -> Any:
        settings = Settings(
            num_blocks=1,  # a test sets it afterwards, as the engine does
            chunk_block_size=cache_config.block_size,
            max_model_len=model_config.max_model_len,
            max_requests=scheduler_config.max_num_seqs,
            token_budget=scheduler_config.max_num_batched_tokens,
            long_prefill_threshold=getattr(scheduler_config, "long_prefill_token_threshold", 0),
            watermark=scheduler_config.watermark,
            admit_whole=scheduler_config.scheduler_reserve_full_isl,
            policy=getattr(scheduler_config, "policy", "fcfs"),
            caching=cache_config.enable_prefix_caching,
            asynchronous=scheduler_config.async_scheduling,
            drafter=speculative_config.method if speculative_config else None,
            draft_tokens=speculative_config.num_speculative_tokens if speculative_config else 0,
            draft_modules=_modules(speculative_config) if speculative_config else 1,
            connector=kv_transfer_config.kv_role if kv_transfer_config else None,
            load_failure_policy=kv_transfer_config.kv_load_failure_policy if kv_transfer_config else "recompute",
            mamba_align=getattr(cache_config, "mamba_cache_mode", "none") == "align",
            worker_generation=2 if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1" else 1,
            events=kv_events_config is not None,
        )
        config = light_config(settings, release.root, era_of(release.version))
        if kv_transfer_config is not None:
            config.kv_transfer_config.kv_connector = kv_transfer_config.kv_connector
            config.kv_transfer_config.kv_connector_module_path = kv_transfer_config.kv_connector_module_path
            config.kv_transfer_config.has_connector = lambda name: name == kv_transfer_config.kv_connector
        return config

    return type("VllmConfig", (), {"__new__": __new__})


def _modules(drafter: Any) -> int:
    return int(drafter.draft_model_config.hf_config.num_nextn_predict_layers)
