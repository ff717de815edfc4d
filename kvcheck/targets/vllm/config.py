"""The configuration that the scheduler reads, from one set of settings, for light and for full loading."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from kvcheck.targets.vllm.borrowed import drafter_config_class, engine_config_class, scheduler_config_class
from kvcheck.targets.vllm.era import Era
from kvcheck.targets.vllm.standins import Strict

Drafter = Literal["eagle", "eagle3", "mtp", "dflash", "dspark", "draft_model", "ngram"]
Role = Literal["kv_producer", "kv_consumer", "kv_both"]

CONNECTOR_MODULE = "kvcheck.targets.vllm.scripted_connector"
CONNECTOR_CLASS = "ScriptedConnector"
RETENTION_VARIABLE = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a server is configured with, as far as its scheduler and KV cache depend on it."""

    num_blocks: int
    chunk_block_size: int
    """cache_config.block_size: what prefill chunks are cut to for Mamba in align mode."""
    max_model_len: int
    max_requests: int
    token_budget: int
    """max_num_batched_tokens"""
    long_prefill_threshold: int = 0
    watermark: float = 0.0
    admit_whole: bool = True
    """scheduler_reserve_full_isl: admit a request only if its whole sequence fits."""
    policy: Literal["fcfs", "priority"] = "fcfs"
    caching: bool = True
    asynchronous: bool = False
    """Asynchronous scheduling: steps overlap."""
    steps_in_flight: int | None = None
    """Overlapping steps; None: as many as the release makes of `asynchronous` without pipeline parallelism."""
    drafter: Drafter | None = None
    draft_tokens: int = 0
    draft_modules: int = 1
    """MTP layers of the drafter; above one, with more than one draft token, it is multi-module MTP."""
    connector: Role | None = None
    load_failure_policy: Literal["recompute", "fail"] = "recompute"
    mamba_align: bool = False
    worker_generation: Literal[1, 2] = 1
    dcp: int = 1
    events: bool = False
    retention: int | None = None
    """Prefix-cache retention interval: see `apply_retention`."""
    shared_prefix_checkpoint: bool = False

    def __post_init__(self) -> None:
        if (self.drafter is None) != (self.draft_tokens == 0):
            raise ValueError("a drafter needs draft_tokens above zero, and draft_tokens need a drafter")
        if self.draft_modules != 1 and self.drafter != "mtp":
            raise ValueError("only an mtp drafter has several modules")
        if self.draft_tokens > self.draft_modules > 1 and self.draft_tokens % self.draft_modules:
            raise ValueError("draft_tokens above draft_modules must be a multiple of them")
        if not 0.0 <= self.watermark < 1.0:
            raise ValueError("the watermark is a fraction of the blocks, at least 0 and below 1")


def apply_retention(settings: Settings, kv_cache_config: Any) -> Any:
    """The KVCacheConfig with the retention interval in it.

    0.29.0 and later have a field for it; earlier releases read an environment variable whenever a manager is built, so
    this must be called before each construction, also of a scheduler without an interval.
    """
    os.environ.pop(RETENTION_VARIABLE, None)
    if hasattr(kv_cache_config, "prefix_cache_retention_interval"):
        return replace(kv_cache_config, prefix_cache_retention_interval=settings.retention)
    if settings.retention is not None:
        os.environ[RETENTION_VARIABLE] = str(settings.retention)
    return kv_cache_config


def light_config(settings: Settings, root: Path, era: Era) -> Any:
    """The strict namespace that stands for VllmConfig under light loading.

    Plain values are given here; what follows from them is computed by the release's own methods (see `borrowed`).
    A ValueError says why the release refuses the settings.
    """
    reason = refusal(settings, era)
    if reason is not None:
        raise ValueError(reason)
    config: Any = engine_config_class(root)(
        "vllm_config",
        scheduler_config=_scheduler_config(settings, root),
        cache_config=_cache_config(settings),
        model_config=_model_config(settings),
        parallel_config=_parallel_config(settings),
        observability_config=_observability_config(),
        ec_manager_config=Strict("ec_manager_config", get_encoder_cache_manager_obj=_nothing),
        aux_output_config=Strict("aux_output_config", enabled=False),
        kv_events_config=_events_config() if settings.events else None,
        kv_transfer_config=_transfer_config(settings) if settings.connector is not None else None,
        speculative_config=_drafter_config(settings, root) if settings.drafter is not None else None,
        use_v2_model_runner=settings.worker_generation == 2,
        is_encoder_only=False,
        is_mm_encoder_only=False,
        diffusion_config=None,
        ec_transfer_config=None,
        lora_config=None,
    )
    if settings.steps_in_flight is not None:
        config.max_concurrent_batches = settings.steps_in_flight
    config.scheduler_config.verify_max_model_len(settings.max_model_len)
    config._set_max_num_scheduled_tokens()
    check_block_size(config)
    return config


