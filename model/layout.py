"""A layout: what the server was configured with. Data, its validation, and the sizes derived from it (R1, R3)."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Literal

import msgspec

from kvcheck.model import laws
from kvcheck.model.arith import ceil_div
from kvcheck.model.faults import NO_FAULTS, Faults

Kind = Literal["full", "mla", "sliding_window", "chunked_local", "mamba"]
Method = Literal["eagle", "eagle3", "mtp", "dflash", "dspark", "draft_model", "ngram"]

EAGLE_FAMILY: frozenset[str] = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
"""Drafters that the server treats as EAGLE: groups are flagged, lookups drop (R1)."""
NEXT_TOKEN_DRAFTERS: frozenset[str] = frozenset({"eagle", "eagle3", "mtp"})
"""Drafters whose cached content at a position depends on the token after it."""

MOST_GROUPS = 64
MOST_SIZE = 1_000_000
"""Of any size in blocks or tokens: more is no scope to check, and would only be slow."""


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Layers of one kind that share block tables (R1).

    ``block_size``, ``window``, ``chunk`` and ``checkpoint_alignment`` are in tokens; ``speculative_blocks`` and
    ``checkpoint_blocks`` in blocks a request. Two groups of one kind whose layers differ (another number of heads,
    say) get another ``variant``: groups with equal fields are looked up together.
    """

    kind: Kind
    block_size: int
    window: int = 0
    chunk: int = 0
    eagle: bool = False
    speculative_blocks: int = 0
    checkpoint_blocks: int = 0
    checkpoint_alignment: int | None = None
    variant: int = 1

    @property
    def is_attention(self) -> bool:
        """Whether each token has a cell of its own; otherwise a block holds one recurrent state."""
        return self.kind != "mamba"

    @property
    def keeps_whole_prefix(self) -> bool:
        """Full attention in either form: nothing is given up before the request ends (R2)."""
        return self.kind in ("full", "mla")

    @property
    def fine_grained(self) -> bool:
        """Whether this kind's lookup can end inside a block (R2)."""
        return self.kind in ("full", "mla", "mamba")


class Drafter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Speculative decoding: ``tokens`` drafts a step, proposed by ``modules`` chained draft modules (R1)."""

    method: Method
    tokens: int
    modules: int = 1

    @property
    def is_eagle(self) -> bool:
        """Whether the server treats this drafter as one of the EAGLE family (R1)."""
        return self.method in EAGLE_FAMILY

    @property
    def prefill_lookahead(self) -> int:
        """m of R1: how many tokens past the computed ones the drafter reads during prefill."""
        if not self.is_eagle:
            return 0
        return self.tokens if self.method == "mtp" and min(self.modules, self.tokens) > 1 else 1

    @property
    def lookahead(self) -> int:
        """Places behind a step's tokens that the drafter writes to, in tokens (R8.1)."""
        if self.method == "dflash":
            return self.tokens + 1
        return 0 if self.method == "ngram" else self.tokens

    @property
    def slots(self) -> int:
        """Places of the token budget that each request takes besides its tokens."""
        return {"dflash": self.tokens, "dspark": self.tokens - 1, "draft_model": 1}.get(self.method, 0)

    @property
    def content_lookahead(self) -> int:
        """How many tokens past a position its cached draft content depends on."""
        return self.prefill_lookahead if self.method in NEXT_TOKEN_DRAFTERS else 0


