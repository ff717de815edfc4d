"""Layouts that real models produce, scaled down: same kinds, same order of groups, same ratios of sizes.

A preset keeps what matters to the bookkeeping (how many blocks a window has, how many hash blocks a block) and
divides the rest, so that a request of some dozen tokens crosses every boundary. Block sizes of 0.28.0 and later.
"""

from __future__ import annotations

import msgspec

from kvcheck.model.layout import Drafter, Group, Layout

NEWEST = (0, 33)
SPARE_BLOCKS = 6
MAMBA_CHECKPOINT_NOTE = "0.32.0 and later add one prefill checkpoint block."
CHECKPOINTS_SINCE = (0, 32)


class Flags(msgspec.Struct, frozen=True):
    """Groups that a release marks as EAGLE groups, from a release on (R1, R12)."""

    since: tuple[int, int]
    groups: tuple[int, ...]


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """A named layout: of which models it is, and how its sizes follow from their public configurations.

    ``flags``: by release, oldest first; before the first of them no group is marked. ``match_unit`` in tokens.
    ``checkpoints``: its Mamba layers keep prefill checkpoints, in releases that have them.
    """

    name: str
    models: str
    sizes: str
    groups: tuple[Group, ...]
    match_unit: int | None = None
    drafter: Drafter | None = None
    flags: tuple[Flags, ...] = ()
    checkpoints: bool = False

    def eagle_flags(self, version: str | None = None) -> tuple[int, ...]:
        """Groups that this release marks as EAGLE groups (None: the newest one known)."""
        release = NEWEST if version is None else _release(version)
        known = [flags.groups for flags in self.flags if flags.since <= release]
        return known[-1] if known else ()

    def layout(self, version: str | None = None) -> Layout:
        """The layout as this release resolves it (None: the newest one known)."""
        marked = self.eagle_flags(version)
        layout = Layout(
            groups=tuple(
                msgspec.structs.replace(self._with_checkpoint(g, version), eagle=i in marked)
                for i, g in enumerate(self.groups)
            ),
            match_unit=self.match_unit,
            drafter=self.drafter,
            retention="release",
            worker_generation=2 if self.drafter is not None and self.drafter.method == "dspark" else 1,
            num_blocks=1,
            max_model_len=64,
            token_budget=32,
        )
        longest = max(layout.max_model_len, 2 * layout.scheduler_block + 16)
        layout = msgspec.structs.replace(layout, max_model_len=longest)
        return msgspec.structs.replace(layout, num_blocks=layout.min_blocks + SPARE_BLOCKS)

    def _with_checkpoint(self, group: Group, version: str | None) -> Group:
        """The group as this release has it: Mamba-2 layers keep a state within a prefill chunk (R12.36)."""
        if (
            group.is_attention
            or not self.checkpoints
            or (version is not None and _release(version) < CHECKPOINTS_SINCE)
        ):
            return group
        return msgspec.structs.replace(group, checkpoint_blocks=1, checkpoint_alignment=1)


def preset(name: str, version: str | None = None) -> Layout:
    """The layout of this name, with the EAGLE flags of a release (None: the newest one known).

    Raises:
        KeyError: no preset has this name.
    """
    return PRESETS[name].layout(version)


def all_presets() -> tuple[Preset, ...]:
    """Every preset."""
    return tuple(PRESETS.values())


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _full(block: int) -> Group:
    return Group(kind="full", block_size=block)


def _mla(block: int) -> Group:
    return Group(kind="mla", block_size=block)


def _window(block: int, window: int) -> Group:
    return Group(kind="sliding_window", block_size=block, window=window)


def _chunked(block: int, chunk: int) -> Group:
    return Group(kind="chunked_local", block_size=block, chunk=chunk)


def _mamba(block: int, drafts: int = 0) -> Group:
    return Group(kind="mamba", block_size=block, speculative_blocks=drafts)


def _draft(method: str, tokens: int) -> Drafter:
    return msgspec.convert({"method": method, "tokens": tokens}, Drafter)


_MARKED_BY_033 = (0, 33)
_MARKED_BY_031 = (0, 31)
_MARKED_BY_029 = (0, 29)
_ALWAYS_MARKED = (0, 0)