def refusal(settings: Settings, era: Era) -> str | None:
    """Why a release does not combine this drafter with this worker or with overlapping steps; None if it does.

    These rules are the only ones that are written down here instead of borrowed from the release, because it decides
    them among features that kvcheck does not know.
    """
    drafter, generation = settings.drafter, settings.worker_generation
    if drafter == "ngram" and settings.asynchronous and (generation == 1 or era < (0, 33)):
        return "steps cannot overlap with an ngram drafter"
    if drafter == "dspark" and generation == 1 and era >= (0, 29):
        return "a dspark drafter needs the second worker generation"
    if drafter == "draft_model" and generation == 2 and era < (0, 31):
        return "the second worker generation has no draft_model drafter yet"
    if drafter == "ngram" and generation == 2 and era < (0, 32):
        return "the second worker generation has no ngram drafter yet"
    return None


def check_block_size(config: Any) -> None:
    """The engine's own check of the block size against the rest, as a ValueError."""
    try:
        config.validate_block_size()
    except AssertionError as error:
        raise ValueError(str(error) or "the block size does not suit the other settings") from error


def _scheduler_config(settings: Settings, root: Path) -> Strict:
    return scheduler_config_class(root)(
        "scheduler_config",
        max_num_seqs=settings.max_requests,
        max_num_batched_tokens=settings.token_budget,
        max_num_scheduled_tokens=None,
        max_num_active_seqs=None,
        max_num_partial_prefills=1,
        max_long_partial_prefills=1,
        long_prefill_token_threshold=settings.long_prefill_threshold,
        long_prefill_token_threshold_adaptive=False,
        prefill_schedule_interval=1,
        watermark=settings.watermark,
        scheduler_reserve_full_isl=settings.admit_whole,
        policy=settings.policy,
        async_scheduling=settings.asynchronous,
        enable_chunked_prefill=True,
        disable_chunked_mm_input=False,
        disable_hybrid_kv_cache_manager=False,
    )


def _cache_config(settings: Settings) -> Strict:
    return Strict(
        "cache_config",
        num_gpu_blocks=settings.num_blocks,
        block_size=settings.chunk_block_size,
        enable_prefix_caching=settings.caching,
        mamba_cache_mode="align" if settings.mamba_align else "none",
        enable_mamba_fine_grained_prefix_cache=settings.shared_prefix_checkpoint,  # its name in 0.30.0
        enable_mamba_shared_prefix_checkpoint=settings.shared_prefix_checkpoint,
    )


def _model_config(settings: Settings) -> Strict:
    """A decoder that only reads and writes text."""
    return Strict(
        "model_config",
        max_model_len=settings.max_model_len,
        runner_type="generate",
        is_encoder_decoder=False,
        is_diffusion=False,
        is_multimodal_model=False,
        supports_multimodal_inputs=False,
        uses_mrope=False,
        uses_xdrope=False,
        uses_xdrope_dim=0,
        enable_return_routed_experts=False,
        return_sampling_mask=False,
    )


def _parallel_config(settings: Settings) -> Strict:
    return Strict(
        "parallel_config",
        data_parallel_index=0,
        data_parallel_size=1,
        pipeline_parallel_size=1,
        decode_context_parallel_size=settings.dcp,
        prefill_context_parallel_size=1,
        dcp_kv_cache_interleave_size=1,
        cp_kv_cache_interleave_size=1,
    )


def _observability_config() -> Strict:
    return Strict(
        "observability_config",
        kv_cache_metrics=False,
        enable_mfu_metrics=False,
        enable_logging_iteration_details=False,
        per_request_spec_decode_metrics="none",
    )


def _events_config() -> Strict:
    """Events are made and can be taken; publishing them does nothing."""
    return Strict("kv_events_config", enable_kv_cache_events=True, publisher="null")


def _transfer_config(settings: Settings) -> Strict:
    def from_extra_config(_: str, default: Any) -> Any:
        return default

    def has_connector(name: str) -> bool:
        return name == CONNECTOR_CLASS

    role = settings.connector
    return Strict(
        "kv_transfer_config",
        kv_connector=CONNECTOR_CLASS,
        kv_connector_module_path=CONNECTOR_MODULE,
        kv_role=role,
        engine_id="kvcheck",
        kv_load_failure_policy=settings.load_failure_policy,
        kv_connector_extra_config={},
        get_from_extra_config=from_extra_config,
        has_connector=has_connector,
        is_kv_transfer_instance=True,
        is_kv_consumer=role in ("kv_consumer", "kv_both"),
        is_kv_producer=role in ("kv_producer", "kv_both"),
    )


def _drafter_config(settings: Settings, root: Path) -> Strict:
    drafter_model = Strict("hf_config", num_nextn_predict_layers=settings.draft_modules, sample_from_anchor=True)
    return drafter_config_class(root)(
        "speculative_config",
        method=settings.drafter,
        num_speculative_tokens=settings.draft_tokens,
        num_speculative_tokens_per_batch_size=None,
        draft_model_config=Strict("draft_model_config", hf_config=drafter_model),
        parallel_drafting=settings.drafter in ("dflash", "dspark"),
        disable_eagle_block_drop=False,
        disable_lookahead_block_hashes=False,
    )


def _nothing() -> None:
    return None
