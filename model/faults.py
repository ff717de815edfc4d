"""Faults: what real servers did wrong, and what the rules warn of, as switches of the model.

The model reads a switch at the one place where the mistake would be made. All off is the intended behaviour of
0.28.0; all of a release on (``of_release``) is what that release does wrong, as far as it is known. What later releases
changed on purpose (R12) is not in the model: only ``model@0.28.0`` is the release, step by step.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

RELEASES = ("0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
"""The releases that were looked at."""
OLDEST, LATEST = RELEASES[0], RELEASES[-1]
"""A fault "since" the oldest may be older, and one "until" the latest may live on."""


@dataclass(frozen=True)
class Fault:
    """What a switch does wrong. ``rules``: what it breaks, and the reports of it. ``since`` and ``until``: the first
    and the last of the releases looked at that have it; empty: none has it, but one had it before, or it is what a
    rule warns of."""

    claim: str
    rules: str
    since: str = ""
    until: str = ""

    def in_release(self, version: str) -> bool:
        """Whether that release has it."""
        return bool(self.since) and _numbers(self.since) <= _numbers(version) <= _numbers(self.until)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Which faults are on."""

    # ---- lookup ----
    no_capability_check: Annotated[
        bool,
        Fault(
            "partial hits are on whatever kinds of groups there are",
            "R3.2 R3.5 R10.12 #51843",
            OLDEST,
            "0.27.1",
        ),
    ] = False
    last_token_not_computed: Annotated[bool, Fault("a hit may cover all tokens of a request", "R4.1")] = False
    single_pass_lookup: Annotated[
        bool, Fault("groups are looked up once, and not again when one of them shortens the hit", "R4.2")
    ] = False
    drop_repeated: Annotated[
        bool, Fault("EAGLE groups drop a unit in every round of the lookup", "R4.7 #32802 #42948")
    ] = False
    drop_not_verified_again: Annotated[
        bool,
        Fault(
            "when a lookup that drops shortens the hit, other EAGLE groups are not verified again",
            "R4.8 R10.5",
            OLDEST,
            LATEST,
        ),
    ] = False
    mamba_looks_further: Annotated[
        bool, Fault("a Mamba group looks one unit further like EAGLE groups, and never drops it", "R4.9 #43559")
    ] = False
    only_first_full_attention_trimmed: Annotated[
        bool,
        Fault(
            "a second lookup group of full attention keeps blocks beyond the agreed hit",
            "R4.3 R10.6",
            OLDEST,
            "0.28.0",
        ),
    ] = False
    window_run_rounded_twice: Annotated[
        bool,
        Fault(
            "a windowed EAGLE group with less than a window is rounded down before and after the drop",
            "R2.4 R4.5 R10.18",
            OLDEST,
            LATEST,
        ),
    ] = False
    window_one_short: Annotated[bool, Fault("a window's last, partly seen block is not asked for", "R2.4")] = False
    state_hit_in_its_own_step: Annotated[
        bool, Fault("a Mamba state can be hit in the step that writes it", "R5.5.3 #29387")
    ] = False
    tail_copied_in_its_own_step: Annotated[
        bool,
        Fault(
            "a partial tail of full attention is copied in the step that writes it",
            "R5.5.4 R10.7 R10.14",
            OLDEST,
            LATEST,
        ),
    ] = False
    extra_keys_not_hashed: Annotated[bool, Fault("hashes do not cover salt and adapter", "R1.10")] = False

    # ---- registration ----
    eagle_bound_rounded: Annotated[
        bool,
        Fault("the bound of EAGLE groups is rounded down though hits may end anywhere", "R5.3 R5.3.1 #50062 #52419"),
    ] = False
    bound_rounded_to_hash: Annotated[
        bool, Fault("bounds are rounded down to h, so that a Mamba tail is registered again", "R5.3 R6.7")
    ] = False
    mtp_registers_wrong_tail: Annotated[
        bool,
        Fault(
            "a Mamba group registers a state under a boundary r tokens before it",
            "R5.4.2 R10.8 R10.15",
            "0.28.0",
            LATEST,
        ),
    ] = False
    partial_tail_registered_twice: Annotated[
        bool,
        Fault(
            "with overlapping steps a Mamba tail is registered again on the block that moves on",
            "R6.6 R6.9 R10.19",
            OLDEST,
            "0.31.0",
        ),
    ] = False
    registration_does_not_move: Annotated[
        bool, Fault("a producer's tail stays registered on the block that it writes on", "R6.5 R6.6")
    ] = False
    load_registered_at_once: Annotated[bool, Fault("blocks that await an asynchronous load are registered", "R7.9")] = (
        False
    )
    preempted_keys_stay: Annotated[
        bool,
        Fault(
            "a request that is preempted in the pass that planned it leaves keys that no step writes",
            "R5.5.1 R10.20 #23347",
            OLDEST,
            LATEST,
        ),
    ] = False
    state_before_gap_kept: Annotated[
        bool,
        Fault(
            "of the states before columns that a chunk passed over only the last one is given up",
            "R2.10 R2.13 R10.50",
            OLDEST,
            "0.29.0",
        ),
    ] = False
    preempted_blocks_zeroed: Annotated[
        bool,
        Fault(
            "blocks of a request that is preempted in the pass that planned it are still zeroed by that pass's step",
            "R8.2.1 R10.49",
            OLDEST,
            LATEST,
        ),
    ] = False
    replay_boundary_not_kept: Annotated[
        bool, Fault("sparse retention forgets where a replay of the prompt resumes", "R5.6.4")
    ] = False
    replay_boundary_out_of_reach: Annotated[
        bool,
        Fault(
            "sparse retention keeps a replay boundary that lookups which drop cannot reach",
            "R5.6.4 R10.17",
            OLDEST,
            "0.29.0",
        ),
    ] = False
    junction_not_kept: Annotated[bool, Fault("sparse retention forgets junctions", "R5.6.6")] = False
    removal_with_copy_left: Annotated[
        bool,
        Fault("a removal is announced while another block has the key", "R1.11 R10.21 #55092", OLDEST, LATEST),
    ] = False
    reset_keeps_keys: Annotated[bool, Fault("a reset leaves keys in the map", "R1.10 #28827 #34382")] = False

    # ---- copy on write ----
    hit_block_not_copied: Annotated[
        bool, Fault("a request writes on in the block that its partial hit shares", "R6.1")
    ] = False
    copy_ends_not_kept: Annotated[bool, Fault("the ends of a copy keep a reference for ever", "R6.3 R8.7")] = False
    first_growth_unmarked: Annotated[
        bool,
        Fault("a loaded request that needs no new block is still taken for a new one at its tail", "R6.5 #51766"),
    ] = False

    # ---- allocation ----
    hit_blocks_not_counted: Annotated[
        bool, Fault("the estimate forgets hit blocks that leave the free queue", "R8.1 #45856 #41282")
    ] = False
    copy_not_counted: Annotated[bool, Fault("the estimate forgets the copy of a tail", "R8.1")] = False
    mamba_estimate_ignores_load: Annotated[
        bool,
        Fault("the Mamba estimate forgets the state of a load", "R8.1 R10.2 #46892", OLDEST, LATEST),
    ] = False
    local_blocks_touched_late: Annotated[
        bool, Fault("a group's load may evict another group's hit blocks", "R7.8 #33775")
    ] = False
    admission_counts_whole_window: Annotated[
        bool, Fault("admission counts blocks that a window gives back", "R8.5 #55818 #50169")
    ] = False
    admission_before_giving_up: Annotated[
        bool,
        Fault("admission does not count what the request is about to give back", "R8.5 R8.6.1 R10.30", OLDEST, LATEST),
    ] = False
    given_up_counted_as_held: Annotated[
        bool,
        Fault(
            "what a window still needs is counted as if it held the blocks that it gave back",
            "R8.5 R8.5.2 R8.6.1 R10.54",
            OLDEST,
            LATEST,
        ),
    ] = False
    lookahead_not_reserved: Annotated[
        bool,
        Fault(
            "what a prefill still needs does not count the drafter's places behind its last chunk",
            "R8.5.2 R8.6.1 R10.55",
            OLDEST,
            "0.31.0",
        ),
    ] = False
    block_freed_twice: Annotated[bool, Fault("a block that leaves a window is freed twice", "R1.12 #42571")] = False
    windows_move_on_planned: Annotated[
        bool, Fault("blocks are given up on planned tokens, not on processed ones", "R8.2.4 #33997")
    ] = False
    unregistered_blocks_age: Annotated[
        bool, Fault("blocks without a key wait behind cached ones in the free queue", "R1.14 #42656")
    ] = False

    # ---- scheduling ----
    chunk_grid_smallest_block: Annotated[
        bool,
        Fault("chunks end on the smallest block of any group", "R8.4 R10.13 R10.16", OLDEST, LATEST),
    ] = False
    chunk_floored_to_zero: Annotated[
        bool, Fault("a chunk smaller than a Mamba block is cut to nothing", "R8.4.1 R8.4.8 #40707 #47738")
    ] = False
    chunk_past_last_boundary: Annotated[
        bool,
        Fault(
            "behind the last cacheable position chunks end anywhere",
            "R8.4.1 R8.4.3 R10.25 R12.30 #51113",
            OLDEST,
            "0.26.0",
        ),
    ] = False
    chunk_starts_off_grid: Annotated[
        bool, Fault("a chunk that starts inside a Mamba block runs over its end", "R8.4.3 #51113")
    ] = False
    threshold_below_lookahead: Annotated[
        bool,
        Fault(
            "a long-prefill threshold below what the drafter's last chunk needs leaves zero tokens for ever",
            "R8.4.7 R8.4.8 R10.51",
            "0.28.0",
            LATEST,
        ),
    ] = False
    largest_chunk_ignores_slots: Annotated[
        bool,
        Fault(
            "a block that only a chunk without the drafter's places could fill cuts all chunks to nothing",
            "R8.4.1 R8.4.8 R10.26",
            "0.28.0",
            LATEST,
        ),
    ] = False
    mtp_reserve_over_stop: Annotated[
        bool,
        Fault(
            "what the drafter's last chunk needs is taken from a chunk that must end where it does",
            "R8.4.7 R8.4.8 R10.27",
            "0.28.0",
            LATEST,
        ),
    ] = False
    padded_decode_clipped: Annotated[
        bool,
        Fault("a padded decode keeps more drafts than tokens", "R8.4.3 R8.3 R10.28", "0.27.1", "0.28.0"),
    ] = False
    waiting_session_not_preempted: Annotated[
        bool,
        Fault("waiting sessions hold the blocks that each other needs", "R8.5.4 R8.6.1 R10.31 #57104", OLDEST, LATEST),
    ] = False
    finished_load_not_preempted: Annotated[
        bool,
        Fault("a finished load waits behind a request that needs its blocks", "R8.6.1 R10.32", OLDEST, "0.30.0"),
    ] = False
    frees_not_fenced: Annotated[
        bool, Fault("blocks are handed to a load while a step in flight writes them", "R8.2.1 R8.2.2 #45357")
    ] = False
    rejected_drafts_stay: Annotated[bool, Fault("rejected drafts stay counted as computed", "R1.15 R1.16 #39562")] = (
        False
    )
    preempted_output_counted: Annotated[
        bool, Fault("output of a preempted request is booked on counters that were reset", "R8.8 #48245")
    ] = False
    reset_drops_one_output: Annotated[
        bool, Fault("a reset drops one output in flight and keeps the later ones", "R8.8 R10.29", OLDEST, "0.26.0")
    ] = False

    # ---- connector ----
    diverged_hit_maximum: Annotated[
        bool,
        Fault("the longest hit of any group counts as computed", "R7.7 R10.11 #46453", OLDEST, OLDEST),
    ] = False
    diverged_no_fallback: Annotated[
        bool,
        Fault("a diverged hit without external tokens is adopted", "R7.6 #48425", OLDEST, OLDEST),
    ] = False
    diverged_lookup_ignores_dcp: Annotated[
        bool,
        Fault("the lookup for diverged hits does not know that DCP spreads blocks", "R7.5 R10.3", OLDEST, "0.28.0"),
    ] = False
    diverged_hit_truncated: Annotated[
        bool,
        Fault(
            "a diverged hit is cut to a length that a windowed group does not have",
            "R7.2 R7.5.2 R10.33",
            "0.27.1",
            LATEST,
        ),
    ] = False
    zeroed_below_diverged_hit: Annotated[
        bool,
        Fault(
            "blocks that a load fills below a diverged hit are zeroed behind its back",
            "R7.4 R10.34",
            "0.28.0",
            "0.31.0",
        ),
    ] = False
    external_beside_tail: Annotated[
        bool, Fault("external tokens replace a local tail that reaches further", "R7.2")
    ] = False
    external_hit_for_whole_prompt: Annotated[
        bool,
        Fault("external hits go to requests that must compute all", "R7.12 R10.4 #57269", OLDEST, "0.30.0"),
    ] = False
    load_window_one_short: Annotated[
        bool,
        Fault(
            "a load of all tokens keeps the window of the token behind them", "R2.4 R7.7 R7.9 R10.35", OLDEST, LATEST
        ),
    ] = False
    aborted_load_freed_at_once: Annotated[
        bool, Fault("an aborted load's blocks are handed out while it is written", "R7.11 #32255")
    ] = False
    aborted_load_never_freed: Annotated[
        bool, Fault("an aborted load's blocks are never given back", "R7.11 R8.7 #46283")
    ] = False
    completion_reported_twice: Annotated[
        bool,
        Fault("a second report of a finished load ends the engine", "R7.11 R10.36 #43226 #53049", OLDEST, LATEST),
    ] = False
    failed_load_several_groups: Annotated[
        bool,
        Fault("a failed load raises with more than one group", "R7.10 R10.1 #45474 #50388", OLDEST, "0.29.0"),
    ] = False
    failed_load_half_way_back: Annotated[
        bool,
        Fault(
            "a failed load sets back in place: windows and states to where they have nothing, and blocks that it has "
            "not filled are kept and zeroed by a step that does not run their request",
            "R7.10 R8.2.1 R10.40 R10.53",
            OLDEST,
            LATEST,
        ),
    ] = False
    failed_load_keeps_keys: Annotated[
        bool,
        Fault("what a failed load has not filled stays registered", "R7.10.1 R10.37", OLDEST, LATEST),
    ] = False
    failed_load_shared_block: Annotated[
        bool,
        Fault("a missing block that two requests share is left to one of them", "R7.10.1 R10.38", OLDEST, LATEST),
    ] = False
    failed_load_step_in_flight: Annotated[
        bool,
        Fault(
            "output of a step that was planned before a load failed is kept", "R7.10.1 R10.39 #45138", OLDEST, LATEST
        ),
    ] = False
    failed_load_reserves_for_itself: Annotated[
        bool,
        Fault("a request whose load failed must leave room for itself", "R8.5.2 R8.6.1 R10.41", OLDEST, LATEST),
    ] = False

    # ---- sessions ----
    tails_pinned: Annotated[
        bool,
        Fault(
            "the copied tails of all turns of a session stay pinned for a connector",
            "R8.6.1 R10.52",
            "0.27.1",
            "0.28.0",
        ),
    ] = False
    session_counts_cut_drafts: Annotated[
        bool,
        Fault(
            "drafts accepted behind the end of a turn count as computed in the next", "R1.15 R10.42", OLDEST, "0.32.0"
        ),
    ] = False
    session_keeps_discarded_hash: Annotated[
        bool,
        Fault("a session keeps the hash of a token that it discards", "R1.10 R6.9 R10.43 #49377", OLDEST, "0.31.0"),
    ] = False
    session_keeps_first_limit: Annotated[
        bool,
        Fault("a session's first limit holds for all its turns", "R8.6 R10.44", OLDEST, "0.30.0"),
    ] = False
    session_late_output_counted: Annotated[
        bool,
        Fault("output in flight of a session's last turn counts in the next", "R8.2 R10.45 #35755", OLDEST, "0.30.0"),
    ] = False
    stopped_session_lost: Annotated[
        bool,
        Fault("a session whose turn ends while it does not run leaves all queues", "R8.6.1 R10.46", OLDEST, "0.32.0"),
    ] = False


FAULTS: dict[str, Fault] = {
    name.replace("_", "-"): hint.__metadata__[0]
    for name, hint in typing.get_type_hints(Faults, include_extras=True).items()
}
"""All faults by the names that users write."""

NO_FAULTS = Faults()


def faults_on(names: Iterable[str]) -> Faults:
    """The model with these faults, as users write them.

    Raises:
        ValueError: there is no such fault.
    """
    wanted = {name.replace("-", "_") for name in names}
    known = {field.name for field in dataclasses.fields(Faults)}
    if unknown := wanted - known:
        raise ValueError(f"no such fault: {', '.join(sorted(name.replace('_', '-') for name in unknown))}")
    return Faults(**dict.fromkeys(wanted, True))


def names_of(faults: Faults) -> list[str]:
    """Which of them are on."""
    return [name for name in FAULTS if getattr(faults, name.replace("-", "_"))]


def of_release(version: str) -> list[str]:
    """All faults of one of the releases that were looked at, as users write them.

    Raises:
        ValueError: it was not looked at.
    """
    if version not in RELEASES:
        raise ValueError(f"the faults of {version!r} are not known, only those of {', '.join(RELEASES)}")
    return [name for name, fault in FAULTS.items() if fault.in_release(version)]
