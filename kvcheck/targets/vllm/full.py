"""Full loading: a release as it is, with its own dependencies (torch, transformers, pydantic, ...) installed.

    load(resolve("path:DIR", mode="full"))
    config = full_config(settings)                          # a real VllmConfig, built offline

Nothing here needs a GPU, a model's weights or a network.
"""

# ruff: noqa: ARG002 - these are other people's signatures

from __future__ import annotations

import atexit
import dataclasses
import functools
import importlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from kvcheck.targets.errors import TargetError
from kvcheck.targets.vllm.config import CONNECTOR_CLASS, CONNECTOR_MODULE, Settings, check_block_size
from kvcheck.targets.vllm.finder import active_finder
from kvcheck.targets.vllm.release import Release

_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # vLLM seeds its hash chain with it: the same keys in each process
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_TARGET_DEVICE": "cpu",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
_TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "torch_dtype": "float32",
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 1000, "max_position_embeddings": 1 << 20,
    "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip


class _FromTree(MetaPathFinder):
    """Finds `vllm` in a tree, and nothing else there: a checkout has other folders that look like packages."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [str(self._root)]) if fullname == "vllm" else None


def load(release: Release) -> None:
    """Make `import vllm` in this process mean this release; one release a process."""
    if release.mode != "full":
        raise TargetError(f"{release.spec}: it was resolved for {release.mode} loading, not for full")
    if active_finder() is not None:
        raise TargetError(f"{release.spec}: this process has loaded a release in light mode")
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if release.origin != "installed":
        sys.meta_path.insert(0, _FromTree(release.root))
    try:
        vllm = importlib.import_module("vllm")
        importlib.import_module("vllm.config")
        importlib.import_module("vllm.v1.core.sched.async_scheduler")
    except ImportError as error:
        raise TargetError(f"{release.spec}: full loading lacks a dependency of vLLM: {error}") from error
    found = Path(str(vllm.__file__)).resolve().parent.parent
    if found != release.root:
        raise TargetError(f"{release.spec}: this process has already imported vLLM from {found}")
    if os.environ["VLLM_LOGGING_LEVEL"] == _ENVIRONMENT["VLLM_LOGGING_LEVEL"]:
        logging.getLogger("vllm").setLevel(logging.ERROR)  # some releases set the level up only when they serve
    _answer_for_the_model_registry()
    # The second worker generation is refused without Triton, which only its kernels need.
    importlib.import_module("vllm.config.vllm").HAS_TRITON = True  # type: ignore[attr-defined]


def full_config(settings: Settings) -> Any:
    """A real VllmConfig for these settings; a ValueError where the release refuses them."""
    config = importlib.import_module("vllm.config")
    model = _model_config(settings.max_model_len)
    parallel = _build(config.ParallelConfig)
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(settings.worker_generation - 1)
    made = config.VllmConfig(
        device_config=config.DeviceConfig(device="cpu"),
        model_config=model,
        parallel_config=parallel,
        scheduler_config=_scheduler_config(settings),
        cache_config=_cache_config(settings),
        kv_transfer_config=_transfer_config(settings),
        kv_events_config=_events_config(settings),
        speculative_config=_drafter_config(settings, model, parallel),
    )
    _as_after_start(made, config.VllmConfig, settings)
    check_block_size(made)
    return made


def _as_after_start(made: Any, config_class: Any, settings: Settings) -> None:
    """What the engine decides after profiling, or what __post_init__ changes for this machine and the tiny model."""
    made.cache_config.num_gpu_blocks = settings.num_blocks
    made.cache_config.block_size = settings.chunk_block_size
    made.cache_config.enable_prefix_caching = settings.caching
    made.cache_config.mamba_cache_mode = "align" if settings.mamba_align else "none"
    made.scheduler_config.async_scheduling = settings.asynchronous
    made.scheduler_config.disable_hybrid_kv_cache_manager = False
    made.parallel_config.decode_context_parallel_size = settings.dcp
    made.__class__ = _pinned(config_class, settings.worker_generation, settings.steps_in_flight)


@functools.cache
def _pinned(config_class: Any, generation: int, steps_in_flight: int | None) -> type:
    """VllmConfig that remembers its worker generation, which the real one asks the environment for at each read."""
    fixed: dict[str, Any] = {"use_v2_model_runner": generation == 2}
    if steps_in_flight is not None:
        fixed["max_concurrent_batches"] = steps_in_flight
    return type(config_class.__name__, (config_class,), fixed)


def _build(config_class: Any, **values: Any) -> Any:
    """A config object with those of the values that this release knows."""
    known = config_class.__dataclass_fields__  # InitVars too, unlike dataclasses.fields()
    return config_class(**{name: value for name, value in values.items() if name in known})


@functools.cache
def _model_config(max_model_len: int) -> Any:
    config = importlib.import_module("vllm.config")
    folder = _model_folder()
    return config.ModelConfig(
        model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=max_model_len,
        enforce_eager=True,
    )  # fmt: skip


@functools.cache
def _model_folder() -> str:
    """A model without weights: a folder with a config.json, removed at exit."""
    scratch = tempfile.TemporaryDirectory(prefix="kvcheck-model-")
    atexit.register(scratch.cleanup)
    (Path(scratch.name) / "config.json").write_text(json.dumps(_TINY_LLAMA), encoding="utf-8")
    return scratch.name


def _scheduler_config(settings: Settings) -> Any:
    config = importlib.import_module("vllm.config")
    return _build(
        config.SchedulerConfig,
        max_model_len=settings.max_model_len,
        is_encoder_decoder=False,
        max_num_seqs=settings.max_requests,
        max_num_batched_tokens=settings.token_budget,
        long_prefill_token_threshold=settings.long_prefill_threshold,
        watermark=settings.watermark,
        scheduler_reserve_full_isl=settings.admit_whole,
        policy=settings.policy,
        async_scheduling=settings.asynchronous,
        enable_chunked_prefill=True,
    )


def _cache_config(settings: Settings) -> Any:
    config = importlib.import_module("vllm.config")
    return _build(
        config.CacheConfig,
        block_size=settings.chunk_block_size,
        enable_prefix_caching=settings.caching,
        mamba_cache_mode="align" if settings.mamba_align else "none",
        enable_mamba_fine_grained_prefix_cache=settings.shared_prefix_checkpoint,
        enable_mamba_shared_prefix_checkpoint=settings.shared_prefix_checkpoint,
    )


def _transfer_config(settings: Settings) -> Any:
    if settings.connector is None:
        return None
    config = importlib.import_module("vllm.config")
    return _build(
        config.KVTransferConfig,
        kv_connector=CONNECTOR_CLASS,
        kv_connector_module_path=CONNECTOR_MODULE,
        kv_role=settings.connector,
        kv_load_failure_policy=settings.load_failure_policy,
    )


def _events_config(settings: Settings) -> Any:
    if not settings.events:
        return None
    config = importlib.import_module("vllm.config")
    return _build(config.KVEventsConfig, enable_kv_cache_events=True, publisher="null")


def _drafter_config(settings: Settings, model: Any, parallel: Any) -> Any:
    """A real SpeculativeConfig.

    Drafters with a model of their own are all configured as EAGLE, which any model's config will do for, and then told
    their method: what the scheduler asks of them depends on nothing else in the model than the number of MTP layers.
    """
    if settings.drafter is None:
        return None
    config = importlib.import_module("vllm.config")
    shared = {
        "num_speculative_tokens": settings.draft_tokens,
        "target_model_config": model,
        "target_parallel_config": parallel,
    }
    if settings.drafter == "ngram":
        return config.SpeculativeConfig(method="ngram", **shared)
    made = config.SpeculativeConfig(method="eagle", model=_model_folder(), **shared)
    made.method = settings.drafter
    made.parallel_drafting = settings.drafter in ("dflash", "dspark")
    made.draft_model_config.hf_config.num_nextn_predict_layers = settings.draft_modules
    return made


def _answer_for_the_model_registry() -> None:
    """Configuring a model asks about its class in a subprocess that imports the model's code; answer from here."""
    registry = importlib.import_module("vllm.model_executor.models.registry")

    def inspect_model_cls(_: object, architectures: Any, model_config: object) -> tuple[Any, str]:  # noqa: ARG001
        architecture = architectures if isinstance(architectures, str) else architectures[0]
        return _plain_decoder(registry._ModelInfo, architecture), architecture

    type(registry.ModelRegistry).inspect_model_cls = inspect_model_cls


def _plain_decoder(info_class: Any, architecture: str) -> Any:
    """Everything that is asked about a model class, for a decoder without specialities."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(info_class):
        kind = str(field.type)
        plain: Any = False if "bool" in kind else () if "tuple" in kind else None
        values[field.name] = plain if field.default is dataclasses.MISSING else field.default
    values.update(
        architecture=architecture,
        is_text_generation_model=True,
        attn_type="decoder",
        supports_pp=True,
        default_seq_pooling_type="LAST",
        default_tok_pooling_type="ALL",
    )
    return info_class(**values)
