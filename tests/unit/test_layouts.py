"""The presets: valid, of the sizes that the real models' sizes scale down to, and marked as each release marks them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from helpers import chunked, full, layout_of, replace, window

from kvcheck.layouts.presets import Preset, all_presets, preset
from kvcheck.model.layout import Drafter, Group, problems


@dataclass(frozen=True)
class Sizes:
    """Scheduler block, hash block and granularity in tokens; the fewest blocks for a request of 64 tokens or the
    preset's longest, with passes of 32 tokens."""

    scheduler: int
    hash: int
    granularity: int
    min_blocks: int


SIZES = {
    "full": Sizes(4, 4, 4, 17),
    "full_eagle3": Sizes(4, 4, 4, 17),
    "dsv3_mtp": Sizes(4, 4, 4, 17),
    "gptoss": Sizes(2, 2, 2, 58),
    "gptoss_eagle3": Sizes(2, 2, 2, 59),
    "gemma3": Sizes(2, 2, 2, 231),
    "gemma_unit": Sizes(2, 1, 2, 66),
    "llama4": Sizes(2, 2, 2, 105),
    "mistral_swa": Sizes(2, 2, 2, 26),
    "ministral": Sizes(2, 2, 2, 66),
    "dsv4_exact": Sizes(64, 1, 64, 81),
    "dsv4_exact_mtp": Sizes(64, 1, 64, 82),
    "dsv4_small": Sizes(16, 1, 16, 82),
    "dsv4_small_mtp": Sizes(16, 1, 16, 83),
    "gdn": Sizes(8, 8, 8, 15),
    "gdn_unit": Sizes(8, 2, 2, 19),
    "gdn_mtp": Sizes(8, 8, 8, 21),
    "gdn_mtp_unit": Sizes(8, 2, 2, 25),
    "k3_unit": Sizes(12, 2, 2, 17),
    "k3_eagle_unit": Sizes(12, 2, 2, 26),
    "k3_mtp_unit": Sizes(12, 2, 2, 26),
    "k3_dspark_mla_unit": Sizes(12, 2, 2, 38),
    "k3_dspark_swa_028_tp8": Sizes(36, 1, 36, 41),
    "k3_dspark_swa_028_tp4": Sizes(72, 1, 72, 39),
    "k3_dspark_swa_030plus": Sizes(4, 4, 4, 40),
    "k3_dspark_swa_030plus_unit": Sizes(4, 1, 4, 42),
    "nemotron": Sizes(8, 8, 8, 21),
    "nemotron_unit": Sizes(8, 1, 1, 26),
    "granite": Sizes(8, 8, 8, 36),
    "falcon": Sizes(8, 8, 8, 12),
    "jamba": Sizes(5, 5, 5, 28),
}

FLAGS = {
    "full_eagle3": ((), (), (0,)),
    "dsv3_mtp": ((), (), (0,)),
    "gptoss_eagle3": ((), (), (1,)),
    "dsv4_exact_mtp": ((2,), (2,), (2,)),
    "dsv4_small_mtp": ((2,), (2,), (2,)),
    "gdn_mtp": ((), (3,), (3,)),
    "gdn_mtp_unit": ((), (3,), (3,)),
    "k3_eagle_unit": ((), (), (3,)),
    "k3_mtp_unit": ((), (3,), (3,)),
    "k3_dspark_mla_unit": ((), (3,), ()),
}
"""Groups marked as EAGLE groups by 0.28.0, 0.32.0 and 0.33.0, where any of them marks some."""

PRESETS = pytest.mark.parametrize("named", all_presets(), ids=lambda named: named.name)


@PRESETS
@pytest.mark.parametrize("version", [None, "0.26.0", "0.28.0", "0.30.0", "0.32.0", "0.33.0"])
def test_presets_are_valid_and_have_room_to_spare(named: Preset, version: str | None) -> None:
    layout = named.layout(version)
    assert problems(layout) == []
    assert layout.num_blocks > layout.min_blocks
    assert layout.max_model_len > layout.granularity


@PRESETS
def test_presets_have_the_sizes_of_the_models(named: Preset) -> None:
    layout = named.layout()
    derived = Sizes(layout.scheduler_block, layout.hash_block, layout.granularity, layout.min_blocks)
    assert derived == SIZES[named.name]


@pytest.mark.parametrize(
    ("group", "blocks"),
    [(full(4), 4), (window(4, 8), 4), (chunked(4, 8), 3)],
    ids=["full", "window", "chunked"],
)
def test_lookahead_takes_blocks_only_where_blocks_are_given_back(group: Group, blocks: int) -> None:
    plain = layout_of(group, num_blocks=40, max_model_len=16, token_budget=4)
    drafting = replace(plain, drafter=Drafter(method="draft_model", tokens=3))
    assert plain.blocks_for_one(0) == blocks
    assert drafting.blocks_for_one(0) == blocks + (group.kind != "full")


@PRESETS
def test_presets_are_marked_as_each_release_does(named: Preset) -> None:
    marked = tuple(named.eagle_flags(version) for version in ("0.28.0", "0.32.0", "0.33.0"))
    assert marked == FLAGS.get(named.name, ((), (), ()))
    assert [g.eagle for g in named.layout().groups] == [i in marked[2] for i in range(len(named.groups))]


@PRESETS
def test_presets_say_where_they_come_from(named: Preset) -> None:
    assert named.models
    assert named.sizes.endswith(".")
    assert preset(named.name) == named.layout()


def test_every_preset_is_in_the_table() -> None:
    assert [named.name for named in all_presets()] == list(SIZES)


def test_mamba_checkpoints_are_named_where_real_servers_have_them() -> None:
    named = {p.name for p in all_presets() if any(g.checkpoint_blocks for g in p.layout().groups)}
    assert named == {"nemotron", "nemotron_unit", "granite", "falcon"}
    assert not any(g.checkpoint_blocks for p in all_presets() for g in p.layout("0.31.0").groups)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(KeyError):
        preset("gpt-1")
