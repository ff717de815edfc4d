"""Random layouts, always valid: half of them variations of what real models resolve to, half free combinations.

Sizes are small, so that a request of some dozen tokens crosses every boundary, and pools are mostly tight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import msgspec

from kvcheck.engines.source import Source
from kvcheck.layouts.presets import all_presets
from kvcheck.model.layout import Connector, Drafter, Group, Layout

PRESET_VERSIONS: tuple[str, ...] = ("0.28.0", "0.32.0", "0.33.0")
"""One release for each way of marking EAGLE groups."""
Retention = Literal["dense", "release"] | int
LONGEST_REQUEST = 96
MOST_DRAFTS = 7


@dataclass(frozen=True, kw_only=True)
class Features:
    """What may be drawn. A target or an engine switches off what it cannot do."""

    sliding_window: bool = True
    chunked_local: bool = True
    mamba: bool = True
    dcp: bool = True
    drafter: bool = True
    asynchronous: bool = True
    connector: bool = True
    divergent: bool = True
    failed_loads: bool = True
    reports_requests: bool = True
    duplicates: bool = True
    stores: bool = True
    sessions: bool = True
    skip_reading: bool = True
    events: bool = True
    priorities: bool = True
    retention: bool = True
    smallest_grid: bool = True
    checkpoints: bool = True
    resets: bool = True
    pauses: bool = True
    evictions: bool = True

    def allows(self, layout: Layout) -> bool:
        """Whether the groups and the drafter of a layout are among what may be drawn."""
        kinds = {group.kind for group in layout.groups}
        return (
            (self.sliding_window or "sliding_window" not in kinds)
            and (self.chunked_local or "chunked_local" not in kinds)
            and (self.mamba or "mamba" not in kinds)
            and (self.drafter or layout.drafter is None)
        )


ALL_FEATURES = Features()


@dataclass(frozen=True)
class Core:
    """The part of a layout that the model decides. ``match_unit`` in tokens."""

    groups: tuple[Group, ...]
    match_unit: int | None = None
    drafter: Drafter | None = None
    dcp: int = 1

    @classmethod
    def of(cls, layout: Layout) -> Core:
        """That part of a layout."""
        return cls(layout.groups, layout.match_unit, layout.drafter, layout.dcp)

    @property
    def sizes(self) -> list[int]:
        """Effective block sizes in tokens (R1)."""
        return [g.block_size * self.dcp if g.is_attention else g.block_size for g in self.groups]

    @property
    def mamba_block(self) -> int:
        """Block size of the Mamba groups in tokens; 0 without any."""
        return next((g.block_size for g in self.groups if not g.is_attention), 0)


def random_layout(source: Source, features: Features = ALL_FEATURES) -> Layout:
    """A valid layout that uses no feature which is off."""
    core = _from_preset(source, features) if source.chance(35) else _free(source, features)
    return with_settings(source, core, features)


# ---- from presets ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _preset_layouts(features: Features) -> tuple[tuple[Layout, int], ...]:
    """Layouts of the presets, with weights: those whose hits are rare (a large scheduler block) are drawn less."""
    layouts = {p.layout(version): None for p in all_presets() for version in PRESET_VERSIONS}
    allowed = [layout for layout in layouts if features.allows(layout)]
    return tuple((layout, 4 if layout.scheduler_block <= 16 else 1) for layout in allowed)


def _from_preset(source: Source, features: Features) -> Core:
    """A preset's groups, sometimes with fewer repeats, another match unit, or a drafter added or taken away."""
    core = Core.of(source.weighted(_preset_layouts(features)))
    if source.chance(60):
        core = Core(_fewer_repeats(core.groups), core.match_unit, core.drafter)
    if source.chance(25):
        core = Core(core.groups, random_match_unit(source, core), core.drafter)
    if source.chance(25):
        core = with_drafter(source, core, features)
    return core if features.checkpoints or not _has_checkpoints(core) else _with_checkpoints(core, 0, None)


def _has_checkpoints(core: Core) -> bool:
    return any(g.checkpoint_blocks for g in core.groups)


def _with_checkpoints(core: Core, blocks: int, alignment: int | None) -> Core:
    """The core with that many prefill checkpoint blocks on its Mamba groups (R12.36)."""
    groups = tuple(
        g if g.is_attention else msgspec.structs.replace(g, checkpoint_blocks=blocks, checkpoint_alignment=alignment)
        for g in core.groups
    )
    return replace(core, groups=groups)


