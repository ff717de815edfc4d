"""Layouts from the configs of public models: the groups that their servers have, and the same scaled down.

The configs in tests/configs are written by hand and have no more than the facts that count.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcheck.files import InputError
from kvcheck.layouts.architectures import Server, layers_of
from kvcheck.layouts.from_config import Derived, derive, read_config
from kvcheck.layouts.layers import Config
from kvcheck.layouts.presets import PRESETS
from kvcheck.layouts.server_args import parse_server_args
from kvcheck.model.layout import Drafter, Layout, problems

CONFIGS = Path(__file__).parents[1] / "configs"
MTP = '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 2}\''
FLASHINFER = "--gdn-prefill-backend flashinfer"
EAGLE = "-sc.method eagle3 -sc.num_speculative_tokens 3"

GROUPS: dict[str, list[tuple[str, int, int, int]]] = {
    "llama-3.1-8b": [("full", 32, 16, 0)],
    "qwen2.5-7b": [("full", 28, 16, 0)],
    "phi-4": [("full", 40, 16, 0)],
    "mistral-7b-v0.1": [("sliding_window", 32, 16, 4096)],
    "gemma-3-27b": [("sliding_window", n, 16, 1024) for n in (9, 9, 9, 9, 8, 8)] + [("full", 10, 16, 0)],
    "gpt-oss-20b": [("sliding_window", 12, 16, 128), ("full", 12, 16, 0)],
    "llama-4-scout": [("chunked_local", 12, 16, 8192)] * 3 + [("full", 12, 16, 0)],
    "deepseek-v3": [("mla", 61, 16, 0)],
    "qwen3-next-80b-a3b": [("mamba", 12, 544, 0)] * 3 + [("full", 12, 544, 0)],
    "qwen3.5-35b-a3b": [("mamba", 10, 1056, 0)] * 3 + [("full", 10, 1056, 0)],
    "kimi-linear-48b-a3b": [("mamba", n, 1920, 0) for n in (7, 7, 6)] + [("mla", 7, 1920, 0)],
    "nemotron-h-8b": [("mamba", 4, 1040, 0)] * 6 + [("full", 4, 1040, 0)],
    "granite-4.0-h-small": [("mamba", 4, 528, 0)] * 9 + [("full", 4, 528, 0)],
    "falcon-h1-34b": [("full", 72, 1040, 0), ("mamba", 72, 1040, 0)],
    "jamba-v0.1": [("mamba", 4, 80, 0)] * 7 + [("full", 4, 80, 0)],
}
"""Kind, layers, block and reach in tokens of each group, without arguments: sizes that servers of these models log."""

SAME_SHAPE = {
    "llama-3.1-8b": ("full", ""),
    "qwen2.5-7b": ("full", ""),
    "gpt-oss-20b": ("gptoss", ""),
    "gemma-3-27b": ("gemma3", ""),
    "llama-4-scout": ("llama4", ""),
    "mistral-7b-v0.1": ("mistral_swa", ""),
    "deepseek-v3": ("dsv3_mtp", "-sc.method deepseek_mtp -sc.num_speculative_tokens 1"),
    "qwen3-next-80b-a3b": ("gdn_mtp", MTP),
    "qwen3.5-35b-a3b": ("gdn", ""),
    "granite-4.0-h-small": ("granite", ""),
    "falcon-h1-34b": ("falcon", ""),
    "jamba-v0.1": ("jamba", ""),
}
"""The preset of a model, with the arguments that it stands for."""


def derived(name: str, args: str = "", release: tuple[int, int] = (0, 33), **options: Any) -> Derived:
    return derive(read_config(CONFIGS / f"{name}.json"), parse_server_args(args), release, **options)


def changed(name: str, **fields: Any) -> dict[str, Any]:
    raw = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    return {key: value for key, value in {**raw, **fields}.items() if value != "gone"}


HOPPER = (
    "on Hopper and Blackwell the server has larger blocks, and keeps states within a prefill: add "
    "--gdn-prefill-backend flashinfer for these"
)
KDA = {"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4}


def groups_of(found: Derived) -> list[tuple[str, int, int, int]]:
    pairs = zip(found.real.groups, found.layers, strict=True)
    return [(g.kind, layers, g.block_size, g.window or g.chunk) for g, layers in pairs]


LEFT_OUT: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("llama-3.1-8b", ("head_dim",), {}),
    ("qwen2.5-7b", ("use_sliding_window", "sliding_window", "max_window_layers"), {}),
    ("mistral-7b-v0.1", ("num_key_value_heads", "sliding_window"), {}),
    ("gpt-oss-20b", ("num_key_value_heads", "head_dim", "sliding_window", "layer_types"), {}),
    ("llama-4-scout", ("num_attention_heads", "head_dim", "attention_chunk_size", "no_rope_layers"), {}),
    ("qwen3-next-80b-a3b", ("head_dim", "num_key_value_heads", "full_attention_interval", "layer_types"), {}),
    ("qwen3.5-35b-a3b", ("head_dim", "hidden_size", "num_attention_heads", "layer_types"), {}),
    ("granite-4.0-h-small", ("mamba_expand", "mamba_d_head"), {}),
    ("falcon-h1-34b", ("mamba_expand", "mamba_d_head"), {}),
    ("jamba-v0.1", ("num_key_value_heads", "attn_layer_period", "attn_layer_offset", "mamba_expand"), {}),
    ("nemotron-h-8b", ("num_key_value_heads", "head_dim", "n_groups", "conv_kernel"), {}),
    ("gemma-3-27b", ("head_dim", "num_attention_heads"), {"head_dim": 256, "num_attention_heads": 8}),
    ("gemma-3-27b", ("num_key_value_heads", "sliding_window"), {"num_key_value_heads": 4, "sliding_window": 4096}),
    ("falcon-h1-34b", ("mamba_d_ssm", "mamba_d_head"), {"mamba_d_ssm": 1024, "mamba_d_head": 32}),
]
"""What a config leaves out, and what it says instead where that is not what the model has."""


def with_fields(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """A config with other fields, in its language model if it has one; "gone": without it."""
    raw = read_config(CONFIGS / f"{name}.json")
    inner = raw.get("text_config", raw)
    inner.update(fields)
    for key in [key for key, value in inner.items() if value == "gone"]:
        del inner[key]
    return raw


def test_every_config_is_looked_at() -> None:
    assert {file.stem for file in CONFIGS.glob("*.json")} == set(GROUPS)


@pytest.mark.parametrize("name", list(GROUPS))
def test_the_groups_of_public_models(name: str) -> None:
    assert groups_of(derived(name)) == GROUPS[name]


@pytest.mark.parametrize(("name", "left_out", "said"), LEFT_OUT)
def test_what_a_config_leaves_out_is_what_its_class_takes(
    name: str, left_out: tuple[str, ...], said: dict[str, Any]
) -> None:
    found = derive(with_fields(name, dict.fromkeys(left_out, "gone")), parse_server_args(""))
    assert found == derive(with_fields(name, said), parse_server_args(""))


def test_a_default_does_not_stand_for_what_is_said() -> None:
    """Null is said: no window, no chunks, as many KV heads as heads."""
    for name, fields, kinds in (
        ("mistral-7b-v0.1", {"sliding_window": None}, {"full"}),
        ("mistral-7b-v0.1", {"sliding_window": 0}, {"full"}),
        ("llama-4-scout", {"attention_chunk_size": None}, {"full"}),
        ("qwen2.5-7b", {"use_sliding_window": True, "max_window_layers": 0}, {"sliding_window"}),
        ("llama-3.1-8b", {"use_sliding_window": False, "sliding_window": 64}, {"sliding_window"}),
    ):
        found = derive(with_fields(name, fields), parse_server_args(""))
        assert {group.kind for group in found.real.groups} == kinds, (name, fields)
    heads = derive(with_fields("jamba-v0.1", {"num_key_value_heads": None}), parse_server_args(""))
    assert {group.block_size for group in heads.real.groups} == {32}


def test_a_language_model_within_has_the_defaults_of_its_own_kind() -> None:
    """Mistral has a window unless the config says null; a later kind of the same name has none."""
    sizes = {"hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 32}
    outer = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3"}
    for kind, window in (("mistral", 4096), ("ministral3", 0), (None, 4096)):
        inner = {**sizes, **({"model_type": kind} if kind else {})}
        found = derive({**outer, "text_config": inner}, parse_server_args(""))
        assert [group.window for group in found.real.groups] == [window], kind


@pytest.mark.parametrize(
    ("name", "args", "block"),
    [
        ("qwen3-next-80b-a3b", "-tp 2", 544),
        ("qwen3-next-80b-a3b", "--tensor-parallel-size=4", 272),
        ("qwen3-next-80b-a3b", MTP, 560),
        ("qwen3-next-80b-a3b", "--kv-cache-dtype fp8", 1072),
        ("qwen3-next-80b-a3b", FLASHINFER, 576),
        ("qwen3-next-80b-a3b", "--gdn-prefill-backend triton", 544),
        ("kimi-linear-48b-a3b", "-tp 4", 512),
        ("kimi-linear-48b-a3b", "--mamba-ssm-cache-dtype bfloat16", 1024),
        ("nemotron-h-8b", "--mamba-ssm-cache-dtype float16", 528),
        ("deepseek-v3", "--block-size 64", 64),
    ],
)
def test_blocks_follow_from_the_arguments(name: str, args: str, block: int) -> None:
    assert {group.block_size for group in derived(name, args).real.groups} == {block}


@pytest.mark.parametrize("name", list(SAME_SHAPE))
def test_scaled_down_it_has_the_shape_of_the_preset(name: str) -> None:
    preset, args = SAME_SHAPE[name]
    ours, theirs = derived(name, args).layout, PRESETS[preset].layout()
    assert [g.kind for g in ours.groups] == [g.kind for g in theirs.groups]
    assert [(g.eagle, g.speculative_blocks, g.checkpoint_blocks) for g in ours.groups] == [
        (g.eagle, g.speculative_blocks, g.checkpoint_blocks) for g in theirs.groups
    ]
    assert ours.drafter == theirs.drafter
    assert len({g.block_size for g in ours.groups}) == len({g.block_size for g in theirs.groups})


def ratios(layout: Layout) -> list[float]:
    sizes = [g.block_size for g in layout.groups] + [layout.match_unit or layout.hash_block, layout.scheduler_block]
    return [size / sizes[0] for size in sizes]


@pytest.mark.parametrize("name", list(GROUPS))
@pytest.mark.parametrize("args", ["", "--prefix-match-unit 16", EAGLE, "--max-num-seqs 2 --max-model-len 8k"])
def test_scaled_down_it_keeps_its_ratios(name: str, args: str) -> None:
    if "match" in args and len(GROUPS[name]) == 1:
        return
    found = derived(name, args)
    real, small = found.real, found.layout
    assert not problems(small)
    assert small.max_model_len <= 256
    if not any("match units" in note for note in found.notes):
        assert ratios(small) == ratios(real)
    for before, after in zip(real.groups, small.groups, strict=True):
        reach, blocks = after.window or after.chunk, (before.window or before.chunk) / before.block_size
        assert reach == min(16, blocks) * after.block_size
    assert (small.partial_hits, len(small.eagle_groups)) == (real.partial_hits, len(real.eagle_groups))
    assert derived(name, args, full_size=True).layout == real


def side(a: int, b: int) -> bool:
    return a >= b


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mistral-7b-v0.1", "gpt-oss-20b", "qwen3.5-35b-a3b", "nemotron-h-8b"])
@pytest.mark.parametrize("budget", [20, 64, 512, 1056, 2048, 8192, 300_000])
@pytest.mark.parametrize("longest", [100, 1000, 5000, 131_072])
@pytest.mark.parametrize("threshold", ["", "--long-prefill-token-threshold 600"])
def test_scaled_down_sizes_are_on_the_same_side_of_each_other(
    name: str, budget: int, longest: int, threshold: str
) -> None:
    found = derived(name, f"--max-num-batched-tokens {budget} --max-model-len {longest} {threshold}")
    real, small = found.real, found.layout
    for before, after in zip(real.groups, small.groups, strict=True):
        reach, here = before.window or before.block_size, after.window or after.block_size
        for size in (before.block_size, reach):
            small_size = after.block_size if size == before.block_size else here
            assert side(real.token_budget, size) == side(small.token_budget, small_size)
            assert side(real.max_model_len, size) == side(small.max_model_len, small_size)
    assert side(real.token_budget, real.max_model_len) == side(small.token_budget, small.max_model_len)
    assert not any("tokens is below" in note or "tokens is not below" in note for note in found.notes) or threshold


def test_the_longest_request_is_cut_where_that_shows() -> None:
    cut = "requests of up to 10485760 tokens, 1000000 here"
    assert cut in derived("llama-4-scout", full_size=True).notes
    assert cut not in derived("llama-4-scout").notes


def test_an_order_that_cannot_be_kept_is_told() -> None:
    found = derived("qwen3-next-80b-a3b", f"{MTP} --max-num-batched-tokens 30 --max-num-seqs 2 --max-model-len 50")
    assert "a step of 30 tokens is below the longest request of 50; here 5 and 4" in found.notes


def test_what_became_of_the_sizes_that_were_given_is_told() -> None:
    found = derived("llama-3.1-8b", "--max-num-seqs 64 --max-num-batched-tokens 20k --max-model-len 32")
    sizes = ("--max-model-len 32 is 8", "--max-num-seqs 64 is 4", "--max-num-batched-tokens 20000 is 8")
    assert found.notes == (f"scaled down: {', '.join(f'{size} here' for size in sizes)}",)
    assert derived("llama-3.1-8b", "--max-num-seqs 64", full_size=True).notes == ()


@pytest.mark.parametrize("auto", ["auto", "-1", "AUTO", "5 --max-model-len=auto"])
def test_the_longest_request_may_be_left_to_the_server(auto: str) -> None:
    found = derived("llama-3.1-8b", f"--max-model-len {auto}", full_size=True)
    assert found.layout == derived("llama-3.1-8b", full_size=True).layout
    assert found.notes == ("--max-model-len auto: a server with too little memory takes less than 131072 tokens",)
    assert derived("llama-3.1-8b", "--max-model-len auto --max-model-len 64", full_size=True).notes == ()


def test_a_config_may_name_its_drafter() -> None:
    raw = changed("llama-3.1-8b", num_nextn_predict_layers=1)
    assert derive(raw, parse_server_args(MTP)).layout.drafter == Drafter(method="mtp", tokens=2)
    assert derived("llama-3.1-8b", f"{MTP} --spec-model somewhere").layout.drafter is not None


def test_early_releases_want_steps_of_a_whole_block_of_states() -> None:
    small = "--max-num-batched-tokens 512"
    with pytest.raises(InputError, match="512 tokens a step are below the Mamba block of 1056"):
        derived("qwen3.5-35b-a3b", small, (0, 26))
    layout = derived("qwen3.5-35b-a3b", small).layout
    assert layout.token_budget < layout.mamba_block


@pytest.mark.parametrize(("name", "since"), [("kimi-linear-48b-a3b", 27), ("falcon-h1-34b", 32)])
def test_drafts_make_states_longer_since_some_release(name: str, since: int) -> None:
    longer = {}
    for minor in (since - 1, since):
        server = Server(drafts=2, release=(0, minor))
        layer = next(one for one in layers_of(Config(changed(name)), server) if one.kind == "mamba")
        longer[minor] = layer.states[0].shape[0]
    assert longer == {since - 1: 3, since: 5}


@pytest.mark.parametrize(
    ("args", "real", "small"),
    [
        (FLASHINFER, (576, 576), (8, 8)),
        (f"{FLASHINFER} --prefix-match-unit 16", (576, 64), (12, 2)),
        (f"{FLASHINFER} --prefix-match-unit 96", (576, 192), (12, 4)),
    ],
)
def test_states_within_a_prefill_are_kept_where_hits_may_end(
    args: str, real: tuple[int, int], small: tuple[int, int]
) -> None:
    found = derived("qwen3-next-80b-a3b", args)
    for layout, sizes in ((found.real, real), (found.layout, small)):
        group = layout.groups[0]
        assert (group.checkpoint_blocks, group.block_size, group.checkpoint_alignment) == (1, *sizes)
        assert sizes[1] % layout.hash_block == 0
    assert HOPPER not in found.notes


def test_gated_delta_nets_keep_no_states_within_a_prefill_in_early_releases() -> None:
    group = derived("qwen3-next-80b-a3b", FLASHINFER, (0, 32)).real.groups[0]
    assert (group.block_size, group.checkpoint_blocks) == (544, 0)


def test_early_releases_have_smaller_blocks_of_latents_and_one_type_of_kda_states() -> None:
    args = "--mamba-ssm-cache-dtype bfloat16"
    assert {g.block_size for g in derived("kimi-linear-48b-a3b", release=(0, 26)).real.groups} == {1888}
    assert {g.block_size for g in derived("kimi-linear-48b-a3b", args, (0, 29)).real.groups} == {1920}


def test_what_was_lost_in_scaling_is_told() -> None:
    assert derived("gpt-oss-20b").notes == ()
    assert derived("gemma-3-27b").notes == ("the window of 1024 tokens is 64 blocks, 16 here",)
    found = derived("qwen3-next-80b-a3b", "--prefix-match-unit 16")
    assert found.notes == (HOPPER, "544 tokens are 34 match units, 4 here")
    assert (found.layout.groups[0].block_size, found.layout.match_unit) == (8, 2)


@pytest.mark.parametrize(
    ("name", "args", "marks"),
    [
        ("qwen3-next-80b-a3b", MTP, {28: (), 31: (3,), 33: (3,)}),
        ("gpt-oss-20b", EAGLE, {28: (), 32: (), 33: (1,)}),
        ("llama-3.1-8b", EAGLE, {28: (), 32: (), 33: (0,)}),
        ("kimi-linear-48b-a3b", "-sc.method dspark -sc.num_speculative_tokens 7", {28: (), 29: (3,), 32: (3,), 33: ()}),
    ],
)
def test_releases_mark_groups_in_their_own_way(name: str, args: str, marks: dict[int, tuple[int, ...]]) -> None:
    for minor, marked in marks.items():
        groups = derived(name, args, (0, minor)).layout.groups
        assert tuple(i for i, group in enumerate(groups) if group.eagle) == marked, minor


def test_the_arguments_reach_the_layout() -> None:
    args = (
        "meta-llama/Llama --host 0.0.0.0 --max-num-seqs 8 --max-num-batched-tokens 4K --max-model-len 32k "
        "--scheduling-policy priority --no-async-scheduling --num-gpu-blocks-override 3000 -tp 16 -dcp 2 "
        "--long-prefill-token-threshold 2048 --kv-events-config '{\"enable_kv_cache_events\": true}' "
        "--kv-transfer-config.kv_role kv_consumer"
    )
    found = derived("llama-3.1-8b", args)
    real = found.real
    assert (real.max_requests, real.token_budget, real.max_model_len, real.num_blocks) == (8, 4096, 32000, 3000)
    assert (real.policy, real.steps_in_flight, real.dcp, real.events) == ("priority", 1, 2, True)
    assert real.connector is not None
    assert real.connector.role == "consumer"
    assert found.notes[0] == "not looked at, no layout depends on it: meta-llama/Llama --host 0.0.0.0"
    assert derived("llama-3.1-8b").real.steps_in_flight == 2
    assert derived("llama-3.1-8b", "-sc.method ngram -sc.num_speculative_tokens 2").real.steps_in_flight == 1


@pytest.mark.parametrize(
    ("args", "note"),
    [
        ("--seed 3 --port=80 -dp 2", "not looked at, no layout depends on it: --seed 3 --port=80 -dp 2"),
        ("--no-enable-chunked-prefill", "the layout does not say what this changes: --no-enable-chunked-prefill"),
        (
            "--additional-config {} --kda-prefill-backend x",
            "the layout does not say what this changes: --additional-config {} --kda-prefill-backend x",
        ),
        ("--blocksize 32", "not known here, taken to change nothing (is it misspelt?): --blocksize 32"),
        (
            "--prefix-match-units 16 -tp 1",
            "not known here, taken to change nothing (is it misspelt?): --prefix-match-units 16",
        ),
    ],
)
def test_options_that_are_not_read_are_told_for_what_they_are(args: str, note: str) -> None:
    assert derived("llama-3.1-8b", args).notes[0] == note


def test_drafts_have_options_of_their_own() -> None:
    short = derived("gpt-oss-20b", "--spec-method eagle3 --spec-tokens 3")
    assert short == derived("gpt-oss-20b", EAGLE)


def test_a_block_of_states_is_that_of_attention() -> None:
    found = derived("jamba-v0.1", "--mamba-block-size 1088 --mamba-cache-mode none")
    assert found.layout == derived("jamba-v0.1").layout
    assert "--mamba-block-size counts for nothing: with Mamba align it is the block of attention" in found.notes
    assert derived("llama-3.1-8b", "--mamba-block-size 1088 --disable-sliding-window") == derived("llama-3.1-8b")


@pytest.mark.parametrize(
    ("name", "gpus", "ranks"), [("llama-3.1-8b", 16, 2), ("qwen3-next-80b-a3b", 4, 2), ("deepseek-v3", 8, 8)]
)
def test_ranks_spread_what_would_be_there_twice(name: str, gpus: int, ranks: int) -> None:
    assert derived(name, f"-tp {gpus} -dcp {ranks}").real.dcp == ranks


@pytest.mark.parametrize(("told", "events"), [("true", True), ("false", False), ("True", True), ('"false"', False)])
def test_events_are_what_the_server_makes_of_the_word(told: str, events: bool) -> None:
    assert derived("llama-3.1-8b", f"--kv-events-config.enable_kv_cache_events '{told}'").real.events == events


def test_without_the_hybrid_manager_all_is_full_attention() -> None:
    for name, args in (("gpt-oss-20b", "--disable-hybrid-kv-cache-manager"), ("llama-4-scout", EAGLE)):
        assert [g.kind for g in derived(name, args).real.groups] == ["full"], name
    alone = derived("mistral-7b-v0.1", "--disable-hybrid-kv-cache-manager")
    assert [g.kind for g in alone.real.groups] == ["sliding_window"]


def test_a_drafter_whose_name_no_folder_can_have_is_not_here() -> None:
    assert derived("gpt-oss-20b", f"{EAGLE} -sc.model {'a' * 300}").layers == derived("gpt-oss-20b", EAGLE).layers


def test_a_drafter_has_the_layers_of_its_own_config(tmp_path: Path) -> None:
    own = {"architectures": ["LlamaForCausalLMEagle3"], "num_attention_heads": 32, "num_key_value_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps({**own, "hidden_size": 2880, "num_hidden_layers": 1}))
    assert derived("gpt-oss-20b", EAGLE).layers == (12, 13)
    found = derived("gpt-oss-20b", f"{EAGLE} -sc.model {tmp_path}")
    assert sum(found.layers) == 25
    assert len(found.layers) > 2
    assert not any("drafter" in note for note in found.notes)


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        ({}, "names no architecture"),
        ({"architectures": ["NewForCausalLM"]}, "NewForCausalLM is not known here"),
        (changed("llama-3.1-8b", num_attention_heads="gone"), "nothing of num_attention_heads"),
        (changed("llama-3.1-8b", num_hidden_layers=2.5), "num_hidden_layers is 2.5"),
        (changed("llama-3.1-8b", num_attention_heads=0), "num_attention_heads is 0"),
        (
            changed("llama-3.1-8b", num_hidden_layers=10**15),
            "num_hidden_layers is 10{15}, not a whole number from 1 to",
        ),
        (
            changed("llama-3.1-8b", num_hidden_layers=10**19),
            "num_hidden_layers is 10{19}, not a whole number from 1 to",
        ),
        (changed("llama-3.1-8b", num_attention_heads=1e300), r"num_attention_heads is 1e\+300, not a whole number"),
        (changed("llama-3.1-8b", num_attention_heads=float("inf")), "num_attention_heads is inf, not a whole number"),
        (changed("jamba-v0.1", hidden_size=2), "hidden_size is less than its 32 heads"),
        (changed("jamba-v0.1", attn_layer_offset="x"), "attn_layer_offset is 'x', not a whole number from 0 to"),
        (changed("jamba-v0.1", attn_layer_offset=[1]), r"attn_layer_offset is \[1\], not a whole number"),
        (changed("falcon-h1-34b", mamba_expand=[2]), r"mamba_expand is \[2\], not a whole number"),
        (changed("falcon-h1-34b", mamba_expand={}), "mamba_expand is {}, not a whole number"),
        (changed("nemotron-h-8b", hybrid_override_pattern="-" * 52), "no layer of this model keeps anything"),
        (changed("gpt-oss-20b", sliding_window=None), "nothing of sliding_window"),
        (changed("qwen3-next-80b-a3b", linear_num_key_heads=None), "nothing of linear_num_key_heads"),
        (changed("kimi-linear-48b-a3b", linear_attn_config=3), "linear_attn_config"),
        (changed("nemotron-h-8b", hybrid_override_pattern="gone"), "hybrid_override_pattern"),
        (changed("qwen2.5-7b", use_sliding_window=True), "windows in some layers of Qwen2ForCausalLM"),
        (
            changed("qwen2.5-7b", use_sliding_window=True, layer_types=["full_attention", "sliding_attention"] * 14),
            "windows in some layers of Qwen2ForCausalLM",
        ),
        (changed("llama-3.1-8b", torch_dtype="int3"), "'int3' is not known"),
        (changed("llama-3.1-8b", layer_types=["odd"] * 32), "layers of type odd"),
        (changed("llama-3.1-8b", layer_types=5), "layer_types is no list of words"),
        (changed("llama-3.1-8b", layer_types=[]), "lists 0 layer_types for 32 layers"),
        (changed("gemma-3-27b", layer_types=["full_attention"] * 3), "lists 3 layer_types for 62 layers"),
        (changed("qwen3-next-80b-a3b", layer_types=["sliding_attention"] * 48), "layers of type sliding_attention"),
        (changed("qwen3-next-80b-a3b", layer_types=["full_attention"] * 47), "lists 47 layer_types for 48 layers"),
        (changed("granite-4.0-h-small", layer_types=["mamba", "odd"] * 20), "layers of type odd"),
        (changed("granite-4.0-h-small", layer_types=["mamba", "attention"]), "lists 2 layer_types for 40 layers"),
        (changed("nemotron-h-8b", hybrid_override_pattern="M*X-" * 13), "layers of type X"),
        (changed("nemotron-h-8b", hybrid_override_pattern="M*"), "lists 2 hybrid_override_pattern for 52 layers"),
        (changed("kimi-linear-48b-a3b", linear_attn_config=KDA), "nothing of kda_layers"),
    ],
)
def test_a_config_that_says_too_little_is_refused(raw: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        derive(raw, parse_server_args(""))


@pytest.mark.parametrize(
    ("name", "args", "complaint"),
    [
        ("jamba-v0.1", "-tp 3", "cannot be spread over 3 GPUs"),
        ("jamba-v0.1", "--no-enable-prefix-caching", "it starts, but kvcheck has no layout for it"),
        ("llama-3.1-8b", "-tp 2 -dcp 2", "2 ranks .* need 16 GPUs .-tp. with 8 KV heads, not 2"),
        ("qwen3-next-80b-a3b", "-tp 2 -dcp 2", "2 ranks .* need 4 GPUs"),
        ("qwen3-next-80b-a3b", "-tp 4 -dcp 3", "3 ranks .* do not divide 4 GPUs"),
        ("deepseek-v3", "-dcp 2", "do not divide 1 GPUs"),
        ("phi-4", "-tp 60 -dcp 6", "6 ranks .* do not divide the 4 query heads"),
        ("llama-3.1-8b", "--max-num-seqs 64 --max-num-batched-tokens 20", "token_budget 20 is below max_requests 64"),
        ("jamba-v0.1", "--mamba-cache-mode all", "--mamba-cache-mode all is not in kvcheck"),
        ("gemma-3-27b", "--disable-sliding-window", "change the config.json instead"),
        ("gemma-3-27b", "--hf-overrides '{}'", "--hf-overrides may change the layers"),
        ("jamba-v0.1", "--disable-hybrid-kv-cache-manager", "does not run without"),
        ("llama-3.1-8b", "--prefix-match-unit 8", "is refused for a model with one group"),
        ("llama-3.1-8b", "-tp two", "is 'two', not a whole number"),
        ("llama-3.1-8b", "--block-size", "has no value"),
        ("llama-3.1-8b", "--speculative-config {a:1}", "is no JSON"),
        ("llama-3.1-8b", "-sc.method suffix", "method 'suffix' is not known"),
        ("llama-3.1-8b", MTP, "LlamaForCausalLM comes without, and the config names no layers"),
        ("phi-4", "-sc.method mtp", "Phi3ForCausalLM comes without"),
        ("llama-3.1-8b", "--max-model-len -2", "is '-2', not a whole number"),
        ("llama-3.1-8b", "-sc.method eagle", "nothing of num_speculative_tokens"),
        ("llama-3.1-8b", "-sc.method eagle -sc.num_speculative_tokens true", "got `bool`.*num_speculative_tokens"),
        ("llama-3.1-8b", "-sc.method eagle -sc.num_speculative_tokens 0", "`int` >= 1.*num_speculative_tokens"),
        ("llama-3.1-8b", "--kv-events-config.enable_kv_cache_events some", "`bool`, got `str`.*enable_kv_cache_events"),
        ("llama-3.1-8b", "--kv-transfer-config.kv_role kv_all", "kv-transfer-config"),
        ("llama-3.1-8b", "--num-gpu-blocks-override 10", "cannot hold one request"),
        ("llama-3.1-8b", "--model 'x", "No closing quotation"),
        ("llama-3.1-8b", f"--max-num-seqs {'9' * 400}", "not a whole number from 1 to"),
        ("llama-3.1-8b", f"-sc {'[' * 100_000}", "nested too deeply"),
    ],
)
def test_arguments_that_cannot_be_are_refused(name: str, args: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        derived(name, args)
