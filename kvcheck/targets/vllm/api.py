"""What kvcheck needs of a release, in terms of the newest API generation it knows (0.31 and later).

Older generations override what they do differently, each in a module of its own; ``for_release`` chooses. Keyword
arguments that a release does not have are left out by its signatures, so only real differences need code.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kvcheck.model.actions import Arrive, Extend
from kvcheck.model.layout import Drafter, Group, Layout
from kvcheck.model.observation import Promises
from kvcheck.targets.base import StepOutput, UnsupportedLayout
from kvcheck.targets.vllm.config import Settings, apply_retention
from kvcheck.targets.vllm.connector import set_handler
from kvcheck.targets.vllm.given import NoGrammar
from kvcheck.targets.vllm.loading import Runtime

DEFAULT_RETENTION = (0, 29)
CHECKPOINTS_ON_HIT_UNIT = (0, 32)


def accepted(callable_: Callable[..., Any], **keywords: Any) -> dict[str, Any]:
    """Those of the keywords that the callable knows."""
    known = _parameters(callable_)
    return {name: value for name, value in keywords.items() if name in known}


@functools.cache
def _parameters(callable_: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(callable_).parameters)


class _InOrder(set[Any]):
    """A set that is gone through in order, so that what is done for each member is the same in every process."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__()))


