"""The laws: all arithmetic of the rules, each written once.

They are called with ints by the model, and with the terms of a prover by whoever proves them, unchanged. So they use
the operations of ``arith`` and nothing of Python's that a term would get silently wrong. Sizes and positions are in
tokens unless a name says blocks or columns. Letters in comments are those of docs/rules.md.

``faults`` are literal: a fault changes a law, and the prover refutes it.
"""

from __future__ import annotations

from kvcheck.model.arith import (
    aligned,
    both,
    ceil_div,
    either,
    equal,
    floor_div,
    ite,
    maximum,
    minimum,
    negated,
    round_down,
)
from kvcheck.model.faults import Faults

# ---- capability: when hits may end inside a block (R3) ---------------------------------------------------------------


def can_end_inside(fine_grained: bool, block: int, hash_block: int) -> bool:
    """Whether a group can serve hits at multiples of h: its kind looks inside blocks, or its block is h (R2.12)."""
    return either(fine_grained, equal(block, hash_block))


def wants_partial_hits(is_mamba: bool, block: int, hash_block: int) -> bool:
    """Whether a group gains from hits inside its blocks: Mamba align with b > h (R3.2)."""
    return both(is_mamba, block > hash_block)


def partial_hits(possible: bool, some_group_wants: bool, all_groups_can: bool, faults: Faults) -> bool:
    """Whether hits may end inside a block, for all groups (R3.2). ``possible``: caching, several groups, no DCP."""
    able = both(possible, some_group_wants)
    if faults.no_capability_check:
        return able
    return both(able, all_groups_can)


def granularity(partial: bool, hash_block: int, scheduler_block: int) -> int:
    """Every hit is a multiple of this (R3.6)."""
    return ite(partial, hash_block, scheduler_block)


# ---- lookup (R2, R4) -------------------------------------------------------------------------------------------------


def cap(known: int, faults: Faults) -> int:
    """The longest hit allowed: the last token is always computed (R4.1)."""
    if faults.last_token_not_computed:
        return known
    return known - 1


def drop_unit(partial: bool, fine_grained: bool, block: int, hash_block: int) -> int:
    """How much further an EAGLE group looks, and then drops (R4.6)."""
    return ite(both(both(partial, fine_grained), block > hash_block), hash_block, block)


def looks_until(candidate: int, unit: int, cap_: int) -> int:
    """How far an EAGLE group looks: one unit past the candidate, never past the cap (R4.5)."""
    return minimum(candidate + unit, cap_)


def drop_stands(verified: bool, shortened: bool, dropped: bool, faults: Faults) -> bool:
    """Whether a group's drop stays verified after the lookup of one group: not if that one shortened the candidate
    (R4.7, R4.8). ``dropped``: that lookup dropped itself."""
    forgets = both(shortened, negated(dropped)) if faults.drop_not_verified_again else shortened
    return both(both(verified, negated(forgets)), negated(faults.drop_repeated))


def drop_verified(dropped: bool, faults: Faults) -> bool:
    """Whether the drop of a group that was looked up just now is verified at the length it returned (R4.7)."""
    return both(dropped, negated(faults.drop_repeated))


def window_blocks(window: int, block: int, faults: Faults) -> int:
    """Blocks before a boundary that its next token's window reaches into (R2.4)."""
    if faults.window_one_short:
        return floor_div(window - 1, block)
    return ceil_div(window - 1, block)


def chunk_start(position: int, chunk: int) -> int:
    """First position that a token at ``position`` attends to in chunked local attention (R2.6)."""
    return round_down(position, chunk)


def state_column(tokens: int, block: int) -> int:
    """The column that holds the state after so many tokens, at least one (R1.19)."""
    return ceil_div(tokens, block) - 1


def junction(longest: int, agreed: int) -> int:
    """A shared prefix that a sparsely kept group has not kept (R4.10); 0: none."""
    return ite(longest > agreed, longest, 0)


# ---- out of reach (R2, R8.2.4) ---------------------------------------------------------------------------------------


def settled(computed: int, in_flight: int, faults: Faults) -> int:
    """Tokens that no rejected draft takes back: those of processed steps (R8.2.4)."""
    if faults.windows_move_on_planned:
        return computed
    return maximum(0, computed - in_flight)


def window_passed(tokens: int, window: int, reprefillable: int) -> int:
    """So many first tokens no later token's window reaches; r more are kept for the drafter (R2.5)."""
    return maximum(0, tokens - window + 1 - reprefillable)


def states_passed(tokens: int) -> int:
    """The state after ``tokens`` is needed, those before are not (R2.10)."""
    return maximum(0, tokens - 1)