class Connector(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A scripted KV connector (R7). What it answers is in the arrivals; this is what it *is*.

    ``divergent``: it declares support for local hits of unequal length, and loads asynchronously. ``duplicates``:
    it may report one completion twice, as some composed connectors do. ``reports``: whether it tells of a failed
    load by blocks or by request, or as the release wants it.
    """

    role: Literal["producer", "consumer", "both"] = "both"
    divergent: bool = False
    failure: Literal["recompute", "fail"] = "recompute"
    duplicates: bool = False
    reports: Literal["release", "blocks", "request"] = "release"


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """The configuration of one server.

    ``num_blocks`` includes the null block. ``match_unit``, ``max_model_len``, ``token_budget``,
    ``long_prefill_threshold`` (0: none) and ``retention`` are in tokens. ``grid``: prefill chunks are aligned to
    the Mamba block, as they should be, or to the smallest block of any group, as the engine's start-up has it
    (R10.13). ``retention`` is ``"dense"`` (every reachable block is kept), 0 (only where a replay of the prompt
    resumes), a multiple of the scheduler block size, or ``"release"``: what the release does when nothing is
    configured (R5.6). ``steps_in_flight`` 1 is synchronous scheduling, more is asynchronous.
    ``worker_generation`` 2 sends resumed requests as new ones.
    """

    groups: tuple[Group, ...]
    num_blocks: int
    max_model_len: int
    token_budget: int
    version: int = 1
    match_unit: int | None = None
    grid: Literal["mamba", "smallest"] = "mamba"
    max_requests: int = 4
    long_prefill_threshold: int = 0
    watermark: float = 0.0
    admit_whole: bool = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    caching: bool = True
    retention: Literal["dense", "release"] | int = "dense"
    drafter: Drafter | None = None
    steps_in_flight: int = 1
    connector: Connector | None = None
    dcp: int = 1
    zeroing: bool = False
    worker_generation: Literal[1, 2] = 1
    events: bool = False

    @cached_property
    def asynchronous(self) -> bool:
        """Whether a step may be scheduled before the one before it was processed (R8.2)."""
        return self.steps_in_flight > 1

    @cached_property
    def has_mamba(self) -> bool:
        """Whether some group keeps recurrent states."""
        return any(not g.is_attention for g in self.groups)

    @property
    def sparse(self) -> bool:
        """Whether some group registers only what some boundary can reach, so that retention matters (R5.6)."""
        return any(g.kind in ("sliding_window", "mamba") for g in self.groups)

    @cached_property
    def draft_tokens(self) -> int:
        """Drafts a step."""
        return self.drafter.tokens if self.drafter else 0

    @property
    def lookahead(self) -> int:
        """Places behind a step's tokens that the drafter writes to, in tokens."""
        return self.drafter.lookahead if self.drafter else 0

    @property
    def draft_slots(self) -> int:
        """Places of the token budget that each request takes besides its tokens."""
        return self.drafter.slots if self.drafter else 0

    @cached_property
    def prefill_lookahead(self) -> int:
        """m of R1."""
        return self.drafter.prefill_lookahead if self.drafter else 0

    @cached_property
    def reprefillable(self) -> int:
        """r of R1: tokens at the end of a prefill that may be prefilled again."""
        return max(0, self.prefill_lookahead - 1)

    @cached_property
    def _block_tokens(self) -> tuple[int, ...]:
        return tuple(g.block_size * self.dcp if g.is_attention else g.block_size for g in self.groups)

    def block_tokens(self, group: int) -> int:
        """Tokens that one block of this group stands for: attention is spread over the DCP ranks (R1.6)."""
        return self._block_tokens[group]

    @cached_property
    def scheduler_block(self) -> int:
        """S of R1, in tokens."""
        return math.lcm(*(self.block_tokens(i) for i in range(len(self.groups))))

    @cached_property
    def hash_block(self) -> int:
        """h of R1, in tokens: the distance between two positions that have a hash."""
        if len(self.groups) == 1 or not (self.caching or self.connector):
            return self.scheduler_block
        if self.match_unit is not None:
            return self.match_unit
        return math.gcd(*(self.block_tokens(i) for i in range(len(self.groups))))

    @cached_property
    def mamba_block(self) -> int:
        """Block size of the Mamba groups in tokens; 0 without any."""
        return next((g.block_size for g in self.groups if not g.is_attention), 0)

    @property
    def chunk_grid(self) -> int:
        """Block size that prefill chunks are aligned to when a group keeps recurrent states (R8.4), in tokens."""
        smallest = min(g.block_size for g in self.groups)
        return smallest if self.grid == "smallest" else self.mamba_block or smallest

    @cached_property
    def eagle_groups(self) -> frozenset[int]:
        """Groups treated as EAGLE: those flagged, or all when a drafter of the family flags none (R1).

        Equal groups are looked up together, so a flag on one of them holds for all of them.
        """
        if self.drafter is None or not self.drafter.is_eagle:
            return frozenset()
        flagged = {self.lookup_spec(g) for g in self.groups if g.eagle}
        if not flagged:
            return frozenset(range(len(self.groups)))
        return frozenset(i for i, g in enumerate(self.groups) if self.lookup_spec(g) in flagged)

    @staticmethod
    def lookup_spec(group: Group) -> Group:
        """The group as lookups see it: groups that are equal so are looked up together (R1.5)."""
        return msgspec.structs.replace(group, eagle=False)

    @cached_property
    def partial_hits(self) -> bool:
        """Whether hits may end inside a block (R3)."""
        return self.partial_hits_with(NO_FAULTS)

    def partial_hits_with(self, faults: Faults) -> bool:
        """Whether hits end inside a block on a server with these faults."""
        h = self.hash_block
        possible = len(self.groups) > 1 and self.caching and self.dcp == 1
        wanted = any(laws.wants_partial_hits(not g.is_attention, g.block_size, h) for g in self.groups)
        able = all(laws.can_end_inside(g.fine_grained, g.block_size, h) for g in self.groups)
        return laws.partial_hits(possible, wanted, able, faults)

    @cached_property
    def granularity(self) -> int:
        """Every hit is a multiple of this many tokens (R3)."""
        return laws.granularity(self.partial_hits, self.hash_block, self.scheduler_block)

    def most_at_once(self, group: int, ahead: int) -> int | None:
        """Blocks that one request holds in this group at a time, at most, if the group gives blocks back on the way and
        no state is all that it keeps (R8.5). ``ahead``: tokens that it has places for behind the planned ones."""
        spec, longest = self.groups[group], self.max_model_len
        in_flight = self.steps_in_flight * self.token_budget + ahead
        if spec.kind == "sliding_window":
            return laws.window_most_blocks(spec.window, self.reprefillable, in_flight, longest, spec.block_size)
        if spec.kind == "chunked_local":
            return laws.chunk_most_blocks(spec.chunk, in_flight, longest, spec.block_size)
        return None

    def blocks_for_one(self, group: int) -> int:
        """Blocks that one request of the maximum length may hold in this group at a time (R8.6).

        What the drafter looks ahead counts where blocks are given back on the way (R10.48).
        """
        spec = self.groups[group]
        if spec.kind == "mamba":
            return 2 + spec.speculative_blocks + spec.checkpoint_blocks
        most = self.most_at_once(group, self.lookahead)
        return ceil_div(self.max_model_len, self.block_tokens(group)) if most is None else most

    def copies_for_one(self, group: int) -> int:
        """Blocks for copies of one request in this group: of a hit's tail, and of a state that a Mamba group registers
        inside a block, whether hits end there or not (R6.1, R6.5)."""
        spec = self.groups[group]
        tails = self.caching and spec.fine_grained and self.block_tokens(group) != self.hash_block
        return int(tails and (self.partial_hits or spec.kind == "mamba"))

    @property
    def min_blocks(self) -> int:
        """Blocks that a pool needs at least: the null block, one request of maximum length, and its copies (R8.6)."""
        return 1 + sum(self.blocks_for_one(i) + self.copies_for_one(i) for i in range(len(self.groups)))


class LayoutError(ValueError):
    """A layout that no server would start with; the text says which rule it breaks."""


def problems(layout: Layout) -> list[str]:
    """Why no real server would accept this layout; empty if one would. Each text names the rule."""
    found = [*_size_problems(layout), *_group_problems(layout)]
    if found:
        return found
    return [*_combination_problems(layout), *_pool_problems(layout)]


def validate(layout: Layout) -> Layout:
    """The layout itself.

    Raises:
        LayoutError: it breaks a rule that the real server checks when it starts.
    """
    if found := problems(layout):
        raise LayoutError("; ".join(found))
    return layout


def _size_problems(layout: Layout) -> list[str]:
    positive = {
        "num_blocks": layout.num_blocks,
        "max_model_len": layout.max_model_len,
        "token_budget": layout.token_budget,
        "max_requests": layout.max_requests,
        "steps_in_flight": layout.steps_in_flight,
        "dcp": layout.dcp,
    }
    sizes = positive | {f"block_size of group {i}": group.block_size for i, group in enumerate(layout.groups)}
    found = [
        f"R1: {name} is {value}, not 1 to {MOST_SIZE}" for name, value in sizes.items() if not 1 <= value <= MOST_SIZE
    ]
    if layout.version != 1:
        found.append(f"layout version {layout.version} is not known (1 is)")
    if not 0 < len(layout.groups) <= MOST_GROUPS:
        found.append(f"R1: a layout has at least one group, and at most {MOST_GROUPS} here")
    if not 0.0 <= layout.watermark < 1.0:
        found.append(f"watermark is a share of the pool in [0, 1), not {layout.watermark}")
    if layout.long_prefill_threshold < 0:
        found.append("long_prefill_threshold must not be negative")
    if layout.token_budget < layout.max_requests:
        found.append(f"token_budget {layout.token_budget} is below max_requests {layout.max_requests}")
    return found


def _group_problems(layout: Layout) -> list[str]:
    found = []
    for i, g in enumerate(layout.groups):
        name = f"group {i} ({g.kind})"
        if g.block_size < 1:
            found.append(f"R1: {name}: block_size must be at least 1")
        if (g.kind == "sliding_window") != (g.window > 1):
            found.append(f"R2: {name}: a window belongs to sliding-window groups and has at least two tokens there")
        if (g.kind == "chunked_local") != (g.chunk > 1):
            found.append(f"R2: {name}: a chunk belongs to chunked-local groups and has at least two tokens there")
        if g.kind == "chunked_local" and g.block_size > 0 and g.chunk % g.block_size:
            found.append(f"R2: {name}: the chunk {g.chunk} must be a multiple of the block size {g.block_size}")
        if g.is_attention and (g.speculative_blocks or g.checkpoint_blocks or g.checkpoint_alignment):
            found.append(f"R2: {name}: speculative and checkpoint blocks belong to Mamba groups")
        if (g.checkpoint_blocks > 0) != (g.checkpoint_alignment is not None) or g.checkpoint_alignment == 0:
            found.append(f"R2: {name}: checkpoint blocks and their alignment go together")
        if min(g.speculative_blocks, g.checkpoint_blocks) < 0 or g.variant < 1:
            found.append(f"{name}: counts must not be negative")
    return found


def _combination_problems(layout: Layout) -> list[str]:
    found = []
    groups, sizes = layout.groups, [layout.block_tokens(i) for i in range(len(layout.groups))]
    if layout.match_unit is not None:
        if len(groups) == 1:
            found.append("R1: match_unit needs several groups")
        elif layout.match_unit < 1 or any(size % layout.match_unit for size in sizes):
            found.append(f"R1: match_unit {layout.match_unit} must divide every block size {sizes}")
    if len(groups) > 1 and len({layout.lookup_spec(g) for g in groups}) == 1:
        found.append("R1.5: several groups are of at least two kinds")
    recurrent = {(g.block_size, g.speculative_blocks, g.checkpoint_blocks) for g in groups if not g.is_attention}
    if len(recurrent) > 1:
        found.append("R2: all Mamba groups share one block size and one number of speculative blocks")
    if layout.dcp > 1 and any(not g.keeps_whole_prefix and g.is_attention for g in groups):
        found.append("R3: DCP works with full-attention and Mamba groups only")
    if any(g.eagle for g in groups) and not (layout.drafter and layout.drafter.is_eagle):
        found.append("R1: an EAGLE flag needs a drafter of the EAGLE family")
    found += _chunked_local_problems(layout)
    if layout.drafter is not None:
        found += _drafter_problems(layout, layout.drafter)
    if isinstance(layout.retention, int):
        found += _retention_problems(layout, layout.retention)
    if not layout.caching and layout.connector is None and layout.has_mamba:
        found.append("R2: Mamba align needs prefix caching")
    return found


def _chunked_local_problems(layout: Layout) -> list[str]:
    found = []
    for i, g in enumerate(layout.groups):
        if g.kind != "chunked_local":
            continue
        if layout.caching and layout.block_tokens(i) != layout.granularity:
            found.append(f"R2: chunked-local group {i}: block size {g.block_size} must equal the granularity")
        if i in layout.eagle_groups:
            found.append(f"R2: chunked-local group {i} cannot be an EAGLE group")
    return found


def _drafter_problems(layout: Layout, drafter: Drafter) -> list[str]:
    found = []
    if drafter.tokens < 1 or drafter.modules < 1:
        found.append("R1: a drafter proposes at least one token and has at least one module")
    if drafter.modules > 1 and drafter.method != "mtp":
        found.append("R1: only MTP has several draft modules")
    elif drafter.tokens > drafter.modules > 0 and drafter.tokens % drafter.modules:
        found.append(f"R1: {drafter.tokens} drafts are not a multiple of {drafter.modules} modules")
    if layout.token_budget <= drafter.tokens * 2:
        found.append(f"R8.4: token_budget {layout.token_budget} leaves no room for {drafter.tokens} drafts")
    for i, g in enumerate(layout.groups):
        if not g.is_attention and g.speculative_blocks != drafter.tokens:
            found.append(f"R2: Mamba group {i} needs one speculative block a draft ({drafter.tokens})")
    if layout.caching and layout.eagle_groups and layout.scheduler_block < drafter.prefill_lookahead:
        found.append(f"R1: scheduler block {layout.scheduler_block} is below the prefill lookahead")
    return found


def _retention_problems(layout: Layout, interval: int) -> list[str]:
    if interval < 0 or interval % layout.scheduler_block:
        return [f"R5.6: retention {interval} must be a multiple of the scheduler block {layout.scheduler_block}"]
    if interval and not layout.sparse:
        return ["R5.6: retention needs a sliding-window or Mamba group"]
    return []


def _pool_problems(layout: Layout) -> list[str]:
    if layout.num_blocks < layout.min_blocks:
        what = f"{layout.num_blocks} blocks cannot hold one request of {layout.max_model_len} tokens"
        return [f"R8.6: {what} ({layout.min_blocks} are needed)"]
    return []