class Api:
    """The release's classes, and one server's worth of objects made of them."""

    def __init__(self, runtime: Runtime) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1 import kv_cache_interface, outputs, request
        from vllm.v1.core import kv_cache_utils, single_type_kv_cache_manager
        from vllm.v1.core.sched import async_scheduler, interface, scheduler

        single_type_kv_cache_manager.register_all_kvcache_specs(None)
        kv_cache_utils.init_none_hash(sha256)
        self._runtime = runtime
        self.era = runtime.era
        self.aborted = request.RequestStatus.FINISHED_ABORTED
        self._interface, self._outputs, self._request = kv_cache_interface, outputs, request
        self._utils, self._hash = kv_cache_utils, sha256
        self._schedulers = {False: scheduler.Scheduler, True: async_scheduler.AsyncScheduler}
        self._pauses = interface.PauseState
        self._sampling = SamplingParams
        self._configs: dict[tuple[Layout, int | None], tuple[Settings, Any, Any]] = {}
        self._hashers: dict[tuple[int, int], Any] = {}

    # ---- what a layout becomes -----------------------------------------------------------------------------------

    def supports(self, layout: Layout) -> str:
        """Why the release cannot express the layout; empty if it can."""
        if any(g.checkpoint_blocks for g in layout.groups) and self.era < CHECKPOINTS_ON_HIT_UNIT:
            return "prefill checkpoint blocks are driven from 0.32 on"
        if layout.connector is not None and layout.connector.reports == "request" and not self.reports_requests:
            return "the release has no failed loads by request"
        by_blocks = layout.connector is not None and layout.connector.reports == "blocks"
        if by_blocks and len(layout.groups) > 1 and self.reports_requests:
            return "with several groups the release wants failed loads by request"
        if self.era < DEFAULT_RETENTION and self.retention(layout) is not None and not layout.sparse:
            return "the release refuses a retention interval without a sliding-window or Mamba group"
        try:
            self._config(layout)
        except UnsupportedLayout as error:
            return str(error)
        return ""

    @property
    def reports_requests(self) -> bool:
        """Whether a failed load can be told by request."""
        return "failed_recving" in self._outputs.KVConnectorOutput.__dataclass_fields__

    def retention(self, layout: Layout) -> int | None:
        """The retention interval in tokens that the layout means on this release; None is dense (R5.6)."""
        if layout.retention == "release":
            return 0 if self.era >= DEFAULT_RETENTION and not self._dense_by_default(layout) else None
        return None if layout.retention == "dense" else layout.retention

    def _dense_by_default(self, layout: Layout) -> bool:
        """0.29 alone spares hybrid models whose drafter would make the one state that it keeps useless (R12.20)."""
        return self.era == (0, 29) and layout.has_mamba and bool(layout.drafter and layout.drafter.is_eagle)

    def promises(self, layout: Layout) -> Promises:
        """What the release does on purpose for this layout (R12)."""
        lookahead = self._hash_lookahead(layout)
        drops = layout.eagle_groups if layout.drafter and self._drops(layout.drafter) and not lookahead else ()
        return Promises(
            hash_lookahead=lookahead,
            drops=tuple(sorted(drops)),
            retention=self.retention(layout),
            partial_hits=layout.partial_hits or self._partial_hits_under_dcp(layout),
            prompt_tail=1 if self.era >= (0, 32) else 0,
            failed_by_request=self._failed_by_request(layout),
            checkpoint_unit=self._checkpoint_unit(layout),
        )

    def _checkpoint_unit(self, layout: Layout) -> int | None:
        if not any(g.checkpoint_blocks for g in layout.groups):
            return None
        return self._hit_unit(layout)

    def _hit_unit(self, layout: Layout) -> int:
        """Every hit of this release is a multiple of this many tokens (R3.6)."""
        partial = layout.partial_hits or self._partial_hits_under_dcp(layout)
        return layout.hash_block if partial else layout.scheduler_block

    def _failed_by_request(self, layout: Layout) -> bool:
        """How a failed load is told where the layout leaves it to the release."""
        reports = layout.connector.reports if layout.connector else "release"
        return reports == "request" or (reports == "release" and self.reports_requests and len(layout.groups) > 1)

    def _hash_lookahead(self, layout: Layout) -> int:
        config = self._config(layout)[1]
        return int(config.num_hash_lookahead_tokens) if self.era >= (0, 33) else 0

    def _drops(self, drafter: Drafter) -> bool:
        return drafter.is_eagle and not (self.era >= (0, 33) and drafter.method in ("dflash", "dspark"))

    def _partial_hits_under_dcp(self, layout: Layout) -> bool:
        """From 0.29 on DCP allows them, also where the Mamba block is the hash block (R12.2)."""
        h = layout.hash_block
        several = layout.caching and layout.dcp > 1 and len(layout.groups) > 1 and self.era >= (0, 29)
        return several and any(g.kind == "mamba" and g.block_size >= h for g in layout.groups)

    def _config(self, layout: Layout) -> tuple[Settings, Any, Any]:
        """Settings, engine configuration and cache configuration of a layout, built once."""
        key = (layout, self.retention(layout))
        if key not in self._configs:
            if len(self._configs) > 64:
                self._configs.clear()
            try:
                settings = self._settings(layout)
                config = self._runtime.config(settings)
            except ValueError as error:
                raise UnsupportedLayout(f"the release refuses this layout: {error}") from error
            self._configs[key] = settings, config, self._cache_config(layout)
        return self._configs[key]

    def _settings(self, layout: Layout) -> Settings:
        drafter, connector = layout.drafter, layout.connector
        return Settings(
            num_blocks=layout.num_blocks,
            chunk_block_size=layout.chunk_grid,
            max_model_len=layout.max_model_len,
            max_requests=layout.max_requests,
            token_budget=layout.token_budget,
            long_prefill_threshold=layout.long_prefill_threshold,
            watermark=layout.watermark,
            admit_whole=layout.admit_whole,
            policy=layout.policy,
            caching=layout.caching,
            asynchronous=layout.asynchronous,
            steps_in_flight=layout.steps_in_flight,
            drafter=drafter.method if drafter else None,
            draft_tokens=drafter.tokens if drafter else 0,
            draft_modules=drafter.modules if drafter else 1,
            connector=f"kv_{connector.role}" if connector else None,  # type: ignore[arg-type]
            load_failure_policy=connector.failure if connector else "recompute",
            mamba_align=layout.has_mamba,
            worker_generation=layout.worker_generation,
            dcp=layout.dcp,
            events=layout.events,
            retention=self.retention(layout),
        )

    def _cache_config(self, layout: Layout) -> Any:
        zeroing = layout.zeroing or layout.has_mamba

        class Config(self._interface.KVCacheConfig):  # type: ignore[name-defined,misc]
            needs_kv_cache_zeroing = property(lambda _self: zeroing)

        group_class = self._interface.KVCacheGroupSpec
        groups = [
            group_class([f"{g.kind}.{i}"], self._spec(g, layout), is_eagle_group=g.eagle)
            for i, g in enumerate(layout.groups)
        ]
        extra = accepted(
            self._interface.KVCacheConfig,
            hash_block_size=layout.hash_block,
            cache_hit_alignment_tokens=self._hit_unit(layout),
        )
        return Config(num_blocks=layout.num_blocks, kv_cache_tensors=[], kv_cache_groups=groups, **extra)

    def _spec(self, group: Group, layout: Layout) -> Any:
        dtype = self._runtime.dtype("float32")
        if group.kind == "mamba":
            return self._interface.MambaSpec(
                block_size=group.block_size,
                shapes=((group.variant, 1),),
                dtypes=(dtype,),
                mamba_cache_mode="align",
                num_speculative_blocks=group.speculative_blocks,
                **accepted(
                    self._interface.MambaSpec,
                    num_prefill_checkpoint_blocks=group.checkpoint_blocks,
                    prefill_checkpoint_alignment=group.checkpoint_alignment,
                ),
            )
        common = {"block_size": group.block_size, "num_kv_heads": group.variant, "head_size": 1, "dtype": dtype}
        if group.kind == "full":
            return self._interface.FullAttentionSpec(**common)
        if group.kind == "mla":
            return self._interface.MLAAttentionSpec(**common)
        if group.kind == "chunked_local":
            return self._interface.ChunkedLocalAttentionSpec(attention_chunk_size=group.chunk, **common)
        spec = self._interface.SlidingWindowSpec
        retained = accepted(spec, extra_retained_tokens=layout.reprefillable)
        return spec(sliding_window=group.window, **retained, **common)

    def manager(self, layout: Layout) -> Any:
        """A cache manager with this layout, without a scheduler."""
        from vllm.v1.core.kv_cache_manager import KVCacheManager

        settings, config, cache = self._config(layout)
        rest = accepted(
            KVCacheManager.__init__,
            max_in_flight_tokens=config.max_in_flight_tokens,
            num_prefill_lookahead=layout.prefill_lookahead,
            dcp_world_size=layout.dcp,
            watermark=layout.watermark,
            num_hash_lookahead_tokens=self._hash_lookahead(layout),
        )
        return KVCacheManager(
            kv_cache_config=apply_retention(settings, cache),
            max_model_len=layout.max_model_len,
            scheduler_block_size=layout.scheduler_block,
            hash_block_size=layout.hash_block,
            enable_caching=layout.caching,
            use_eagle=bool(layout.drafter and self._drops(layout.drafter) and not self._hash_lookahead(layout)),
            enable_kv_cache_events=layout.events,
            **rest,
        )

    def scheduler(self, layout: Layout, handler: Any) -> Any:
        """A scheduler with this layout; ``handler`` answers for its connector."""
        settings, config, cache = self._config(layout)
        set_handler(handler)
        scheduler = self._schedulers[layout.asynchronous]
        return scheduler(
            vllm_config=config,
            kv_cache_config=apply_retention(settings, cache),
            structured_output_manager=NoGrammar(),
            block_size=layout.scheduler_block,
            hash_block_size=layout.hash_block,
            log_stats=False,
        )

    # ---- requests ------------------------------------------------------------------------------------------------

    def request(self, arrive: Arrive, layout: Layout, order: int) -> Any:
        """The server's request object; ``order`` stands for the time of arrival."""
        return self._make_request(arrive, arrive.prompt, arrive.max_tokens, layout, order, arrive.session)

    def update(self, first: Arrive, extend: Extend, layout: Layout, order: int) -> Any:
        """A request object that continues a session, or ends it if it has no tokens."""
        return self._make_request(first, extend.prompt or (0,), extend.max_tokens, layout, order, bool(extend.prompt))

    def _make_request(
        self, arrive: Arrive, prompt: tuple[int, ...], max_tokens: int, layout: Layout, order: int, resumable: bool
    ) -> Any:
        sampling = self._sampling(max_tokens=max_tokens, ignore_eos=True)
        sampling.stop_token_ids = [] if arrive.stop is None else [arrive.stop]
        sampling.skip_reading_prefix_cache = arrive.skip_reading
        made = self._request.Request
        return made(
            request_id=arrive.label,
            prompt_token_ids=list(prompt),
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=float(order),
            cache_salt=arrive.salt or None,
            lora_request=self._adapter(arrive.adapter) if arrive.adapter else None,
            priority=arrive.priority,
            block_hasher=self._hasher(layout) if layout.caching or layout.connector else None,
            resumable=resumable,
            **accepted(made, eos_token_id=None),
        )

    def _hasher(self, layout: Layout) -> Any:
        key = layout.hash_block, self._hash_lookahead(layout)
        if key not in self._hashers:
            make = self._utils.get_request_block_hasher
            extra = accepted(make, num_hash_lookahead_tokens=key[1])
            self._hashers[key] = make(key[0], self._hash, **extra)
        return self._hashers[key]

    @staticmethod
    def _adapter(number: int) -> Any:
        from vllm.lora.request import LoRARequest

        return LoRARequest(lora_name=f"adapter-{number}", lora_int_id=number, lora_path="nowhere")

    # ---- steps ---------------------------------------------------------------------------------------------------

    def runner_output(self, planned: Any, output: StepOutput, layout: Layout) -> Any:
        """What the worker sends back for a step."""
        labels = list(planned.num_scheduled_tokens)
        return self._outputs.ModelRunnerOutput(
            req_ids=labels,
            req_id_to_index={label: i for i, label in enumerate(labels)},
            sampled_token_ids=[list(output.sampled.get(label, ())) for label in labels],
            kv_connector_output=self._connector_output(output) if layout.connector else None,
        )

    def _connector_output(self, output: StepOutput) -> Any:
        made = self._outputs.KVConnectorOutput
        return made(
            finished_sending=_InOrder(output.sent),
            finished_recving=_InOrder(output.received),
            invalid_block_ids=_InOrder(output.invalid),
            **accepted(made, failed_recving=_InOrder(output.failed)),
        )

    def draft_token_ids(self, labels: list[str], drafts: list[list[int]]) -> Any:
        """Drafts for the next step."""
        return self._outputs.DraftTokenIds(labels, drafts)

    def pause(self, scheduler: Any, what: str) -> bool:
        """Set the pause state by its name."""
        names = {"none": "UNPAUSED", "new": "PAUSED_NEW", "all": "PAUSED_ALL"}
        scheduler.set_pause_state(self._pauses[names[what]])
        return True

    # ---- bookkeeping ---------------------------------------------------------------------------------------------

    def external_hash(self, value: Any) -> Any:
        """A block hash as KV events tell it."""
        return self._utils.maybe_convert_block_hash(value)

    @staticmethod
    def key_map(pool: Any) -> Iterator[tuple[bytes, tuple[int, ...]]]:
        """All keys, with the blocks that each of them names."""
        for raw, blocks in pool.cached_block_hash_to_block._cache.items():
            yield raw, tuple(blocks) if isinstance(blocks, dict) else (blocks.block_id,)

    def waiting(self, scheduler: Any) -> Iterable[Iterable[Any]]:
        """The queues of requests that do not run. What the scheduler calls deferred are some of these, in a set."""
        return scheduler.waiting, scheduler.kv_holding_waiting

    def holders(self, manager: Any, scheduler: Any) -> tuple[tuple[tuple[int, int], ...], int]:
        """References held outside the tables, by block, and how many blocks await a step in flight."""
        held: dict[int, int] = {}
        deferred = 0
        for _, blocks in scheduler.deferred_frees if scheduler is not None else ():
            deferred += len(blocks)
            self._count(held, blocks)
        for single in manager.coordinator.single_type_managers:
            for pair in single._pending_cow_copies:
                self._count(held, pair)
        return tuple(sorted(held.items())), deferred

    @staticmethod
    def _count(held: dict[int, int], blocks: Iterable[Any]) -> None:
        for block in blocks:
            if not block.is_null:
                held[block.block_id] = held.get(block.block_id, 0) + 1


def for_release(runtime: Runtime) -> Api:
    """The API of a loaded release; a release newer than those known is tried with the newest generation."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.scheduler import Scheduler

    from kvcheck.targets.vllm.api_027 import Api027
    from kvcheck.targets.vllm.api_030 import Api030

    if "kv_holding_waiting" in inspect.getsource(Scheduler.__init__):
        return Api(runtime)
    if hasattr(KVCacheManager, "finalize_partial_tail_offloads"):
        return Api030(runtime)
    return Api027(runtime)
