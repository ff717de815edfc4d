"""The function of a test that makes its scheduler: the layout in the server's own configuration classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvcheck.export.code import Call, Name, code
from kvcheck.model.layout import Drafter, Group, Layout
from kvcheck.model.observation import Promises

_SPECS = {
    "full": "FullAttentionSpec",
    "mla": "MLAAttentionSpec",
    "sliding_window": "SlidingWindowSpec",
    "chunked_local": "ChunkedLocalAttentionSpec",
    "mamba": "MambaSpec",
}
CHECKPOINTS = ("num_prefill_checkpoint_blocks", "prefill_checkpoint_alignment")
"""Fields that not all releases have."""
IMPORTS = [
    ("vllm.config", "CacheConfig"),
    ("vllm.config", "DeviceConfig"),
    ("vllm.config", "KVEventsConfig"),
    ("vllm.config", "KVTransferConfig"),
    ("vllm.config", "ParallelConfig"),
    ("vllm.config", "SchedulerConfig"),
    ("vllm.config", "SpeculativeConfig"),
    ("vllm.config", "VllmConfig"),
    ("vllm.utils.hashing", "sha256"),
    ("vllm.utils.torch_utils", "STR_DTYPE_TO_TORCH_DTYPE"),
    ("vllm.v1.core.kv_cache_utils", "init_none_hash"),
    ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler"),
    ("vllm.v1.core.sched.scheduler", "Scheduler"),
    ("vllm.v1.core.single_type_kv_cache_manager", "register_all_kvcache_specs"),
    ("vllm.v1.kv_cache_interface", "KVCacheConfig"),
    ("vllm.v1.kv_cache_interface", "KVCacheGroupSpec"),
    *(("vllm.v1.kv_cache_interface", name) for name in _SPECS.values()),
    ("vllm.v1.structured_output", "StructuredOutputManager"),
]
"""What the function may name."""


def scheduler_function(layout: Layout, promises: Promises) -> str:
    """`make_scheduler(tmp_path, monkeypatch)`, as text."""
    body = [*_required_lines(layout), *_engine_lines(layout), *_started_lines(layout), *_cache_lines(layout, promises)]
    scheduler = Call(
        "AsyncScheduler" if layout.asynchronous else "Scheduler",
        vllm_config=Name("config"),
        kv_cache_config=Name("cache"),
        structured_output_manager=Call("StructuredOutputManager", Name("config")),
        block_size=layout.scheduler_block,
        hash_block_size=layout.hash_block,
        log_stats=False,
    )
    body.append(code(scheduler, 4, "return "))
    return "\n".join(["def make_scheduler(tmp_path, monkeypatch):", *(f"    {line}" if line else "" for line in body)])


def _required_lines(layout: Layout) -> Iterator[str]:
    """Where the layout cannot be expressed the test is skipped."""
    if any(group.checkpoint_blocks for group in layout.groups):
        yield code(Call("require_fields", Name("MambaSpec"), *CHECKPOINTS), 4)


def _engine_lines(layout: Layout) -> Iterator[str]:
    """The engine's configuration."""
    yield code(Call("make_model", Name("tmp_path"), layout.max_model_len), 4, "model = ")
    parts: dict[str, Any] = {
        "device_config": Call("DeviceConfig", device="cpu"),
        "model_config": Name("model"),
        "scheduler_config": _scheduler_config(layout),
        "cache_config": _cache_config(layout),
    }
    if layout.connector is not None:
        parts["kv_transfer_config"] = Call(
            "KVTransferConfig",
            kv_connector=Name("ScriptedConnector.__name__"),
            kv_connector_module_path=Name("__name__"),
            kv_role=f"kv_{layout.connector.role}",
            kv_load_failure_policy=layout.connector.failure,
        )
    if layout.events:
        parts["kv_events_config"] = Call("KVEventsConfig", enable_kv_cache_events=True, publisher="null")
    if layout.drafter is not None:
        yield from _drafter_lines(layout.drafter)
        parts |= {"parallel_config": Name("parallel"), "speculative_config": Name("drafter")}
    generation = str(layout.worker_generation - 1)
    yield code(Call("monkeypatch.setenv", "VLLM_USE_V2_MODEL_RUNNER", generation), 4)
    yield code(Call("VllmConfig", **parts), 4, "config = ")


def _scheduler_config(layout: Layout) -> Call:
    optional = {
        "long_prefill_token_threshold": (layout.long_prefill_threshold, 0),
        "watermark": (layout.watermark, None),
        "scheduler_reserve_full_isl": (layout.admit_whole, None),
        "policy": (layout.policy, "fcfs"),
        "async_scheduling": (layout.asynchronous, None),
    }
    return Call(
        "SchedulerConfig",
        max_model_len=layout.max_model_len,
        is_encoder_decoder=False,
        max_num_seqs=layout.max_requests,
        max_num_batched_tokens=layout.token_budget,
        **{name: value for name, (value, plain) in optional.items() if value != plain},
        enable_chunked_prefill=True,
    )