def resumes_at(total: int, known: int, faults: Faults) -> int:
    """Where a request goes on that has ``total`` tokens of hits: its last token is computed again (R7.9)."""
    if faults.load_window_one_short:
        return total
    return minimum(total, known - 1)


# ---- registration (R5) -----------------------------------------------------------------------------------------------


def finalised(tokens: int, reprefillable: int) -> int:
    """f of R5: the tokens that no drafter will prefill again."""
    return maximum(0, tokens - reprefillable)


def findable(tokens: int, partial: bool, scheduler_block: int) -> int:
    """A of R5: the longest prefix that a hit can have. With partial hits no rounding at all (R5.3)."""
    return ite(partial, tokens, round_down(tokens, scheduler_block))


def ordinary_bound(tokens: int, partial: bool, scheduler_block: int, hash_block: int, faults: Faults) -> int:
    """How many tokens an ordinary group registers (R5.1)."""
    if faults.bound_rounded_to_hash:
        return ite(partial, round_down(tokens, hash_block), round_down(tokens, scheduler_block))
    return findable(tokens, partial, scheduler_block)


def eagle_bound(
    tokens: int, reprefillable: int, block: int, partial: bool, scheduler_block: int, faults: Faults
) -> int:
    """How many tokens an EAGLE group registers: the block that lookups peek at too (R5.2)."""
    final = finalised(tokens, reprefillable)
    whole = (
        round_down(final, scheduler_block) if faults.eagle_bound_rounded else findable(final, partial, scheduler_block)
    )
    return ite(findable(tokens, partial, scheduler_block) > 0, minimum(final, whole + block), 0)


def state_planned(known: int, planned: int, faults: Faults) -> int:
    """What states stand after once a step has run: ``planned`` tokens, drafts included, ``known`` without (R5.4.2)."""
    return known if faults.partial_tail_registered_twice else planned


def state_at_output(final: int, faults: Faults) -> int:
    """What a state stands after when the output of an earlier step makes ``final`` tokens final: -1, it has moved on
    with the steps in flight (R6.6)."""
    return final if faults.partial_tail_registered_twice else -1


def prompt_tail(prompt: int, hash_block: int) -> int:
    """t of R5.4: the prompt's last hash boundary."""
    return round_down(prompt, hash_block)


def tail_inside(tail: int, block: int) -> bool:
    """Whether the prompt's last hash boundary lies inside a block (R5.4)."""
    return both(tail > 0, negated(aligned(tail, block)))


def is_tail_state(bound: int, state: int, tail: int, lag: int, faults: Faults) -> bool:
    """Whether the state after ``state`` tokens is that of the prompt's tail, and the bound is there (R5.4.2).

    ``lag``: r for an EAGLE group, whose bound is so many tokens behind the state, else 0.
    """
    if faults.bound_rounded_to_hash:
        return equal(bound, tail)
    if faults.mtp_registers_wrong_tail:
        return both(equal(bound, tail), either(lag > 0, equal(state, tail)))
    return both(equal(bound, tail), equal(state, tail))


def kept_by_segment(column: int, block: int, segment: int, need: int, peek: int) -> bool:
    """Sliding window: whether some multiple of ``segment`` needs this column (R5.6.2, R5.6.5).

    ``need``: blocks before a boundary, the ``peek`` (0 or 1) block behind it included.
    """
    per = floor_div(segment, block)
    from_boundary = column - peek - round_down(column - peek, per)
    return either(need >= per, both(column >= peek, from_boundary >= per - need))


def kept_by_boundary(column: int, block: int, boundary: int, scheduler_block: int, need: int, peek: int) -> bool:
    """Sliding window: whether a replay boundary or a junction needs this column (R5.6.4, R5.6.6, R5.6.7)."""
    end = floor_div(round_down(boundary, scheduler_block), block) + peek
    return both(column >= end - need, column < end)


def replay_with_drop(prompt: int, scheduler_block: int) -> int:
    """Where a replay of the prompt resumes if groups drop: at most a scheduler block lower than without (R4.5)."""
    return maximum(0, prompt - 1 - scheduler_block)


def state_at_segment(column: int, block: int, segment: int) -> bool:
    """Mamba: whether this column's state is at a multiple of ``segment`` (R5.6.5)."""
    return aligned(block * (column + 1), segment)


def state_at_boundary(column: int, block: int, boundary: int, scheduler_block: int) -> bool:
    """Mamba: whether this column's state is at the rounded boundary (R5.6.4, R5.6.6, R5.6.7)."""
    return equal(block * (column + 1), round_down(boundary, scheduler_block))


# ---- connector (R7) --------------------------------------------------------------------------------------------------