def _fewer_repeats(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """At most two of equal groups: all that it takes to have several."""
    kept: list[Group] = []
    for group in groups:
        if kept.count(group) < 2:
            kept.append(group)
    return tuple(kept)


# ---- free combinations -----------------------------------------------------------------------------------------------


def _free(source: Source, features: Features) -> Core:
    shapes = [(_attention_groups, 8)]
    if features.mamba:
        shapes += [(_hybrid_groups, 10), (_fine_hybrid_groups, 7)]
    if features.chunked_local:
        shapes.append((_chunked_groups, 2))
    groups = _told_apart(source.weighted(shapes)(source, features))
    dcp = 2 if features.dcp and source.chance(20) and _runs_with_dcp(groups) else 1
    core = Core(groups, None, None, dcp)
    if source.chance(60):
        core = Core(groups, random_match_unit(source, core), None, dcp)
    if source.chance(45):
        core = with_drafter(source, core, features)
    if features.checkpoints and source.chance(15):
        block = next((g.block_size for g in groups if not g.is_attention), 0)
        core = _with_checkpoints(core, 1, source.choose((1, block))) if block else core
    return core


def _runs_with_dcp(groups: Sequence[Group]) -> bool:
    """DCP spreads full attention and MLA; only Mamba works beside them (R1)."""
    return any(g.is_attention for g in groups) and all(g.keeps_whole_prefix or not g.is_attention for g in groups)


def _told_apart(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """The groups, the last one of other layers if all were equal: several groups are never one lookup group (R1)."""
    if len(groups) == 1 or len(set(groups)) > 1:
        return groups
    return (*groups[:-1], msgspec.structs.replace(groups[-1], variant=2))


def _attention_groups(source: Source, features: Features) -> tuple[Group, ...]:
    """One to six groups of full attention, MLA and sliding windows; mostly all blocks are equal."""
    block = source.weighted(((2, 6), (1, 1), (3, 1), (4, 6), (5, 1), (8, 2)))
    blocks = (block,) if source.chance(65) else (block, block * 2, block * 4, 3)
    return tuple(_attention(source, blocks, features) for _ in range(_count(source)))


def _count(source: Source) -> int:
    return source.weighted(((1, 4), (2, 8), (3, 4), (4, 2), (5, 1), (6, 1)))


def _attention(source: Source, blocks: Sequence[int], features: Features) -> Group:
    kind = source.weighted((("full", 4), ("mla", 2), ("sliding_window", 5 if features.sliding_window else 0)))
    block = source.choose(blocks)
    if kind == "sliding_window":
        return _window_group(source, block)
    variant = 2 if source.chance(15) else 1
    return Group(kind="mla" if kind == "mla" else "full", block_size=block, variant=variant)


def _window_group(source: Source, block: int) -> Group:
    """A sliding window of one to eight blocks, exact or one token off (R2)."""
    window = block * source.weighted(((2, 4), (1, 2), (3, 2), (4, 2), (8, 1))) + source.choose((0, 1, -1))
    return Group(kind="sliding_window", block_size=block, window=max(2, window))


def _chunked_groups(source: Source, features: Features) -> tuple[Group, ...]:
    """Chunked-local groups with others of the same block size, now and then with a Mamba group (R2)."""
    block = source.choose((2, 1, 4))
    groups = [
        Group(kind="chunked_local", block_size=block, chunk=max(2, block * source.choose((4, 1, 2, 8))))
        for _ in range(source.integer(1, 3))
    ]
    groups += [_attention(source, (block,), features) for _ in range(source.integer(0, 2))]
    if features.mamba and source.chance(15):
        groups.append(Group(kind="mamba", block_size=block * source.choose((1, 2, 4))))
    return tuple(groups)


def _hybrid_groups(source: Source, features: Features) -> tuple[Group, ...]:
    """Mamba groups and attention with blocks of the same size, as real servers set them; sometimes others."""
    block = source.weighted(((8, 4), (4, 4), (2, 3), (3, 2), (6, 2), (12, 1), (5, 1)))
    mamba = _mamba_groups(source, block)
    others = (block,) if source.chance(75) else (block, block // 2, max(1, block // 4))
    attention = [_attention(source, others, features) for _ in range(source.weighted(((1, 8), (2, 4), (3, 1), (0, 1))))]
    if features.sliding_window and source.chance(25):
        attention.append(_window_group(source, source.choose((block, block // 2, 9, 3))))
    return (*attention, *mamba) if source.chance(40) else (*mamba, *attention)


def _fine_hybrid_groups(source: Source, features: Features) -> tuple[Group, ...]:
    """Attention blocks well below the Mamba block: the hash unit is fine without a match unit (R5.3)."""
    unit = source.choose((2, 1))
    mamba = _mamba_groups(source, unit * source.choose((4, 2, 3)))
    attention = [_attention(source, (unit,), features) for _ in range(source.integer(1, 2))]
    return (*attention, *mamba)


def _mamba_groups(source: Source, block: int) -> list[Group]:
    """One to three Mamba groups of one block size, sometimes of layers that differ."""
    groups = [Group(kind="mamba", block_size=block) for _ in range(source.weighted(((1, 4), (2, 3), (3, 2))))]
    if len(groups) > 1 and source.chance(15):
        groups[-1] = msgspec.structs.replace(groups[-1], variant=2)
    return groups


def random_match_unit(source: Source, core: Core) -> int | None:
    """None, or a divisor of all block sizes, in tokens; what chunked-local groups forbid is not drawn (R1, R2)."""
    common = math.gcd(*core.sizes)
    if len(core.groups) == 1 or _chunked_with_larger_mamba(core):
        return None
    return source.choose([None, *(unit for unit in range(common, 0, -1) if common % unit == 0)])


def _chunked_with_larger_mamba(core: Core) -> bool:
    """Chunked-local blocks equal the granularity here only while it is their own size (R2)."""
    return any(g.kind == "chunked_local" and core.mamba_block > g.block_size for g in core.groups)


# ---- drafters --------------------------------------------------------------------------------------------------------


def with_drafter(source: Source, core: Core, features: Features) -> Core:
    """The core with another drafter, or without one."""
    drafter = _drafter(source, core) if features.drafter and source.chance(85) else None
    if drafter is not None and drafter.is_eagle and all(g.kind == "chunked_local" for g in core.groups):
        drafter = Drafter(method="draft_model", tokens=drafter.tokens)
    drafts = drafter.tokens if drafter else 0
    flags = _flags(source, core.groups) if drafter is not None and drafter.is_eagle else ()
    groups = tuple(
        msgspec.structs.replace(g, eagle=i in flags, speculative_blocks=0 if g.is_attention else drafts)
        for i, g in enumerate(core.groups)
    )
    return Core(groups, core.match_unit, drafter, core.dcp)


def _drafter(source: Source, core: Core) -> Drafter | None:
    """A drafter whose drafts stay below a Mamba block, as all real ones do. Several modules share the drafts evenly,
    and S covers them (R1)."""
    most = min(MOST_DRAFTS, core.mamba_block - 1) if core.mamba_block else MOST_DRAFTS
    if most < 1:
        return None
    tokens = min(most, source.weighted(((1, 5), (2, 5), (3, 4), (4, 2), (7, 1))))
    method = source.weighted(
        (("eagle", 3), ("eagle3", 3), ("mtp", 6), ("dflash", 1), ("dspark", 2), ("draft_model", 1), ("ngram", 1))
    )
    modules = 1
    if method == "mtp" and 1 < tokens <= math.lcm(*core.sizes) and source.chance(60):
        modules = source.choose([share for share in range(2, tokens + 1) if tokens % share == 0])
    return msgspec.convert({"method": method, "tokens": tokens, "modules": modules}, Drafter)


def _flags(source: Source, groups: tuple[Group, ...]) -> tuple[int, ...]:
    """Which groups are marked: none (then all are, R1), one, some or all; never chunked-local ones (R2)."""
    able = [i for i, g in enumerate(groups) if g.kind != "chunked_local"]
    how = source.weighted((("none", 8 if len(able) == len(groups) else 0), ("one", 5), ("some", 4), ("all", 2)))
    if how == "none":
        return ()
    if how == "one":
        return (source.choose(able),)
    if how == "all":
        return tuple(able)
    return tuple(i for i in able if source.chance(50)) or (able[-1],)


# ---- settings --------------------------------------------------------------------------------------------------------


def with_settings(source: Source, core: Core, features: Features) -> Layout:
    """The layout with everything that an operator decides."""
    scheduler_block = math.lcm(*core.sizes)
    drafts = core.drafter.tokens if core.drafter else 0
    max_requests = source.weighted(((4, 4), (1, 1), (2, 2), (3, 3), (5, 2)))
    max_model_len = _longest(source, scheduler_block)
    budget = max(max_requests, 2 * drafts + 1, _token_budget(source, core))
    if core.drafter is not None and source.chance(75):  # else its places are taken from the budget
        budget += max_requests * core.drafter.slots
    layout = Layout(
        groups=core.groups,
        num_blocks=1,
        match_unit=core.match_unit,
        grid="smallest" if features.smallest_grid and core.mamba_block and source.chance(10) else "mamba",
        drafter=core.drafter,
        dcp=core.dcp,
        max_model_len=max_model_len,
        token_budget=budget,
        max_requests=max_requests,
        long_prefill_threshold=_threshold(source, core.drafter, min(budget, max_model_len)),
        watermark=source.choose((0.01, 0.05, 0.1, 0.25)) if source.chance(20) else 0.0,
        admit_whole=not source.chance(20),
        policy="priority" if features.priorities and source.chance(35) else "fcfs",
        caching=bool(core.mamba_block) or not source.chance(5),
        retention=random_retention(source, core, scheduler_block) if features.retention else "dense",
        steps_in_flight=_steps_in_flight(source, core, features),
        connector=random_connector(source, features) if features.connector and source.chance(50) else None,
        zeroing=source.chance(50),
        worker_generation=_worker_generation(source, core.drafter),
        events=features.events and source.chance(25),
    )
    return msgspec.structs.replace(layout, num_blocks=layout.min_blocks + spare_blocks(source))


def _longest(source: Source, scheduler_block: int) -> int:
    """``max_model_len`` in tokens: room for a hit even where the scheduler block is large."""
    low = max(24, scheduler_block + 8)
    return source.integer(low, max(LONGEST_REQUEST, 2 * scheduler_block + 16))


def _token_budget(source: Source, core: Core) -> int:
    """Tokens a pass: mostly less than a long prompt, and mostly enough for a Mamba block and others beside it."""
    block = core.mamba_block
    if block and source.chance(75):
        return block * source.integer(1, 4) + source.integer(0, block)
    low, high = source.weighted((((8, 24), 5), ((1, 8), 2), ((24, 64), 3)))
    return source.integer(low, high)


def _threshold(source: Source, drafter: Drafter | None, most: int) -> int:
    """``long_prefill_threshold`` in tokens, mostly above what decoding takes; 0 is none. With several drafter modules
    often below what the last chunk must have (R8.4.7)."""
    modules = drafter is not None and drafter.prefill_lookahead > 1
    if not source.chance(50 if modules else 20):
        return 0
    least = max(4, 2 * drafter.tokens + 1) if drafter else 4
    if least > most or source.chance(50 if modules else 20):
        return source.integer(1, min(4, most))
    return source.integer(least, most)


def random_retention(source: Source, core: Core, scheduler_block: int) -> Retention:
    """Dense, only replay boundaries, every k tokens, or what the release does by itself (R5.6)."""
    sparse = any(g.kind in ("sliding_window", "mamba") for g in core.groups)
    ways: tuple[tuple[Retention, int], ...] = (("dense", 9), ("release", 5))
    if sparse:
        ways += ((0, 3), (scheduler_block, 2), (2 * scheduler_block, 1), (3 * scheduler_block, 1))
    return source.weighted(ways)


def _worker_generation(source: Source, drafter: Drafter | None) -> Literal[1, 2]:
    """The second one has no drafters but those of the EAGLE family; DSpark is at home there."""
    if drafter is not None and not drafter.is_eagle:
        return 1
    dspark = drafter is not None and drafter.method == "dspark"
    return 2 if source.chance(90 if dspark else 30) else 1


def _steps_in_flight(source: Source, core: Core, features: Features) -> int:
    """Steps in flight; drafts by n-gram are made from tokens that overlapping steps do not know yet."""
    if not features.asynchronous or (core.drafter is not None and core.drafter.method == "ngram"):
        return 1
    return source.weighted(((1, 5), (2, 4), (3, 1)))


def random_connector(source: Source, features: Features) -> Connector:
    """A connector of any kind that a server knows."""
    role = source.weighted((("both", 6), ("consumer", 3), ("producer", 1)))
    divergent = features.divergent and source.chance(55)
    failure = "fail" if source.chance(30) else "recompute"
    duplicates = features.duplicates and source.chance(10)
    reports = source.choose(("release", "release", "blocks", "request")) if features.reports_requests else "release"
    return msgspec.convert(
        {"role": role, "divergent": divergent, "failure": failure, "duplicates": duplicates, "reports": reports},
        Connector,
    )


def spare_blocks(source: Source) -> int:
    """Blocks beyond the fewest with which a server would start."""
    return source.integer(8, 40) if source.chance(25) else source.choose((0, 0, 0, 1, 2, 4))
