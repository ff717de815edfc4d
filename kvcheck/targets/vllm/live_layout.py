"""What a running scheduler was configured with, as a layout; and what of it no layout can say."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from kvcheck.model.layout import Connector, Drafter, Group, Kind, Layout, Method, problems

_KINDS: dict[str, Kind] = {
    "FullAttentionSpec": "full",
    "MLAAttentionSpec": "mla",
    "SlidingWindowSpec": "sliding_window",
    "SlidingWindowMLASpec": "sliding_window",
    "ChunkedLocalAttentionSpec": "chunked_local",
    "MambaSpec": "mamba",
}
_SCHEDULERS = ("Scheduler", "AsyncScheduler")
_WITHOUT_EFFECT = frozenset({
    "log_stats", "kv_metrics_collector", "metrics_collector", "perf_metrics", "connector_prefix_cache_stats",
    "prefix_cache_stats", "finished_req_ids_dict", "include_finished_set", "max_num_encoder_input_tokens",
    "lora_config", "kv_events_config", "spec_decode_metrics_level",
})  # fmt: skip
"""Attributes that tell of statistics, and of limits that only requests from outside the vocabulary meet."""

Setting = bool | int | float | str | None


class Outside(Exception):
    """A server that no layout can say; the message says why."""


def layout_of(scheduler: Any) -> Layout:
    """The layout of a scheduler that has just been made.

    Raises:
        Outside: there is none.
    """
    for why in _outside(scheduler):
        raise Outside(why)
    config, cache = scheduler.vllm_config, scheduler.kv_cache_config
    settings = config.scheduler_config
    coordinator = scheduler.kv_cache_manager.coordinator
    retention = getattr(cache, "prefix_cache_retention_interval", getattr(coordinator, "retention_interval", None))
    layout = Layout(
        groups=tuple(_groups(cache.kv_cache_groups)),
        num_blocks=cache.num_blocks,
        max_model_len=scheduler.max_model_len,
        token_budget=settings.max_num_batched_tokens,
        max_requests=settings.max_num_seqs,
        long_prefill_threshold=settings.long_prefill_token_threshold,
        watermark=settings.watermark,
        admit_whole=settings.scheduler_reserve_full_isl,
        policy=settings.policy,
        caching=bool(scheduler.cache_config.enable_prefix_caching),
        retention="dense" if retention is None else retention,
        drafter=_drafter(config.speculative_config),
        steps_in_flight=config.max_concurrent_batches,
        connector=_connector(scheduler),
        dcp=config.parallel_config.decode_context_parallel_size,
        zeroing=bool(cache.needs_kv_cache_zeroing),
        worker_generation=2 if config.use_v2_model_runner else 1,
        events=scheduler.enable_kv_cache_events,
    )
    layout = _fitted(layout, scheduler)
    if found := problems(layout):
        raise Outside(f"its configuration is no layout: {'; '.join(found)}")
    return layout


def settings_of(scheduler: Any) -> dict[str, Setting]:
    """The plain attributes of a scheduler and of what it is made of; "set" stands for anything that is not plain.

    A server that is made from the layout must have the same, or the layout does not say all of it.
    """
    manager = scheduler.kv_cache_manager
    singles = enumerate(manager.coordinator.single_type_managers)
    parts = {"scheduler": scheduler, "manager": manager, "coordinator": manager.coordinator}
    parts |= {f"group {index}": single for index, single in singles}
    return {
        f"{part}.{name}": value if isinstance(value, bool | int | float | None) else "set"
        for part, thing in parts.items()
        for name, value in _attributes(thing)
        if name not in _WITHOUT_EFFECT
    }


def _attributes(thing: object) -> Iterator[tuple[str, Any]]:
    """The attributes of an object: those names in its classes' methods that it has.

    Its ``__dict__`` is not asked for: CPython would keep a dictionary for it from then on, and each access to one of
    its attributes would be slower, which costs a scheduler six per cent of its time.
    """
    kind = type(thing)
    methods = [inspect.unwrap(one) for base in kind.__mro__ for one in vars(base).values() if inspect.isfunction(one)]
    told = {name for method in methods for name in method.__code__.co_names}
    for name in sorted(told):
        is_computed = hasattr(inspect.getattr_static(kind, name, None), "__get__")  # a method or a property
        if not is_computed and hasattr(thing, name):
            yield name, getattr(thing, name)


def differing(live: dict[str, Setting], made: dict[str, Setting]) -> list[str]:
    """Where a server that was made from a layout is not what the live one was. What only the one made has says
    nothing: it has hooks of its own."""
    absent = "absent"
    pairs = ((name, live[name], made.get(name, absent)) for name in sorted(live))
    return [f"{name} is {theirs} and not {ours}" for name, theirs, ours in pairs if theirs != ours]


def _outside(scheduler: Any) -> Iterator[str]:
    config, kind = scheduler.vllm_config, type(scheduler)
    if kind.__name__ not in _SCHEDULERS or not kind.__module__.startswith("vllm.v1.core.sched."):
        yield f"its scheduler is a class of its own, {kind.__name__}"
    if config.parallel_config.pipeline_parallel_size > 1:
        yield "pipeline parallelism"
    if scheduler.is_encoder_decoder:
        yield "an encoder-decoder model"
    if config.model_config.runner_type != "generate":
        yield f"a model that does not generate ({config.model_config.runner_type})"
    if not config.scheduler_config.enable_chunked_prefill:
        yield "prefills that are not cut into chunks"
    if config.scheduler_config.async_scheduling != (config.max_concurrent_batches > 1):
        yield "steps that overlap without asynchronous scheduling"
    if getattr(scheduler, "requires_kv_delivery", False):
        yield "a connector that requires delivery"
    for group in scheduler.kv_cache_config.kv_cache_groups:
        if type(group.kv_cache_spec).__name__ not in _KINDS:
            yield f"a group of {type(group.kv_cache_spec).__name__}"
        if getattr(group, "host_resident", False) or not getattr(group, "enable_kv_transfer", True):
            yield "a group that lies elsewhere, or is not transferred"
        if not getattr(group.kv_cache_spec, "prefix_cacheable", True):
            yield "a group without prefix caching"
        if getattr(group.kv_cache_spec, "mamba_cache_mode", "align") != "align":
            yield "Mamba layers in another mode than align"


def _groups(specs: list[Any]) -> Iterator[Group]:
    """Groups that are not equal and would look so get different variants."""
    known: list[tuple[Any, Group]] = []
    for one in specs:
        spec = one.kv_cache_spec
        group = next((group for equal, group in known if equal == spec), None)
        if group is None:
            plain = _group(spec)
            alike = sum(msgspec.structs.replace(group, variant=1) == plain for _, group in known)
            group = msgspec.structs.replace(plain, variant=1 + alike)
            known.append((spec, group))
        yield msgspec.structs.replace(group, eagle=bool(one.is_eagle_group))


def _group(spec: Any) -> Group:
    kind = _KINDS[type(spec).__name__]
    if kind == "sliding_window":
        return Group(kind=kind, block_size=spec.block_size, window=spec.sliding_window)
    if kind == "chunked_local":
        return Group(kind=kind, block_size=spec.block_size, chunk=spec.attention_chunk_size)
    if kind == "mamba":
        return Group(
            kind=kind,
            block_size=spec.block_size,
            speculative_blocks=spec.num_speculative_blocks,
            checkpoint_blocks=getattr(spec, "num_prefill_checkpoint_blocks", 0),
            checkpoint_alignment=getattr(spec, "prefill_checkpoint_alignment", None),
        )
    return Group(kind=kind, block_size=spec.block_size)


def _drafter(config: Any) -> Drafter | None:
    if config is None:
        return None
    if config.method not in get_args(Method):
        raise Outside(f"a drafter of the method {config.method}")
    modules = 1
    if config.method == "mtp":
        modules = getattr(config.draft_model_config.hf_config, "num_nextn_predict_layers", 1)
    return Drafter(method=config.method, tokens=config.num_speculative_tokens, modules=modules)


def _connector(scheduler: Any) -> Connector | None:
    if scheduler.connector is None:
        return None
    config = scheduler.vllm_config.kv_transfer_config
    return Connector(
        role=config.kv_role.removeprefix("kv_"),
        divergent=bool(getattr(scheduler.connector, "supports_divergent_local_hybrid_hits", False)),
        failure=config.kv_load_failure_policy,
    )


def _fitted(layout: Layout, scheduler: Any) -> Layout:
    """With the match unit and the grid of the live server, where they are not those that follow from the rest."""
    if layout.hash_block != scheduler.hash_block_size and len(layout.groups) > 1:
        layout = msgspec.structs.replace(layout, match_unit=scheduler.hash_block_size)
    if layout.chunk_grid != scheduler.cache_config.block_size:
        layout = msgspec.structs.replace(layout, grid="smallest")
    if layout.has_mamba and layout.chunk_grid != scheduler.cache_config.block_size:
        raise Outside(f"prefills that are cut to {scheduler.cache_config.block_size} tokens")
    return layout