def takes_agreed(full: int, deepest: int, faults: Faults) -> bool:
    """Whether a connector is told the agreed length, as some group hits deeper than full attention (R7.5.1)."""
    return both(deepest > full, negated(faults.diverged_hit_maximum))


def diverged_length(full: int, deepest: int, faults: Faults) -> int:
    """The local hit where groups diverge: that of full attention (R7.5.2)."""
    return deepest if faults.diverged_hit_maximum else full


def is_diverged(shallowest: int, length: int, faults: Faults) -> bool:
    """Whether some group has less than the local hit (R7.5.2)."""
    return both(shallowest < length, negated(faults.diverged_hit_maximum))


def falls_back(diverged: bool, external: int, faults: Faults) -> bool:
    """Whether the agreed length is taken after all: a diverged hit without external tokens (R7.6)."""
    return both(both(diverged, equal(external, 0)), negated(faults.diverged_no_fallback))


def told_to_connector(local: int, scheduler_block: int) -> int:
    """The local hit as the connector is told it: without its tail (R7.1)."""
    return round_down(local, scheduler_block)


def external_adopted(external: int, tail: int, faults: Faults) -> int:
    """How many external tokens are taken: those that reach further than the local tail (R7.2)."""
    if faults.external_beside_tail:
        return external
    return ite(external > tail, external, 0)


def local_adopted(local: int, external: int, tail: int) -> int:
    """The local hit beside so many external tokens: without its tail if the external ones replace it (R7.2)."""
    return ite(external > 0, local - tail, local)


# ---- allocation (R8.1, R8.5, R8.6) -----------------------------------------------------------------------------------


def attention_blocks(tokens: int, block: int, passed: int, held: int) -> int:
    """New blocks for a table that holds ``held`` columns, those of ``passed`` tokens being null (R8.1)."""
    return maximum(0, ceil_div(tokens, block) - maximum(floor_div(passed, block), held))


def counted_as_held(kept: int, columns: int, faults: Faults) -> int:
    """What a table of ``columns`` holds of what its group holds at once: the ``kept`` blocks that were not given back
    (R10.54)."""
    return columns if faults.given_up_counted_as_held else kept


def at_once(blocks: int, most: int, held: int) -> int:
    """Of new ``blocks`` those that a group which gives blocks back needs beside the ``held`` ones (R8.5)."""
    return minimum(blocks, maximum(0, most - held))


def with_hits(blocks: int, copied: bool, revived: int, faults: Faults) -> int:
    """An estimate of new blocks with what a hit takes: the copy of its tail, and those of its blocks that leave the
    free queue (R8.1)."""
    copy = 0 if faults.copy_not_counted else ite(copied, 1, 0)
    return blocks + copy + (0 if faults.hit_blocks_not_counted else revived)


def states_required(tokens: int, block: int, speculative: int) -> int:
    """Columns of a Mamba table that runs up to ``tokens``, speculative ones included (R1.19)."""
    return ceil_div(tokens, block) + speculative


def counts_load(external: int, faults: Faults) -> bool:
    """Whether the state of a load is counted, if there is one (R8.1)."""
    return both(external > 0, negated(faults.mamba_estimate_ignores_load))


def states_missing(required: int, held: int, speculative: int, grown: bool, tail: bool, faults: Faults) -> int:
    """New Mamba blocks at most (R8.1): one for a running request, which reuses its speculative blocks; the
    speculative ones too for one that begins; and the copy of a partial tail."""
    counted = both(tail, negated(faults.copy_not_counted))
    copy = ite(counted, 1, 0)
    missing = ite(counted, maximum(required - held, 0) + 1, required - held)
    most = ite(grown, 1, 1 + speculative) + copy
    return ite(missing > 0, most, missing)


def states_loaded(total: int, block: int, hit_columns: int) -> int:
    """Blocks that the state of a load takes: one, if no hit brings that column (R7.3)."""
    column = state_column(total, block)
    return maximum(0, column + 1 - maximum(column, hit_columns))


def states_behind_load(required: int, held: int, speculative: int) -> int:
    """New Mamba blocks of a request that begins behind a load, with ``held`` columns up to the loaded state (R8.1)."""
    return maximum(0, minimum(required - held, 1 + speculative))


def window_most_blocks(window: int, reprefillable: int, in_flight: int, longest: int, block: int) -> int:
    """Blocks of a sliding window that one request holds at once, at most (R8.5)."""
    return ceil_div(minimum(window - 1 + reprefillable + in_flight, longest), block) + 1


def chunk_most_blocks(chunk: int, in_flight: int, longest: int, block: int) -> int:
    """Blocks of chunked local attention that one request holds at once, at most (R8.5)."""
    return ceil_div(minimum(chunk + in_flight, longest), block)


