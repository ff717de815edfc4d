"""Groups of public models as releases make them, by their own code, against kvcheck's derivation."""

from __future__ import annotations

import importlib.util
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from releases import output_of, release

from kvcheck.layouts.architectures import Server, layers_of
from kvcheck.layouts.defaults import DEFAULTS
from kvcheck.layouts.from_config import derive, own_grouping, read_config
from kvcheck.layouts.layers import Config
from kvcheck.layouts.pages import LayerGroup, Sized
from kvcheck.layouts.server_args import parse_server_args
from kvcheck.targets.vllm.release import KNOWN_RELEASES

CONFIGS = Path(__file__).parents[1] / "configs"
ARGS = (
    "",
    "-tp 4 --kv-cache-dtype fp8",
    "-sc.method mtp -sc.num_speculative_tokens 2",
    "-sc.method eagle3 -sc.num_speculative_tokens 3",
    "--disable-hybrid-kv-cache-manager",
)
REFUSED = ("does not run without the hybrid cache manager", "comes without, and the config names no layers of it")
LEAST_DERIVED = 50
DERIVE = """
    import json
    import sys
    import warnings
    from pathlib import Path
    from kvcheck.files import InputError
    from kvcheck.layouts.from_config import derive, read_config
    from kvcheck.layouts.server_args import parse_server_args
    from kvcheck.targets.vllm.planning import Planner
    from kvcheck.targets.vllm.release import resolve

    spec, mode, folder, *arguments = sys.argv[1:]
    if mode == "full":
        warnings.simplefilter("ignore")  # those of vLLM's dependencies
    found = resolve(spec, mode=mode)
    planner = Planner(found)
    release = tuple(map(int, found.version.split(".")[:2]))
    told = []
    for file in sorted(Path(folder).glob("*.json")):
        for text in arguments:
            args = parse_server_args(text)
            try:
                own = derive(read_config(file), args, release)
                theirs = derive(read_config(file), args, release, planning=planner)
            except InputError as error:
                told.append([file.stem, text, str(error)])
                continue
            told.append([file.stem, text, own.real == theirs.real and own.layers == theirs.layers, theirs.notes])
    print(json.dumps(told))
"""


def compared(spec: str, mode: str, *arguments: str) -> list[list[object]]:
    """For each config and arguments, but for those that no server starts with: whether both have the same layout, and
    what the release's derivation remarks."""
    told: list[list[object]] = json.loads(output_of(DERIVE, spec, mode, CONFIGS, *arguments).splitlines()[-1])
    refused = [str(one[2]) for one in told if isinstance(one[2], str)]
    assert [why for why in refused if not any(known in why for known in REFUSED)] == []
    return [one for one in told if not isinstance(one[2], str)]


@pytest.mark.release
@pytest.mark.parametrize("version", KNOWN_RELEASES)
def test_releases_make_the_groups_that_are_derived(version: str) -> None:
    release(version)
    told = compared(f"vllm=={version}", "light", *ARGS)
    assert [one for one in told if one[2] is not True or "alone" in str(one[3])] == []
    assert len(told) > LEAST_DERIVED


@pytest.mark.release
@pytest.mark.parametrize("version", KNOWN_RELEASES)
def test_releases_say_the_same_of_heads_and_states(version: str) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("vLLM's dependencies are not installed: pip install '.[vllm]'")
    release(version, "full")
    told = compared(f"vllm=={version}", "full", *ARGS[:4])
    assert [one for one in told if one[2] is not True or "configuration code" in str(one[3])] == []
    asked = [one for one in told if "own derivation" not in str(one[3])]
    assert {"jamba-v0.1", "nemotron-h-8b", "granite-4.0-h-small", "falcon-h1-34b"} <= {str(one[0]) for one in asked}


def configuration_classes() -> Any:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("vLLM's dependencies are not installed: pip install '.[vllm]'")
    return importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING


def test_defaults_are_those_of_the_configuration_classes() -> None:
    classes = configuration_classes()
    parameters = {name: inspect.signature(classes[name]).parameters for name in DEFAULTS}
    assert {
        name: {field: parameters[name][field].default for field in row} for name, row in DEFAULTS.items()
    } == DEFAULTS


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("gemma2", "Gemma2ForCausalLM"),
        ("gemma3_text", "Gemma3ForCausalLM"),
        ("gpt_oss", "GptOssForCausalLM"),
        ("cohere2", "Cohere2ForCausalLM"),
        ("llama4_text", "Llama4ForCausalLM"),
        ("ministral", "MinistralForCausalLM"),
        ("qwen2", "Qwen2ForCausalLM"),
        ("qwen3_next", "Qwen3NextForCausalLM"),
        ("qwen3_5_text", "Qwen3_5ForCausalLM"),
        ("jamba", "JambaForCausalLM"),
    ],
)
def test_layers_that_are_not_listed_are_those_of_the_configuration_class(kind: str, architecture: str) -> None:
    made = configuration_classes()[kind](num_hidden_layers=27)
    words = {"full_attention": "full", "chunked_attention": "chunked_local", "linear_attention": "mamba"}
    theirs = [words.get(word, "sliding_window") for word in made.layer_types]
    said = {"num_hidden_layers": 27, "hidden_size": 4096, "num_attention_heads": 32}
    config = Config({**said, "architectures": [architecture], "model_type": kind})
    assert [layer.kind for layer in layers_of(config, Server())] == theirs


def test_another_derivation_would_be_noticed() -> None:
    """The comparison is one: blocks of another size are told."""

    class Other:
        def layers(self, raw, layers, server):
            return list(layers), []

        def groups(self, layers, hybrid_off):
            found = own_grouping(layers, hybrid_off)
            return [LayerGroup(Sized(g.spec.layer, 2 * g.spec.block), g.members) for g in found]

    found = derive(read_config(CONFIGS / "jamba-v0.1.json"), parse_server_args(""), planning=Other())
    assert {group.block_size for group in found.real.groups} == {160}
    assert "kvcheck alone would have these groups: mamba 80 (4 layers)" in found.notes[0]
