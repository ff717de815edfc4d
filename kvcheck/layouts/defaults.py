"""What a model's configuration class takes for what its config.json leaves out, by ``model_type``.

Only what public configs do leave out: of a language model that stands alone what most of its kind share, of one that is
part of a multimodal model all sizes, because some are saved without what is their class's default. A class that takes
as many KV heads as heads, or the heads' share of the hidden size as their width, is not here: that is taken anyway.
"""

from __future__ import annotations

from typing import Any

_SWITCHED = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_GATED = {
    "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "max_position_embeddings": 32768,
}  # fmt: skip


def _sizes(hidden: int, layers: int, heads: int, kv_heads: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }


_QWEN2_VL = {**_sizes(8192, 80, 64, 8), **_SWITCHED, "max_window_layers": 80, "max_position_embeddings": 32768}

DEFAULTS: dict[str, dict[str, Any]] = {
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "ministral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "ministral3": {"num_key_value_heads": 8, "head_dim": 128},
    "mixtral": {"num_key_value_heads": 8},
    "qwen2": {"num_key_value_heads": 32, **_SWITCHED},
    "qwen2_moe": {"num_key_value_heads": 16, **_SWITCHED},
    "qwen2_vl_text": _QWEN2_VL,
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128, **_SWITCHED},
    "qwen3_moe": {"num_key_value_heads": 4, "use_sliding_window": False, "sliding_window": 4096},
    "qwen3_vl_text": {**_sizes(4096, 32, 32, 32), "head_dim": 128, "max_position_embeddings": 128000},
    "qwen3_vl_moe_text": {**_sizes(2048, 24, 16, 16), "max_position_embeddings": 128000},
    "phimoe": {"num_key_value_heads": 8},
    "gemma": {"num_key_value_heads": 16, "head_dim": 256},
    "gemma2": {"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
    "gemma3_text": {
        **_sizes(2304, 26, 8, 4), "head_dim": 256, "sliding_window": 4096, "max_position_embeddings": 131072,
    },
    "glm4": {"num_key_value_heads": 2, "head_dim": 128},
    "glm4_moe": {"num_key_value_heads": 8},
    "minimax_m2": {"num_key_value_heads": 8, "head_dim": 128},
    "seed_oss": {"num_key_value_heads": 8, "head_dim": 128},
    "ernie4_5": {"num_key_value_heads": 2, "head_dim": 128},
    "ernie4_5_moe": {"num_key_value_heads": 4},
    "gpt_oss": {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128},
    "cohere2": {"sliding_window": 4096},
    "llama4_text": {
        **_sizes(5120, 48, 40, 8), "head_dim": 128, "attention_chunk_size": 8192, "max_position_embeddings": 131072,
    },
    "qwen3_next": {"num_key_value_heads": 2, **_GATED},
    "qwen3_5_text": {**_sizes(4096, 32, 16, 4), **_GATED},
    "qwen3_5_moe_text": {**_sizes(2048, 40, 16, 2), **_GATED},
    "nemotron_h": {"num_key_value_heads": 8, "head_dim": 128, "n_groups": 8, "conv_kernel": 4},
    "granitemoehybrid": {"mamba_expand": 2},
    "falcon_h1": {"num_key_value_heads": 8, "mamba_expand": 2, "mamba_d_ssm": 1024},
    "jamba": {
        "num_key_value_heads": 8, "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_expand": 2, "mamba_d_conv": 4,
        "mamba_d_state": 16,
    },
}  # fmt: skip

_WITHIN = {"mistral3": "mistral"}


def defaults_of(model_type: object) -> dict[str, Any]:
    """The defaults of a model, or of the language model within it; none if it is not known here."""
    name = _WITHIN.get(str(model_type), str(model_type))
    return DEFAULTS.get(name) or DEFAULTS.get(f"{name}_text") or {}