# ---- ends of prefill chunks (R8.4) -----------------------------------------------------------------------------------


def chunk_grid(mamba: int, smallest: int, faults: Faults) -> int:
    """G of R8.4: what chunks of a layout with Mamba groups are cut to."""
    return smallest if faults.chunk_grid_smallest_block else mamba


def prefill_end(prompt: int, known: int) -> int:
    """Where a prefill ends: a resumed request runs its outputs again too (R8.4)."""
    return maximum(prompt, known - 1)


def last_cacheable(known: int, grid: int, eagle: bool) -> int:
    """The last position whose state can be hit (R8.4.4)."""
    return ite(eagle, maximum(round_down(known, grid) - grid, 0), round_down(known, grid))


def cut_to_grid(start: int, end: int, prefill: int, grid: int, largest: int, faults: Faults) -> int:
    """Where a chunk ends that does not finish the prefill (R8.4.1)."""
    cut = round_down(end, grid)
    uncut = ite(either(cut > start, grid <= largest), cut, end)
    if faults.chunk_floored_to_zero:
        uncut = cut
    return ite(end < prefill, uncut, end)


def prefill_threshold(threshold: int, lookahead: int, faults: Faults) -> int:
    """The most tokens of a request in one pass, 0: no limit. What the drafter's last chunk needs is within it, or
    R8.4.7 would leave nothing (R8.4.8)."""
    limit = maximum(threshold, lookahead)
    return ite(both(threshold > 0, negated(faults.threshold_below_lookahead)), limit, threshold)


def largest_chunk(budget: int, slots: int, threshold: int, faults: Faults) -> int:
    """The largest chunk that a pass can run (R8.4.1): the budget without the drafter's places, or the threshold if
    there is one (0: none)."""
    room = budget if faults.largest_chunk_ignores_slots else budget - slots
    return ite(threshold > 0, minimum(room, threshold), room)


def next_grid(start: int, grid: int) -> int:
    """The stop of a chunk that starts inside a block (R8.4.3); 0: it does not."""
    return ite(aligned(start, grid), 0, round_down(start, grid) + grid)


def tail_stop(tail: int, cacheable: int, prompt: int) -> int:
    """The stop at the prompt's last hash boundary (R8.4.5); 0: none."""
    return ite(both(cacheable < tail, tail < prompt), tail, 0)


def junction_stop(start: int, end: int, junction_: int, grid: int) -> int:
    """The stop at a junction, whole blocks from the start (R8.4.6); 0: none."""
    inside = both(start < junction_, junction_ < end)
    return ite(inside, start + round_down(junction_ - start, grid), 0)


def stopped(start: int, end: int, stop: int) -> int:
    """Where a chunk ends that must not run past a stop strictly inside it (R8.4.2)."""
    return ite(both(start < stop, stop < end), stop, end)


def chunk_end(
    start: int,
    end: int,
    known: int,
    prompt: int,
    tail: int,
    junction_: int,
    grid: int,
    largest: int,
    eagle: bool,
    faults: Faults,
) -> int:
    """Where a chunk ends that begins before the prefill's end and could run to ``end`` (R8.4.1 to R8.4.6): states are
    kept where chunks end, so chunks end where a state is worth keeping. At its start: no token runs in this pass.
    ``tail``: the prompt's last hash boundary, 0 if there is no stop at it."""
    cacheable = last_cacheable(known, grid, eagle)
    bound = either(negated(faults.chunk_past_last_boundary), start < cacheable)
    last = ite(bound, cut_to_grid(start, end, prefill_end(prompt, known), grid, largest, faults), end)
    inside = both(bound, negated(faults.chunk_starts_off_grid))
    stop_inside = stopped(start, last, ite(inside, next_grid(start, grid), 0))
    stop_cacheable = stopped(start, last, cacheable)
    stop_tail = stopped(start, last, tail_stop(tail, cacheable, prompt))
    stop_junction = stopped(start, last, junction_stop(start, last, junction_, grid))
    first = minimum(minimum(stop_inside, stop_cacheable), minimum(stop_tail, stop_junction))
    return maximum(start, first)


def must_end(end: int, grid: int, tail: int, faults: Faults) -> bool:
    """Whether a chunk must end where it does, on the grid or at the prompt's tail (0: there is none) (R8.4.7)."""
    return both(either(aligned(end, grid), equal(end, tail)), negated(faults.mtp_reserve_over_stop))


def lookahead_kept(known: int, start: int, end: int, lookahead: int) -> int:
    """Where a chunk ends that must not leave 1 to m - 1 tokens for the last one (R8.4.7)."""
    left = known - end
    short = both(left > 0, left < lookahead)
    return ite(short, maximum(start, end - (lookahead - left)), end)
