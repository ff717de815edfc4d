"""Which layers a public model has, by its architecture: read from its config.json alone.

One function a family; the table at the end says which architectures are of it. What is not said in a config is what
the model's code takes then: sizes are in ``kvcheck.layouts.defaults``, patterns of layers here. A new architecture is
one entry, or one function and its entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from kvcheck.files import InputError
from kvcheck.layouts.layers import DTYPE_BYTES, MOST_LAYERS, Config, Layer, State
from kvcheck.layouts.presets import CHECKPOINTS_SINCE

GDN_CHECKPOINTS_SINCE, GDN_CHECKPOINT_UNIT = (0, 33), 64
"""Release since which gated delta nets keep states within a prefill, if FlashInfer does that, and their unit in tokens.
"""
KDA_DTYPES_SINCE = (0, 30)
"""Release since which the type of KDA states can be chosen."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """What of a server's arguments the sizes of layers depend on. ``drafts``: a step; 0 without a drafter. ``kv_dtype``
    and the others: as given, "auto" if they were not. ``gdn_prefill``: the backend that prefills gated delta nets.
    ``release``: major and minor number."""

    tensor_parallel: int = 1
    drafts: int = 0
    dtype: str = "auto"
    kv_dtype: str = "auto"
    conv_dtype: str = "auto"
    state_dtype: str = "auto"
    gdn_prefill: str = "auto"
    release: tuple[int, int] = (0, 33)

    def model_bytes(self, config: Config) -> int:
        """Bytes of an element of the model: 32-bit models are served with 16 bits."""
        stated = config.value("dtype", config.value("torch_dtype", "bfloat16"))
        return self.bytes_of("bfloat16" if stated == "float32" else str(stated), self.dtype)

    def kv_bytes(self, config: Config) -> int:
        """Bytes of an element of keys and values."""
        return self.model_bytes(config) if self.kv_dtype == "auto" else self.bytes_of(self.kv_dtype)

    def state_bytes(self, config: Config, default: str | None = None) -> tuple[int, int]:
        """Bytes of an element of the convolution's and of the recurrent state. ``default``: of the latter, where the
        model asks for it."""
        conv = self.model_bytes(config) if self.conv_dtype == "auto" else self.bytes_of(self.conv_dtype)
        wanted = default if self.state_dtype == "auto" else self.state_dtype
        return conv, conv if wanted in (None, "auto") else self.bytes_of(str(wanted))

    @staticmethod
    def bytes_of(dtype: str, over: str = "auto") -> int:
        """Bytes of an element.

        Raises:
            InputError: no such type is known.
        """
        name = (dtype if over == "auto" else over).removeprefix("torch.")
        if name not in DTYPE_BYTES:
            raise InputError(f"the size of {name!r} is not known here ({', '.join(DTYPE_BYTES)} are)")
        return DTYPE_BYTES[name]

    def share(self, count: int, what: str) -> int:
        """What one GPU has of it.

        Raises:
            InputError: it cannot be shared evenly.
        """
        if count % self.tensor_parallel:
            raise InputError(f"{count} {what} cannot be spread over {self.tensor_parallel} GPUs")
        return count // self.tensor_parallel


Family = Callable[[Config, Server], list[Layer]]


def layers_of(config: Config, server: Server) -> list[Layer]:
    """The layers of a model that keep something, in their order.

    Raises:
        InputError: the architecture is not known here, or its config lacks something.
    """
    if not config.architecture:
        raise InputError("the config names no architecture: is it a model's config.json?")
    family = ARCHITECTURES.get(config.architecture)
    if family is None:
        raise InputError(
            f"the architecture {config.architecture} is not known here: which of its layers keep keys and values, a "
            "window or a recurrent state is missing; write the layout by hand (kvcheck layouts show NAME prints one)"
        )
    layers = family(config, server)
    if not layers:
        raise InputError("no layer of this model keeps anything, so it has no KV cache")
    return layers


def has_gated_delta(config: Config) -> bool:
    """Whether the model has gated delta nets."""
    return config.architecture in _GATED_DELTA


_MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers")


def mtp_layers(config: Config) -> int:
    """Layers of the drafter that comes with a model (MTP); 1 where the config does not say."""
    return config.number(*_MTP_LAYERS, default=1, most=MOST_LAYERS)


def require_mtp(config: Config) -> None:
    """Whether a drafter (MTP) comes with the model.

    Raises:
        InputError: its config names none, and models of this architecture come without.
    """
    if config.architecture not in _WITH_MTP and not any(config.has(name) for name in _MTP_LAYERS):
        raise InputError(
            f"no server would start with MTP: {config.architecture} comes without, and the config names no layers of "
            f"it ({', '.join(_MTP_LAYERS)})"
        )


def attention(config: Config, server: Server, window: int = 0, chunk: int = 0) -> Layer:
    """A layer of ordinary attention with the model's heads."""
    heads = config.number("num_attention_heads")
    total = config.number("num_key_value_heads", default=heads)
    width = config.number("head_dim", default=config.number("hidden_size") // heads)
    if not width:
        raise InputError(f"the config's hidden_size is less than its {heads} heads")
    return Layer(
        kind="sliding_window" if window else "chunked_local" if chunk else "full",
        heads=max(1, total // server.tensor_parallel),
        width=width,
        element_bytes=server.kv_bytes(config),
        window=window,
        chunk=chunk,
    )


def latent_attention(config: Config, server: Server) -> Layer:
    """A layer of MLA: one latent and the rotary part, the same on all GPUs."""
    width = config.number("kv_lora_rank") + config.number("qk_rope_head_dim")
    return Layer(kind="mla", heads=1, width=width, element_bytes=server.kv_bytes(config))


# ---- attention only --------------------------------------------------------------------------------------------------


_ATTENTION = ("full_attention", "sliding_attention")


def _plain(config: Config, server: Server) -> list[Layer]:
    """Full attention everywhere, or windows where the config names layers, or one window for all layers; one of 0
    tokens is none."""
    types = config.layer_words("layer_types", allowed=_ATTENTION)
    window = config.number("sliding_window", default=0, least=0)
    if types is None:
        return [attention(config, server, window)] * config.layers
    return _by_types(config, server, types, window)


def _switched(config: Config, server: Server) -> list[Layer]:
    """Full attention unless the config switches windows on; the servers know them for all layers only.

    Raises:
        InputError: some layers have windows.
    """
    if not config.value("use_sliding_window", False):
        return [attention(config, server)] * config.layers
    types = set(config.layer_words("layer_types", allowed=_ATTENTION) or ())
    if len(types) > 1 or (not types and config.number("max_window_layers", default=0, least=0)):
        raise InputError(f"windows in some layers of {config.architecture} are not known here (max_window_layers)")
    return _plain(config, server)


def _by_types(config: Config, server: Server, types: list[str], window: int) -> list[Layer]:
    """Windows and full attention, one word a layer."""
    if "sliding_attention" in types and not config.has("sliding_window"):
        raise InputError("the config has windowed layers and no sliding_window")
    return [attention(config, server, window * (kind == "sliding_attention")) for kind in types]


def _repeating(pattern: int, full: int = -1) -> Family:
    """Windows in all layers but one of each ``pattern``: the last (-1) or the one at ``full``; as the config lists
    them, if it does."""

    def family(config: Config, server: Server) -> list[Layer]:
        window = config.number("sliding_window")
        every = config.number("sliding_window_pattern", "_sliding_window_pattern", default=pattern)
        types = config.layer_words("layer_types", allowed=_ATTENTION) or [
            "full_attention" if index % every == full % every else "sliding_attention" for index in range(config.layers)
        ]
        return _by_types(config, server, types, window)

    return family


def _gpt_oss(config: Config, server: Server) -> list[Layer]:
    """Every other layer has a window, the first one among them, whatever the config lists."""
    window = config.number("sliding_window")
    return [attention(config, server, window * (index % 2 == 0)) for index in range(config.layers)]


def _cohere2(config: Config, server: Server) -> list[Layer]:
    """Its windows see one token more than they say."""
    layers = _repeating(4)(config, server)
    return [msgspec.structs.replace(one, window=one.window + 1) if one.window else one for one in layers]


def _llama4(config: Config, server: Server) -> list[Layer]:
    """Chunks in the layers that have rotary positions: by default three of four."""
    chunk = config.number("attention_chunk_size", default=0, least=0)
    every = config.number("no_rope_layer_interval", default=4)
    rotary = config.numbers("no_rope_layers") or [int((i + 1) % every != 0) for i in range(config.layers)]
    if len(rotary) < config.layers:
        raise InputError(f"the config lists {len(rotary)} no_rope_layers for {config.layers} layers")
    return [attention(config, server, chunk=chunk if rotary[i] else 0) for i in range(config.layers)]


def _mla(config: Config, server: Server) -> list[Layer]:
    return [latent_attention(config, server)] * config.layers


# ---- with recurrent layers -------------------------------------------------------------------------------------------


def _recurrent(shapes: Sequence[tuple[int, ...]], sizes: tuple[int, ...], checkpoint_unit: int = 0) -> Layer:
    states = tuple(State(shape, size) for shape, size in zip(shapes, sizes, strict=True))
    return Layer(kind="mamba", states=states, checkpoint_unit=checkpoint_unit)


def _gated_delta(config: Config, server: Server, dtype: str | None) -> Layer:
    """A gated delta net; each draft makes the state of its convolution longer by a token."""
    keys, values = config.number("linear_num_key_heads"), config.number("linear_num_value_heads")
    key, value = config.number("linear_key_head_dim"), config.number("linear_value_head_dim")
    channels = server.share(2 * keys * key + values * value, "channels")
    kernel = config.number("linear_conv_kernel_dim")
    shapes = [(kernel - 1 + server.drafts, channels), (server.share(values, "value heads"), value, key)]
    checkpoints = server.gdn_prefill == "flashinfer" and server.release >= GDN_CHECKPOINTS_SINCE
    return _recurrent(shapes, server.state_bytes(config, dtype), GDN_CHECKPOINT_UNIT * checkpoints)


def _gated_delta_hybrid(config: Config, server: Server) -> list[Layer]:
    """Three gated delta nets to one layer of full attention, or as the config lists them. The type of the state is
    that which the config asks for, if it does (Qwen3.5)."""
    every = config.number("full_attention_interval", default=4)
    types = config.layer_words("layer_types", allowed=("linear_attention", "full_attention")) or [
        "linear_attention" if (index + 1) % every else "full_attention" for index in range(config.layers)
    ]
    recurrent = _gated_delta(config, server, config.value("mamba_ssm_dtype"))
    return [recurrent if kind == "linear_attention" else attention(config, server) for kind in types]


def _kimi_linear(config: Config, server: Server) -> list[Layer]:
    """KDA layers, by their numbers from 1 on, and MLA; the recurrent state is kept in 32 bits, early releases are not
    told otherwise. Drafts make the state of the convolution longer from 0.27 on."""
    linear = config.value("linear_attn_config")
    if not isinstance(linear, dict):
        raise InputError("the config says nothing of linear_attn_config, which KimiLinearForCausalLM needs")
    own = Config({"architectures": [config.architecture], **linear})
    heads, width = own.number("num_heads"), own.number("head_dim")
    kept = own.number("short_conv_kernel_size") - 1 + (server.drafts if server.release >= (0, 27) else 0)
    shapes = [
        (kept, server.share(3 * heads * width, "channels")),
        (server.share(heads, "heads"), width, width),
    ]
    conv, state = server.state_bytes(config, "float32")
    recurrent = _recurrent(shapes, (conv, state if server.release >= KDA_DTYPES_SINCE else DTYPE_BYTES["float32"]))
    numbers = own.numbers("kda_layers")
    if numbers is None:
        raise InputError("the config's linear_attn_config says nothing of kda_layers")
    recurrent_at = {number - 1 for number in numbers}
    return [recurrent if i in recurrent_at else latent_attention(config, server) for i in range(config.layers)]


class _Mamba2(msgspec.Struct, frozen=True):
    """Sizes of a Mamba-2 layer of the whole model."""

    inner: int
    groups: int
    heads: int
    head_width: int
    state: int
    kernel: int

    def layer(self, config: Config, server: Server, drafts: int, dtype: str | None = None) -> Layer:
        """On one GPU: groups that cannot be spread are repeated."""
        gpus = server.tensor_parallel
        groups = self.groups if self.groups % gpus == 0 else gpus
        channels = server.share(self.inner + 2 * groups * self.state, "channels")
        shapes = [
            (self.kernel - 1 + drafts, channels),
            (server.share(self.heads, "heads"), self.head_width, self.state),
        ]
        return _recurrent(shapes, server.state_bytes(config, dtype), int(server.release >= CHECKPOINTS_SINCE))


_LETTERS = {
    "M": "mamba", "*": "attention", "-": "mlp", "E": "moe", "linear_attention": "mamba", "full_attention": "attention",
}  # fmt: skip
"""Letters, and words that newer configs have, for kinds of layers."""


def _nemotron_h(config: Config, server: Server) -> list[Layer]:
    """One letter a layer: M is Mamba-2, * attention, the others keep nothing. The state has 32 bits, unless the config
    says otherwise."""
    names = ("hybrid_override_pattern", "layers_block_type", "layer_types")
    words = config.layer_words(*names, allowed=[*_LETTERS, *_LETTERS.values()])
    if words is None:
        raise InputError(f"the config says nothing of hybrid_override_pattern, which {config.architecture} needs")
    heads, width = config.number("mamba_num_heads"), config.number("mamba_head_dim")
    sizes = _Mamba2(
        heads * width,
        config.number("n_groups"),
        heads,
        width,
        config.number("ssm_state_size"),
        config.number("conv_kernel"),
    )
    recurrent = sizes.layer(config, server, server.drafts, config.value("mamba_ssm_cache_dtype", "float32"))
    made = {"mamba": recurrent, "attention": attention(config, server)}
    kinds = [_LETTERS.get(word, word) for word in words]
    return [made[kind] for kind in kinds if kind in made]


def _named_mamba2(config: Config, server: Server, inner: int) -> Layer:
    """A Mamba-2 layer under the names that several models use; drafts make it longer from 0.32 on."""
    heads = config.number("mamba_n_heads")
    width = inner // heads if config.value("mamba_d_head", "auto") == "auto" else config.number("mamba_d_head")
    sizes = _Mamba2(
        inner,
        config.number("mamba_n_groups"),
        heads,
        width,
        config.number("mamba_d_state"),
        config.number("mamba_d_conv"),
    )
    return sizes.layer(config, server, server.drafts if server.release >= (0, 32) else 0)


def _granite_hybrid(config: Config, server: Server) -> list[Layer]:
    states, tokens = ("mamba", "linear_attention"), ("attention", "full_attention")
    types = config.layer_words("layer_types", "layers_block_type", allowed=(*states, *tokens))
    if types is None:
        raise InputError(f"the config says nothing of layer_types, which {config.architecture} needs")
    if not set(types).intersection(states):
        return [attention(config, server)] * len(types)
    inner = config.number("mamba_expand") * config.number("hidden_size")
    recurrent = _named_mamba2(config, server, inner)
    return [recurrent if kind in states else attention(config, server) for kind in types]


def _falcon_h1(config: Config, server: Server) -> list[Layer]:
    """Every layer has both kinds."""
    expanded = config.number("mamba_expand") * config.number("hidden_size")
    recurrent = _named_mamba2(config, server, config.number("mamba_d_ssm", default=expanded))
    return [attention(config, server), recurrent] * config.layers


def _jamba(config: Config, server: Server) -> list[Layer]:
    """Mamba-1, and attention once in each period."""
    period = config.number("attn_layer_period")
    offset = config.number("attn_layer_offset", least=0)
    inner = server.share(config.number("mamba_expand") * config.number("hidden_size"), "channels")
    shapes = [(config.number("mamba_d_conv") - 1, inner), (inner, config.number("mamba_d_state"))]
    recurrent = _recurrent(shapes, server.state_bytes(config))
    return [attention(config, server) if i % period == offset else recurrent for i in range(config.layers)]


# ---- the table -------------------------------------------------------------------------------------------------------

_PLAIN = (
    "LlamaForCausalLM", "InternLM3ForCausalLM", "MistralForCausalLM", "MinistralForCausalLM", "Ministral3ForCausalLM",
    "Mistral3ForConditionalGeneration", "MixtralForCausalLM", "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration", "Phi3ForCausalLM", "PhiMoEForCausalLM", "GemmaForCausalLM", "Glm4ForCausalLM",
    "Glm4MoeForCausalLM", "GraniteForCausalLM", "GraniteMoeForCausalLM", "OlmoeForCausalLM", "MiniMaxM2ForCausalLM",
    "SeedOssForCausalLM", "Ernie4_5ForCausalLM", "Ernie4_5_MoeForCausalLM", "CohereForCausalLM",
)  # fmt: skip
_SWITCHED = (
    "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration",
    "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
)  # fmt: skip
_LATENT = (
    "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration",
    "KimiVLForConditionalGeneration", "MistralLarge3ForCausalLM", "Glm4MoeLiteForCausalLM",
)  # fmt: skip
_GATED_DELTA = (
    "Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
)  # fmt: skip
_WITH_MTP = frozenset({
    *_GATED_DELTA, "DeepseekV3ForCausalLM", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM", "Ernie4_5_MoeForCausalLM",
})  # fmt: skip
"""Models of these come with a drafter (MTP), whether their config says so or not."""

ARCHITECTURES: dict[str, Family] = {
    **dict.fromkeys(_PLAIN, _plain),
    **dict.fromkeys(_SWITCHED, _switched),
    **dict.fromkeys(_LATENT, _mla),
    **dict.fromkeys(_GATED_DELTA, _gated_delta_hybrid),
    "Gemma2ForCausalLM": _repeating(2),
    "Gemma3ForCausalLM": _repeating(6),
    "Gemma3ForConditionalGeneration": _repeating(6),
    "GptOssForCausalLM": _gpt_oss,
    "Cohere2ForCausalLM": _cohere2,
    "Llama4ForCausalLM": _llama4,
    "Llama4ForConditionalGeneration": _llama4,
    "KimiLinearForCausalLM": _kimi_linear,
    "NemotronHForCausalLM": _nemotron_h,
    "GraniteMoeHybridForCausalLM": _granite_hybrid,
    "FalconH1ForCausalLM": _falcon_h1,
    "JambaForCausalLM": _jamba,
}