def _cache_config(layout: Layout) -> Call:
    mamba = {"mamba_cache_mode": "align"} if layout.has_mamba else {}
    return Call("CacheConfig", block_size=layout.chunk_grid, enable_prefix_caching=layout.caching, **mamba)


def _drafter_lines(drafter: Drafter) -> Iterator[str]:
    """What the scheduler asks of a drafter depends on nothing but its method and its number of modules, so that any
    model's configuration will do."""
    eagle = drafter.method != "ngram"
    model = {"model": Call("str", Name("tmp_path"))} if eagle else {}
    yield "parallel = ParallelConfig()"
    made = Call(
        "SpeculativeConfig",
        method="eagle" if eagle else "ngram",
        **model,
        num_speculative_tokens=drafter.tokens,
        target_model_config=Name("model"),
        target_parallel_config=Name("parallel"),
    )
    yield code(made, 4, "drafter = ")
    if not eagle:
        return
    if drafter.method != "eagle":
        yield f'drafter.method = "{drafter.method}"'
    yield f"drafter.parallel_drafting = {drafter.method in ('dflash', 'dspark')}"
    yield f"drafter.draft_model_config.hf_config.num_nextn_predict_layers = {drafter.modules}"


def _started_lines(layout: Layout) -> Iterator[str]:
    """What the engine decides when it starts, or changes for this machine and the tiny model."""
    yield "# as it is after the engine's start"
    yield f"config.cache_config.num_gpu_blocks = {layout.num_blocks}"
    yield f"config.cache_config.block_size = {layout.chunk_grid}"
    yield f"config.cache_config.enable_prefix_caching = {layout.caching}"
    yield f'config.cache_config.mamba_cache_mode = "{"align" if layout.has_mamba else "none"}"'
    yield f"config.scheduler_config.async_scheduling = {layout.asynchronous}"
    yield "config.scheduler_config.disable_hybrid_kv_cache_manager = False"
    if layout.dcp > 1:
        yield f"config.parallel_config.decode_context_parallel_size = {layout.dcp}"
    if layout.asynchronous and layout.steps_in_flight != 2:
        yield code(
            Call("monkeypatch.setattr", Name("type(config)"), "max_concurrent_batches", layout.steps_in_flight), 4
        )
    if layout.connector is not None and layout.connector.divergent:
        divergent = "supports_divergent_local_hybrid_hits"
        yield code(Call("monkeypatch.setattr", Name("ScriptedConnector"), divergent, True), 4)


def _cache_lines(layout: Layout, promises: Promises) -> Iterator[str]:
    """The KV cache's configuration."""
    if any(group.is_attention for group in layout.groups) or layout.has_mamba:
        yield 'dtype = STR_DTYPE_TO_TORCH_DTYPE["float32"]'
    groups = [_group(index, group, layout) for index, group in enumerate(layout.groups)]
    if layout.zeroing and not layout.has_mamba:
        yield 'monkeypatch.setattr(KVCacheConfig, "needs_kv_cache_zeroing", True)'
    variable = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
    if promises.retention is None:
        yield f'monkeypatch.delenv("{variable}", raising=False)'
    else:
        yield f'monkeypatch.setenv("{variable}", "{promises.retention}")'
    supported = Call(
        "**supported",
        Name("KVCacheConfig"),
        hash_block_size=layout.hash_block,
        cache_hit_alignment_tokens=layout.hash_block if promises.partial_hits else layout.scheduler_block,
        prefix_cache_retention_interval=promises.retention,
    )
    cache = Call("KVCacheConfig", num_blocks=layout.num_blocks, kv_cache_tensors=Name("[]"), kv_cache_groups=groups)
    cache.arguments.append(("", supported))
    yield code(cache, 4, "cache = ")
    yield "register_all_kvcache_specs(config)"
    yield "init_none_hash(sha256)"


def _group(index: int, group: Group, layout: Layout) -> Call:
    flag = {"is_eagle_group": True} if group.eagle else {}
    return Call("KVCacheGroupSpec", [f"layer.{index}"], _spec(group, layout), **flag)


def _spec(group: Group, layout: Layout) -> Call:
    name, dtype = _SPECS[group.kind], Name("dtype")
    if group.kind == "mamba":
        made = Call(
            name,
            block_size=group.block_size,
            shapes=Name(f"(({group.variant}, 1),)"),
            dtypes=Name("(dtype,)"),
            mamba_cache_mode="align",
            num_speculative_blocks=group.speculative_blocks,
        )
        if group.checkpoint_blocks:
            values = (group.checkpoint_blocks, group.checkpoint_alignment)
            made.arguments += [(f"{name}=", value) for name, value in zip(CHECKPOINTS, values, strict=True)]
        return made
    made = Call(name, block_size=group.block_size, num_kv_heads=group.variant, head_size=1, dtype=dtype)
    if group.kind == "sliding_window":
        made.arguments.append(("sliding_window=", group.window))
        if layout.reprefillable:
            retained = Call("**supported", Name(name), extra_retained_tokens=layout.reprefillable)
            made.arguments.append(("", retained))
    if group.kind == "chunked_local":
        made.arguments.append(("attention_chunk_size=", group.chunk))
    return made