_DSV4_EXACT = (_mla(64), _window(16, 32), _window(16, 32), _window(1, 2), _window(2, 32))
_DSV4_SMALL = (_mla(16), _window(4, 8), _window(4, 8), _window(1, 2), _window(2, 8))
_K3 = (_mamba(12), _mamba(12), _mamba(12), _mla(12))
_K3_SIZES = (
    "69 KDA layers in three groups and 24 MLA layers in one; the MLA block grows until its page holds a KDA state: "
    "768 tokens with 8 GPUs, and 768 / 128 = 6 match units a block, exact."
)
_K3_DSPARK_SIZES = (
    "A drafter of five windowed layers (window 2048) next to KDA and MLA blocks; its own page is unified by a block of "
    "1728 tokens, which neither divides nor is divided by theirs."
)

_ALL: tuple[Preset, ...] = (
    Preset(
        name="full",
        models="Llama 3, Qwen3",
        sizes="All layers are full attention with blocks of 16 tokens: one group, so hash and scheduler block are 16.",
        groups=(_full(4),),
    ),
    Preset(
        name="full_eagle3",
        models="Llama 3 with EAGLE-3, three drafts; Llama 4 with a drafter (it then has one group)",
        sizes="The EAGLE-3 head has the target's KV shape, so its one layer joins the group of 32.",
        groups=(_full(4),),
        drafter=_draft("eagle3", 3),
        flags=(Flags(_MARKED_BY_033, (0,)),),
    ),
    Preset(
        name="dsv3_mtp",
        models="DeepSeek V3 and R1 with MTP, one draft",
        sizes="61 MLA layers and one MTP layer of the same shape: one group. The backend decides its block: 16 to 128.",
        groups=(_mla(4),),
        drafter=_draft("mtp", 1),
        flags=(Flags(_MARKED_BY_033, (0,)),),
    ),
    Preset(
        name="gptoss",
        models="gpt-oss 20b and 120b",
        sizes="Every other layer has a window of 128 tokens, 8 blocks of 16, exact; all layers share one KV shape.",
        groups=(_window(2, 16), _full(2)),
    ),
    Preset(
        name="gptoss_eagle3",
        models="gpt-oss with EAGLE-3, three drafts",
        sizes="As gptoss; the drafter's full-attention layer joins the full group (18 windowed, 19 full layers).",
        groups=(_window(2, 16), _full(2)),
        drafter=_draft("eagle3", 3),
        flags=(Flags(_MARKED_BY_033, (1,)),),
    ),
    Preset(
        name="gemma3",
        models="Gemma 3",
        sizes="Five windowed layers to one full one, 62 in all: groups of ten. The window of 1024 tokens is 64 blocks; "
        "here 16.",
        groups=(*[_window(2, 32)] * 6, _full(2)),
    ),
    Preset(
        name="gemma_unit",
        models="Gemma 3 with a match unit below the block",
        sizes="The unit makes hashes finer; hits stay on whole blocks, because windows cannot be looked up inside one.",
        groups=(_window(2, 32), _full(2)),
        match_unit=1,
    ),
    Preset(
        name="llama4",
        models="Llama 4 Scout and Maverick",
        sizes="Three layers with chunks of 8192 tokens to one full one: four groups of 12, blocks of 16. "
        "The chunk of 512 blocks is 8 here.",
        groups=(*[_chunked(2, 16)] * 3, _full(2)),
    ),
    Preset(
        name="mistral_swa",
        models="Mistral 7B v0.1",
        sizes="One window of 4096 tokens for all layers, so a windowed group stands alone: 256 blocks; here 8.",
        groups=(_window(2, 16),),
    ),
    Preset(
        name="ministral",
        models="Ministral 8B (2410)",
        sizes="One full layer to three with a window of 32768 tokens, full first. One of the three windowed "
        "groups is kept.",
        groups=(_full(2), _window(2, 32)),
    ),
    Preset(
        name="dsv4_exact",
        models="DeepSeek V4 Flash",
        sizes="Compressed MLA with blocks of 256; windowed latents, blocks of 64, window 128; compressor states, "
        "blocks of 4 and 8, windows 8 and 128. All divided by 4: hash block 1, scheduler block 64.",
        groups=_DSV4_EXACT,
    ),
    Preset(
        name="dsv4_exact_mtp",
        models="DeepSeek V4 Flash with MTP, one draft",
        sizes="As dsv4_exact; the windowed MTP layer joins the second windowed group, the one that is marked.",
        groups=_DSV4_EXACT,
        drafter=_draft("mtp", 1),
        flags=(Flags(_ALWAYS_MARKED, (2,)),),
    ),
    Preset(
        name="dsv4_small",
        models="DeepSeek V4 Flash",
        sizes="The shape of dsv4_exact with windows of 2, 2, 2 and 4 blocks: hash block 1, scheduler block 16.",
        groups=_DSV4_SMALL,
    ),
    Preset(
        name="dsv4_small_mtp",
        models="DeepSeek V4 Flash with MTP, one draft",
        sizes="As dsv4_small; the windowed MTP layer joins the second windowed group, the one that is marked.",
        groups=_DSV4_SMALL,
        drafter=_draft("mtp", 1),
        flags=(Flags(_ALWAYS_MARKED, (2,)),),
    ),
    Preset(
        name="gdn",
        models="Qwen3-Next, Qwen3.5, Kimi-Linear",
        sizes="Three recurrent layers to one full one. The attention block grows until its page holds a state (544 "
        "tokens for Qwen3-Next), and the recurrent block is set equal to it.",
        groups=(*[_mamba(8)] * 3, _full(8)),
    ),
    Preset(
        name="gdn_unit",
        models="Qwen3-Next and Qwen3.5 with a match unit",
        sizes="As gdn with a match unit: hits inside a block. A real block of 544 has 34 units of 16; here 4.",
        groups=(*[_mamba(8)] * 3, _full(8)),
        match_unit=2,
    ),
    Preset(
        name="gdn_mtp",
        models="Qwen3-Next and Qwen3.5 with MTP, two drafts",
        sizes="As gdn; the MTP layer is full attention and joins the full group; two speculative states a request.",
        groups=(*[_mamba(8, 2)] * 3, _full(8)),
        drafter=_draft("mtp", 2),
        flags=(Flags(_MARKED_BY_031, (3,)),),
    ),
    Preset(
        name="gdn_mtp_unit",
        models="Qwen3-Next and Qwen3.5 with MTP, two drafts, and a match unit",
        sizes="As gdn_mtp with four match units a block.",
        groups=(*[_mamba(8, 2)] * 3, _full(8)),
        match_unit=2,
        drafter=_draft("mtp", 2),
        flags=(Flags(_MARKED_BY_031, (3,)),),
    ),
    Preset(
        name="k3_unit",
        models="Kimi K3 with a match unit",
        sizes=_K3_SIZES,
        groups=_K3,
        match_unit=2,
    ),
    Preset(
        name="k3_eagle_unit",
        models="Kimi K3 with an EAGLE-3 head of one MLA layer, three drafts",
        sizes=f"{_K3_SIZES} The drafter's layer joins the MLA group.",
        groups=(*[_mamba(12, 3)] * 3, _mla(12)),
        match_unit=2,
        drafter=_draft("eagle3", 3),
        flags=(Flags(_MARKED_BY_033, (3,)),),
    ),
    Preset(
        name="k3_mtp_unit",
        models="Kimi K3 with MTP, three drafts of one module",
        sizes=f"{_K3_SIZES} The drafter's layer joins the MLA group.",
        groups=(*[_mamba(12, 3)] * 3, _mla(12)),
        match_unit=2,
        drafter=_draft("mtp", 3),
        flags=(Flags(_MARKED_BY_031, (3,)),),
    ),
    Preset(
        name="k3_dspark_mla_unit",
        models="Kimi K3 with a DSpark drafter of five MLA layers, seven drafts",
        sizes=f"{_K3_SIZES} The drafter's layers join the MLA group: 29 layers.",
        groups=(*[_mamba(12, 7)] * 3, _mla(12)),
        match_unit=2,
        drafter=_draft("dspark", 7),
        flags=(Flags(_MARKED_BY_029, (3,)), Flags(_MARKED_BY_033, ())),
    ),
    Preset(
        name="k3_dspark_swa_028_tp8",
        models="Kimi K3 on 8 GPUs with a windowed DSpark drafter, where its backend runs only small blocks",
        sizes=f"{_K3_DSPARK_SIZES} 768 : 1728 : 192 : 6912 is 4 : 9 : 1 : 36, exact; three drafts instead of seven.",
        groups=(_mamba(4, 3), _mamba(4, 3), _mla(4), _window(9, 11)),
        drafter=_draft("dspark", 3),
    ),
    Preset(
        name="k3_dspark_swa_028_tp4",
        models="Kimi K3 on 4 GPUs with a windowed DSpark drafter, where its backend runs only small blocks",
        sizes=f"{_K3_DSPARK_SIZES} 1536 : 1728 : 192 : 13824 is 8 : 9 : 1 : 72, exact; three drafts instead of seven.",
        groups=(_mamba(8, 3), _mamba(8, 3), _mla(8), _window(9, 11)),
        drafter=_draft("dspark", 3),
    ),
    Preset(
        name="k3_dspark_swa_030plus",
        models="Kimi K3 with a windowed DSpark drafter, 0.30.0 and later where its backend runs the large block",
        sizes="The drafter's layers take the block of 768 and are padded, so all blocks are equal; the window of 2048 "
        "tokens is 3 blocks, exact; three drafts instead of seven.",
        groups=(_mamba(4, 3), _mamba(4, 3), _mla(4), _window(4, 11)),
        drafter=_draft("dspark", 3),
    ),
    Preset(
        name="k3_dspark_swa_030plus_unit",
        models="Kimi K3 with a windowed DSpark drafter and a match unit, 0.30.0 and later",
        sizes="As k3_dspark_swa_030plus; the unit makes hashes finer, but the windowed group forbids hits inside one.",
        groups=(_mamba(4, 3), _mamba(4, 3), _mla(4), _window(4, 11)),
        match_unit=1,
        drafter=_draft("dspark", 3),
    ),
    Preset(
        name="nemotron",
        checkpoints=True,
        models="Nemotron-H, Nemotron 3 Nano",
        sizes="Four to six Mamba-2 layers to one full one: five groups here. Mamba-2 states of 128 heads raise the "
        f"block to 1040 tokens (2096 in Nano). {MAMBA_CHECKPOINT_NOTE}",
        groups=(*[_mamba(8)] * 4, _full(8)),
    ),
    Preset(
        name="nemotron_unit",
        checkpoints=True,
        models="Nemotron-H and Nemotron 3 Nano with a match unit",
        sizes=f"As nemotron with eight match units a block. {MAMBA_CHECKPOINT_NOTE}",
        groups=(*[_mamba(8)] * 4, _full(8)),
        match_unit=1,
    ),
    Preset(
        name="granite",
        checkpoints=True,
        models="Granite 4.0 H Small",
        sizes=f"36 Mamba-2 layers and 4 full ones: ten groups of four, blocks of 528 tokens. {MAMBA_CHECKPOINT_NOTE}",
        groups=(*[_mamba(8)] * 9, _full(8)),
    ),
    Preset(
        name="falcon",
        checkpoints=True,
        models="Falcon-H1",
        sizes="Every layer has both kinds, so there are two groups of all layers; the block is 1040 or 1568 tokens. "
        f"{MAMBA_CHECKPOINT_NOTE}",
        groups=(_full(8), _mamba(8)),
    ),
    Preset(
        name="jamba",
        models="Jamba v0.1 and 1.5",
        sizes="Seven Mamba-1 layers to one full one: eight groups of four. The small state needs only 80 tokens a "
        "block, an odd multiple of 16: 80 / 16 = 5.",
        groups=(*[_mamba(5)] * 7, _full(5)),
    ),
)

PRESETS: dict[str, Preset] = {preset.name: preset for preset in _ALL}
