"""What a release's own configuration code says of a model: its heads, and the shapes of its recurrent states.

Only with the release's dependencies (mode full). A model whose code cannot be imported, because something that only it
needs is missing, is asked for its heads alone.
"""

from __future__ import annotations

import importlib
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from kvcheck.files import one_line
from kvcheck.layouts.architectures import Server
from kvcheck.layouts.layers import State


class Stated(msgspec.Struct, frozen=True, kw_only=True):
    """``heads``: KV heads on one GPU; ``width``: elements of a head, of MLA its latent; ``shapes``: of the recurrent
    state, empty if there is none or it is not known; ``unknown``: why it is not."""

    heads: int
    width: int
    latent: bool
    shapes: tuple[tuple[int, ...], ...] = ()
    unknown: str = ""


def stated(raw: dict[str, Any], server: Server) -> Stated:
    """What the loaded release says.

    Raises:
        ValueError: it cannot make anything of the config.
    """
    with tempfile.TemporaryDirectory(prefix="kvcheck-model-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(raw), encoding="utf-8")
        try:
            model = importlib.import_module("vllm.config").ModelConfig(
                model=folder, tokenizer=folder, skip_tokenizer_init=True, enforce_eager=True
            )
        except Exception as error:
            raise ValueError(f"{type(error).__name__}: {one_line(error)[:200]}") from error
        parallel = SimpleNamespace(tensor_parallel_size=server.tensor_parallel)
        shapes, unknown = _state_shapes(model, parallel, server.drafts)
        return Stated(
            heads=int(model.get_num_kv_heads(parallel)),
            width=int(model.get_head_size()),
            latent=bool(model.use_mla),
            shapes=shapes,
            unknown=unknown,
        )


def _state_shapes(model: Any, parallel: Any, drafts: int) -> tuple[tuple[tuple[int, ...], ...], str]:
    """Shapes of the recurrent state of one layer, or why they are not known."""
    registry = importlib.import_module("vllm.model_executor.models.registry").ModelRegistry
    try:
        made = registry.models[model.hf_config.architectures[0]].load_model_cls()
        if not hasattr(made, "get_mamba_state_shape_from_config"):
            return (), ""
        engine = SimpleNamespace(
            model_config=model,
            parallel_config=parallel,
            speculative_config=SimpleNamespace(num_speculative_tokens=drafts) if drafts else None,
            num_speculative_tokens=drafts,
            cache_config=importlib.import_module("vllm.config").CacheConfig(),
        )
        shapes = made.get_mamba_state_shape_from_config(engine)
    except Exception as error:  # noqa: BLE001  whatever a model's code needs and does not find
        return (), f"{type(error).__name__}: {one_line(error)[:200]}"
    return tuple(tuple(int(size) for size in shape) for shape in shapes), ""


def with_shapes(states: tuple[State, ...], shapes: tuple[tuple[int, ...], ...]) -> tuple[State, ...]:
    """The states with other shapes, if there are as many."""
    if len(shapes) != len(states):
        return states
    return tuple(State(shape, state.element_bytes) for shape, state in zip(shapes, states, strict=True))
