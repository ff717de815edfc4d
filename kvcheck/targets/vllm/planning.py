"""A release's own code that makes groups of a model's layers, asked about layers that were derived from a config.

Under light loading too: the planning is part of the core, and needs nothing but the specs of the layers. With all
dependencies the release's configuration code is asked for the sizes of the layers as well.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

from kvcheck.files import InputError, one_line
from kvcheck.layouts.architectures import Server
from kvcheck.layouts.layers import Layer
from kvcheck.layouts.pages import LayerGroup, Sized
from kvcheck.model.layout import Kind
from kvcheck.targets.vllm.api import accepted
from kvcheck.targets.vllm.loading import Runtime, load
from kvcheck.targets.vllm.model_config import Stated, stated, with_shapes
from kvcheck.targets.vllm.release import Release

_DTYPES = {1: "uint8", 2: "bfloat16", 4: "float32"}
_PLANNERS = ("vllm.v1.core.kv_cache_planning", "vllm.v1.core.kv_cache_utils")
"""Where the planning is: a module of its own in later releases."""


class Planner:
    """The planning of one release, loaded into this process: a `Planning`."""

    def __init__(self, release: Release) -> None:
        self._spec = release.spec
        self._runtime: Runtime = load(release)
        from vllm.v1 import kv_cache_interface
        from vllm.v1.core import single_type_kv_cache_manager

        single_type_kv_cache_manager.register_all_kvcache_specs(None)
        self._interface = kv_cache_interface
        self._plan = next(found for name in _PLANNERS if (found := _planning(name)) is not None)

    def layers(self, raw: dict[str, Any], layers: Sequence[Layer], server: Server) -> tuple[list[Layer], list[str]]:
        """The layers with the sizes that the release itself gives them, and what was different or is not known."""
        if self._runtime.release.mode != "full":
            return list(layers), []
        try:
            said = stated(raw, server)
        except ValueError as error:
            return list(layers), [f"the target's own configuration code makes nothing of it: {error}"]
        made = [_corrected(layer, said) for layer in layers]
        recurrent = any(layer.kind == "mamba" for layer in layers)
        notes = (
            [f"the recurrent state is kvcheck's own derivation ({said.unknown})"] if said.unknown and recurrent else []
        )
        changed = sorted({layer.kind for layer, other in zip(layers, made, strict=True) if layer != other})
        return made, [
            *notes,
            *(f"the target's own configuration code has other sizes of {kind} layers" for kind in changed),
        ]

    def groups(self, layers: Sequence[Sized], hybrid_off: bool) -> list[LayerGroup]:
        """The groups of these layers.

        Raises:
            InputError: the release refuses them.
        """
        pages = [one.page for one in layers if one.layer.is_attention and not one.layer.draft]
        specs = {f"layers.{i}": self._layer_spec(one, max(pages, default=0)) for i, one in enumerate(layers)}
        try:
            groups = self._plan(_config(hybrid_off), specs)
        except (AssertionError, ValueError, NotImplementedError) as error:
            raise InputError(f"{self._spec} refuses the layers of this model: {one_line(error)}") from error
        return [self._group(group, layers) for group in groups]

    def _layer_spec(self, one: Sized, page: int) -> Any:
        layer, interface = one.layer, self._interface
        if layer.kind == "mamba":
            return interface.MambaSpec(
                block_size=one.block,
                shapes=tuple(state.shape for state in layer.states),
                dtypes=tuple(self._dtype(state.element_bytes) for state in layer.states),
                page_size_padded=page or None,
                mamba_cache_mode="align",
            )
        common = {
            "block_size": one.block,
            "num_kv_heads": layer.heads,
            "head_size": layer.width,
            "dtype": self._dtype(layer.element_bytes),
        }
        if layer.kind == "sliding_window":
            return interface.SlidingWindowSpec(sliding_window=layer.window, **common)
        if layer.kind == "chunked_local":
            return interface.ChunkedLocalAttentionSpec(attention_chunk_size=layer.chunk, **common)
        made = interface.MLAAttentionSpec if layer.kind == "mla" else interface.FullAttentionSpec
        return made(**common, **accepted(made, is_draft=layer.draft))

    def _dtype(self, element_bytes: int) -> Any:
        return self._runtime.dtype(_DTYPES[element_bytes])

    def _group(self, group: Any, layers: Sequence[Sized]) -> LayerGroup:
        members = tuple(int(name.rpartition(".")[2]) for name in group.layer_names)
        first = layers[members[0]].spec
        kind = self._kind(group.kv_cache_spec, first.layer)
        layer = (
            first.layer
            if kind == first.layer.kind
            else Layer(
                kind=kind, heads=first.layer.heads, width=first.layer.width, element_bytes=first.layer.element_bytes
            )
        )
        return LayerGroup(Sized(layer, int(group.kv_cache_spec.block_size)), members)

    def _kind(self, spec: Any, layer: Layer) -> Kind:
        """What the release made of a layer: without its hybrid cache manager, full attention of most."""
        return "full" if type(spec) is self._interface.FullAttentionSpec else layer.kind


def _corrected(layer: Layer, said: Stated) -> Layer:
    """The layer as the release has it. Layers of another kind than the release speaks of stay as they are."""
    if layer.kind == "mamba":
        return msgspec.structs.replace(layer, states=with_shapes(layer.states, said.shapes))
    if (layer.kind == "mla") != said.latent:
        return layer
    return msgspec.structs.replace(layer, heads=said.heads, width=said.width)


def _planning(name: str) -> Any:
    """The function that plans, if it is in this module. Sparse attention with caches on the host is not asked for here;
    what plans it is not among the modules of light loading."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        return None
    if hasattr(module, "get_hisparse_kv_cache_groups"):
        vars(module)["get_hisparse_kv_cache_groups"] = lambda _config, _specs: None
    return getattr(module, "get_kv_cache_groups", None)


def _config(hybrid_off: bool) -> Any:
    """What the planning asks the engine's configuration for."""
    layout = SimpleNamespace(is_block_outermost=False)
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=hybrid_off),
        cache_config=SimpleNamespace(get_resolved_kv_cache_layout=lambda: layout),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
        model_config=None,
        kv_transfer_config=None,
    )
