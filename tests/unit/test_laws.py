"""The laws on ints: against counting, against a simulation, or against numbers worked out by hand."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvcheck.model import arith, laws
from kvcheck.model.faults import NO_FAULTS, Faults, faults_on

BLOCKS = (1, 2, 3, 4)
NOTHING_KEPT: set[int] = set()


# ---- where hits may end ----------------------------------------------------------------------------------------------


def test_a_group_serves_every_hash_boundary_if_its_kind_can_or_if_its_blocks_end_there() -> None:
    assert [laws.can_end_inside(fine, block, 2) for fine, block in product((True, False), (4, 2))] == [1, 1, 0, 1]


def test_only_a_mamba_group_with_blocks_above_h_gains_from_partial_hits() -> None:
    assert [laws.wants_partial_hits(is_mamba, b, 2) for is_mamba, b in product((True, False), (4, 2))] == [1, 0, 0, 0]


def test_partial_hits_need_all_three_conditions() -> None:
    on = [case for case in product((False, True), repeat=3) if laws.partial_hits(*case, NO_FAULTS)]
    assert on == [(True, True, True)]


def test_hits_are_multiples_of_h_or_of_the_scheduler_block() -> None:
    assert (laws.granularity(True, 2, 8), laws.granularity(False, 2, 8)) == (2, 8)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_window_needs_the_blocks_that_the_next_token_sees_before_a_boundary(block: int) -> None:
    boundary = 60
    for window in range(2, 20):
        seen = {position // block for position in range(boundary - window + 1, boundary)}
        assert laws.window_blocks(window, block, NO_FAULTS) == len(seen)


@pytest.mark.parametrize("chunk", BLOCKS)
def test_a_chunk_starts_at_the_last_multiple_before_the_token(chunk: int) -> None:
    for position in range(20):
        assert laws.chunk_start(position, chunk) == max(p for p in range(position + 1) if p % chunk == 0)


@pytest.mark.parametrize("block", BLOCKS)
def test_the_state_after_n_tokens_is_in_the_column_of_the_last_of_them(block: int) -> None:
    for tokens in range(1, 20):
        assert laws.state_column(tokens, block) == (tokens - 1) // block
        assert laws.states_passed(tokens) // block == laws.state_column(tokens, block)


@pytest.mark.parametrize("block", BLOCKS)
def test_what_a_window_has_passed_is_all_that_no_later_token_sees(block: int) -> None:
    for tokens, window, again in product(range(20), range(2, 8), range(3)):
        run = range(max(0, tokens - again), tokens + 10)
        seen = {position for token in run for position in range(max(0, token - window + 1), token + 1)}
        assert laws.window_passed(tokens, window, again) == min(seen)
        whole = laws.window_passed(tokens, window, again) // block
        assert not seen & set(range(whole * block))


# ---- what is kept ----------------------------------------------------------------------------------------------------


def window_needs(end: int, need: int, peek: int) -> set[int]:
    """Columns that a hit of ``end`` blocks asks for: ``need`` of them, ``peek`` of these behind its end."""
    return set(range(max(0, end + peek - need), end + peek))


@pytest.mark.parametrize("block", BLOCKS)
def test_a_window_keeps_what_some_multiple_of_the_segment_needs(block: int) -> None:
    for per, need, peek in product(range(1, 5), range(1, 7), (0, 1)):
        needed = set().union(*(window_needs(end, need + peek, peek) for end in range(per, 40, per)))
        kept = {c for c in range(30) if laws.kept_by_segment(c, block, per * block, need + peek, peek)}
        first = {0} if peek and need + peek == per else NOTHING_KEPT  # rounded up: all blocks are kept
        assert kept == {c for c in needed if c < 30} | first


@pytest.mark.parametrize("block", BLOCKS)
def test_a_window_keeps_what_the_rounded_boundary_needs(block: int) -> None:
    for per, need, peek, boundary in product(range(1, 4), range(1, 4), (0, 1), range(40)):
        whole = per * block
        needed = window_needs(boundary // whole * per, need + peek, peek)
        kept = {c for c in range(50) if laws.kept_by_boundary(c, block, boundary, whole, need + peek, peek)}
        assert kept == needed


@pytest.mark.parametrize("block", BLOCKS)
def test_states_are_kept_at_multiples_of_the_segment_and_at_the_rounded_boundary(block: int) -> None:
    for per in range(1, 5):
        segment = per * block
        at_segment = [(c + 1) * block for c in range(20) if laws.state_at_segment(c, block, segment)]
        assert at_segment == list(range(segment, 20 * block + 1, segment))
        for boundary in range(19 * block):
            ends = [(c + 1) * block for c in range(20) if laws.state_at_boundary(c, block, boundary, segment)]
            assert ends == [end for end in (boundary // segment * segment,) if end]


# ---- bounds of registration ------------------------------------------------------------------------------------------


def test_an_eagle_group_registers_the_block_behind_every_hit_that_can_be() -> None:
    for tokens, again, per, block in product(range(40), range(3), (1, 2, 3), (2, 4)):
        whole, final = per * block, laws.finalised(tokens, again)
        hits = range(0, final + 1, whole) if tokens >= whole else ()
        bound = max((min(hit + block, final) for hit in hits), default=0)
        assert laws.eagle_bound(tokens, again, block, False, whole, NO_FAULTS) == bound
        assert laws.eagle_bound(tokens, again, block, True, whole, NO_FAULTS) == final


def test_the_bound_of_an_ordinary_group_is_a_length_that_a_hit_can_have() -> None:
    lengths = [laws.ordinary_bound(n, False, 8, 2, NO_FAULTS) for n in (7, 8, 15, 16, 22)]
    assert lengths == [laws.findable(n, False, 8) for n in (7, 8, 15, 16, 22)] == [0, 8, 8, 16, 16]
    assert [laws.ordinary_bound(n, True, 8, 2, NO_FAULTS) for n in (7, 8, 15)] == [7, 8, 15]


def test_where_groups_drop_a_replay_of_the_prompt_resumes_a_scheduler_block_lower() -> None:
    for whole, prompt in product(range(1, 9), range(1, 40)):
        without = (prompt - 1) // whole * whole
        assert laws.replay_with_drop(prompt, whole) // whole * whole == max(0, without - whole)


def test_a_tail_is_the_last_hash_boundary_of_the_prompt_if_it_lies_inside_a_block() -> None:
    tails = [laws.prompt_tail(prompt, 2) for prompt in (1, 2, 7, 8, 15)]
    assert tails == [0, 2, 6, 8, 14]
    assert [laws.tail_inside(tail, 8) for tail in (*tails, 1)] == [False, True, True, False, True, True]


def test_a_tail_state_is_the_state_after_the_tail_and_nothing_else() -> None:
    cases = [(6, 6, 6, 0), (7, 7, 6, 0), (6, 7, 6, 0), (6, 7, 6, 1), (6, 6, 6, 1), (4, 6, 6, 2)]
    assert [laws.is_tail_state(*case, NO_FAULTS) for case in cases] == [1, 0, 0, 0, 1, 0]


# ---- allocation ------------------------------------------------------------------------------------------------------


def test_attention_takes_a_block_for_each_column_that_is_neither_held_nor_passed() -> None:
    for tokens, block, passed, held in product(range(12), BLOCKS, range(12), range(6)):
        columns = {position // block for position in range(tokens)}
        taken = [c for c in columns if c >= held and c >= passed // block]
        assert laws.attention_blocks(tokens, block, passed, held) == len(taken)


def states_taken(required: int, held: int, speculative: int, grown: bool, tail: bool) -> int:
    """Blocks that a Mamba table of ``held`` columns takes when it grows, column by column."""
    table = [True] * held
    if required > held:
        running = required - speculative - 1
        table += [False] * (running - held)
        if grown:  # the speculative blocks go along, each from its old column to the end of the table
            table += [True] * (min(held, running) - (held - speculative))
    return max(0, required - len(table)) + tail


@pytest.mark.parametrize("speculative", [0, 1, 2])
def test_a_mamba_estimate_is_never_below_what_growing_takes(speculative: int) -> None:
    for tokens, block, held in product(range(1, 12), BLOCKS, range(8)):
        required = laws.states_required(tokens, block, speculative)
        assert required == len({position // block for position in range(tokens)}) + speculative
        for grown, tail in product((False, True), repeat=2):
            if grown and held <= speculative:
                continue  # it holds a running state and the speculative ones
            taken = states_taken(required, held, speculative, grown, tail)
            most = laws.states_missing(required, held, speculative, grown, tail, NO_FAULTS)
            assert taken <= max(0, most)
            needed = (1 if grown else 1 + speculative) + tail if tail or required > held else 0
            assert max(0, most) == needed


def test_a_load_brings_one_state_unless_a_hit_reaches_its_column() -> None:
    for total, block, hits in product(range(1, 12), BLOCKS, range(5)):
        column = (total - 1) // block
        assert laws.states_loaded(total, block, hits) == (0 if hits > column else 1)


@pytest.mark.parametrize("speculative", [0, 1, 2])
def test_behind_a_load_a_table_grows_like_a_new_one(speculative: int) -> None:
    for required, held in product(range(1 + speculative, 9), range(1, 9)):
        taken = states_taken(required, held, speculative, False, False)
        assert laws.states_behind_load(required, held, speculative) == taken


@pytest.mark.parametrize("block", BLOCKS)
def test_no_window_and_no_chunk_holds_more_blocks_than_admission_counts(block: int) -> None:
    longest = 24
    for size, again, in_flight in product((2, 3, 5, 8), range(3), (1, 4, 9)):
        most = 0
        for settled in range(longest):
            columns = -(-min(settled + in_flight, longest) // block)
            most = max(most, columns - laws.window_passed(settled, size, again) // block)
        assert most <= laws.window_most_blocks(size, again, in_flight, longest, block) <= most + 1
        chunk = size * block
        starts = [(settled // chunk * chunk, min(settled + in_flight, longest)) for settled in range(longest)]
        most = max(-(-end // block) - start // block for start, end in starts)
        assert most <= laws.chunk_most_blocks(chunk, in_flight, longest, block) <= most + 1


def test_a_group_that_gives_blocks_back_needs_no_more_than_it_holds_at_once() -> None:
    assert [laws.at_once(new, 4, held) for new, held in ((9, 0), (9, 3), (9, 6), (2, 0), (2, 3))] == [4, 1, 0, 2, 1]


# ---- ends of chunks --------------------------------------------------------------------------------------------------


def test_a_prefill_ends_with_the_prompt_or_with_what_a_resumed_request_has_but_one() -> None:
    assert [laws.prefill_end(8, known) for known in (8, 9, 10, 12)] == [8, 8, 9, 11]


def test_the_last_cacheable_position_is_a_grid_point_and_one_less_for_a_drafter() -> None:
    assert [laws.last_cacheable(known, 4, False) for known in (3, 4, 7, 8, 9)] == [0, 4, 4, 8, 8]
    assert [laws.last_cacheable(known, 4, True) for known in (3, 4, 7, 8, 9)] == [0, 0, 0, 4, 4]


def test_a_chunk_before_the_end_is_cut_to_the_grid_unless_no_chunk_can_fill_a_block() -> None:
    for start, count, grid, largest in product(range(9), range(1, 9), BLOCKS, range(1, 9)):
        end = start + count
        points = [p for p in range(start + 1, end + 1) if p % grid == 0]
        below = end if not points and grid > largest else max(points, default=end // grid * grid)
        assert laws.cut_to_grid(start, end, end + 1, grid, largest, NO_FAULTS) == below
        assert laws.cut_to_grid(start, end, end, grid, largest, NO_FAULTS) == end


def test_stops_of_a_chunk() -> None:
    assert [laws.next_grid(start, 4) for start in (0, 1, 3, 4, 5)] == [0, 4, 4, 0, 8]
    assert [laws.tail_stop(tail, 8, 15) for tail in (0, 8, 10, 14, 15)] == [0, 0, 10, 14, 0]
    assert [laws.junction_stop(2, 14, junction, 4) for junction in (0, 2, 5, 6, 11, 14)] == [0, 0, 2, 6, 10, 0]
    assert [laws.stopped(4, 12, stop) for stop in (0, 4, 5, 11, 12, 13)] == [12, 12, 5, 11, 12, 12]


def test_never_1_to_m_minus_1_tokens_are_left_for_the_last_chunk() -> None:
    for known, start, lookahead in product(range(1, 12), range(8), range(5)):
        for end in range(start, known + 1):
            ends = [e for e in range(start, end + 1) if e == start or not 0 < known - e < lookahead]
            assert laws.lookahead_kept(known, start, end, lookahead) == max(ends)


def test_the_largest_chunk_is_the_budget_without_the_drafters_places_or_the_threshold() -> None:
    cases = [(8, 0, 0), (8, 3, 0), (8, 3, 4), (8, 3, 6)]
    assert [laws.largest_chunk(*case, NO_FAULTS) for case in cases] == [8, 5, 4, 5]


def test_the_threshold_is_at_least_the_lookahead_if_there_is_one() -> None:
    cases = [(0, 0), (0, 3), (2, 3), (3, 3), (4, 3), (4, 0)]
    assert [laws.prefill_threshold(*case, NO_FAULTS) for case in cases] == [0, 0, 3, 3, 4, 4]


def test_a_chunk_must_end_on_the_grid_and_at_the_tail_if_there_are_any() -> None:
    cases = [(8, 4, 6), (6, 4, 6), (6, 4, 0), (7, 4, 6)]
    assert [laws.must_end(*case, NO_FAULTS) for case in cases] == [True, True, False, False]


# ---- the rest, by hand; and what each fault makes of it --------------------------------------------------------------

BY_HAND: list[tuple[Callable[[], int], int]] = [
    (lambda: laws.drop_unit(True, True, 8, 2), 2),
    (lambda: laws.drop_unit(False, True, 8, 2), 8),
    (lambda: laws.drop_unit(True, False, 8, 2), 8),
    (lambda: laws.drop_unit(True, True, 2, 2), 2),
    (lambda: laws.looks_until(8, 4, 20), 12),
    (lambda: laws.looks_until(8, 4, 10), 10),
    (lambda: laws.drop_stands(True, False, False, NO_FAULTS), True),
    (lambda: laws.drop_stands(True, True, False, NO_FAULTS), False),
    (lambda: laws.drop_stands(False, False, True, NO_FAULTS), False),
    (lambda: laws.drop_verified(False, NO_FAULTS), False),
    (lambda: laws.junction(16, 8), 16),
    (lambda: laws.junction(8, 8), 0),
    (lambda: laws.settled(3, 5, NO_FAULTS), 0),
    (lambda: laws.resumes_at(6, 8, NO_FAULTS), 6),
    (lambda: laws.finalised(5, 2), 3),
    (lambda: laws.finalised(1, 2), 0),
    (lambda: laws.state_planned(5, 7, NO_FAULTS), 7),
    (lambda: laws.state_at_output(5, NO_FAULTS), -1),
    (lambda: laws.takes_agreed(8, 8, NO_FAULTS), False),
    (lambda: laws.takes_agreed(8, 12, NO_FAULTS), True),
    (lambda: laws.is_diverged(4, 8, NO_FAULTS), True),
    (lambda: laws.is_diverged(8, 8, NO_FAULTS), False),
    (lambda: laws.falls_back(True, 1, NO_FAULTS), False),
    (lambda: laws.falls_back(False, 0, NO_FAULTS), False),
    (lambda: laws.counts_load(0, NO_FAULTS), False),
    (lambda: laws.with_hits(3, False, 2, NO_FAULTS), 5),
    (lambda: laws.chunk_end(0, 9, 23, 23, 0, 0, 4, 9, False, NO_FAULTS), 8),
    (lambda: laws.chunk_end(8, 17, 23, 23, 0, 13, 4, 9, False, NO_FAULTS), 12),
    (lambda: laws.chunk_end(16, 23, 23, 23, 22, 0, 4, 9, False, NO_FAULTS), 20),
    (lambda: laws.chunk_end(20, 23, 23, 23, 22, 0, 4, 9, False, NO_FAULTS), 22),
    (lambda: laws.told_to_connector(22, 8), 16),
    (lambda: laws.external_adopted(7, 6, NO_FAULTS), 7),
    (lambda: laws.external_adopted(6, 6, NO_FAULTS), 0),
    (lambda: laws.external_adopted(6, 0, NO_FAULTS), 6),
    (lambda: laws.local_adopted(22, 8, 6), 16),
    (lambda: laws.local_adopted(22, 0, 6), 22),
]

FAULTY: dict[str, tuple[Callable[[Faults], int], int, int]] = {
    "no-capability-check": (lambda f: laws.partial_hits(True, True, False, f), False, True),
    "last-token-not-computed": (lambda f: laws.cap(9, f), 8, 9),
    "drop-repeated": (lambda f: laws.drop_verified(True, f), True, False),
    "drop-not-verified-again": (lambda f: laws.drop_stands(True, True, True, f), False, True),
    "window-one-short": (lambda f: laws.window_blocks(4, 2, f), 2, 1),
    "windows-move-on-planned": (lambda f: laws.settled(10, 4, f), 6, 10),
    "load-window-one-short": (lambda f: laws.resumes_at(8, 8, f), 7, 8),
    "bound-rounded-to-hash": (lambda f: laws.ordinary_bound(23, True, 8, 2, f), 23, 22),
    "eagle-bound-rounded": (lambda f: laws.eagle_bound(22, 0, 2, True, 8, f), 22, 18),
    "mtp-registers-wrong-tail": (lambda f: laws.is_tail_state(6, 7, 6, 1, f), False, True),
    "partial-tail-registered-twice": (lambda f: laws.state_at_output(6, f), -1, 6),
    "diverged-hit-maximum": (lambda f: laws.diverged_length(8, 12, f), 8, 12),
    "diverged-no-fallback": (lambda f: laws.falls_back(True, 0, f), True, False),
    "copy-not-counted": (lambda f: laws.with_hits(3, True, 2, f), 6, 5),
    "hit-blocks-not-counted": (lambda f: laws.with_hits(3, True, 2, f), 6, 4),
    "mamba-estimate-ignores-load": (lambda f: laws.counts_load(4, f), True, False),
    "chunk-grid-smallest-block": (lambda f: laws.chunk_grid(8, 2, f), 8, 2),
    "chunk-past-last-boundary": (lambda f: laws.chunk_end(6, 9, 10, 10, 0, 0, 4, 8, True, f), 8, 9),
    "chunk-starts-off-grid": (lambda f: laws.chunk_end(6, 12, 20, 20, 0, 0, 4, 8, False, f), 8, 12),
    "mtp-reserve-over-stop": (lambda f: laws.must_end(8, 4, 6, f), True, False),
    "external-beside-tail": (lambda f: laws.external_adopted(4, 6, f), 0, 4),
    "given-up-counted-as-held": (lambda f: laws.counted_as_held(2, 7, f), 2, 7),
    "threshold-below-lookahead": (lambda f: laws.prefill_threshold(1, 2, f), 2, 1),
    "largest-chunk-ignores-slots": (lambda f: laws.largest_chunk(8, 3, 6, f), 5, 6),
    "chunk-floored-to-zero": (lambda f: laws.cut_to_grid(0, 3, 9, 8, 4, f), 3, 0),
}


@pytest.mark.parametrize(("law", "number"), BY_HAND)
def test_numbers_by_hand(law: Callable[[], int], number: int) -> None:
    assert law() == number


@pytest.mark.parametrize("fault", FAULTY)
def test_a_fault_changes_its_law(fault: str) -> None:
    law, right, wrong = FAULTY[fault]
    assert (law(NO_FAULTS), law(faults_on([fault]))) == (right, wrong)


def test_all_faults_of_the_laws_and_all_laws_are_tested_here() -> None:
    literal = set(re.findall(r"faults\.(\w+)", inspect.getsource(laws)))
    assert {name.replace("-", "_") for name in FAULTY} == literal
    calls = [node.func for node in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(node, ast.Call)]
    called = {f.attr for f in calls if isinstance(f, ast.Attribute) and ast.unparse(f.value) == "laws"}
    assert called == {
        name for name, law in inspect.getmembers(laws, inspect.isfunction) if law.__module__ == laws.__name__
    }


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def test_arithmetic_on_ints() -> None:
    for value, divisor in product(range(-9, 10), BLOCKS):
        assert arith.floor_div(value, divisor) * divisor == arith.round_down(value, divisor)
        assert arith.round_down(value, divisor) == max(n for n in range(-12, 10) if n % divisor == 0 and n <= value)
        assert arith.ceil_div(value, divisor) == -arith.floor_div(-value, divisor)
        assert arith.aligned(value, divisor) == (value in range(-12, 12, divisor))
        assert (arith.minimum(value, 2), arith.maximum(value, 2)) == (min(value, 2), max(value, 2))


@pytest.mark.parametrize(
    "call",
    [
        lambda: arith.floor_div(1.0, 2),  # type: ignore[arg-type]
        lambda: arith.ceil_div(1, 2.0),  # type: ignore[arg-type]
        lambda: arith.round_down("4", 2),  # type: ignore[arg-type]
        lambda: arith.aligned(True, 2),
        lambda: arith.equal(1, None),  # type: ignore[arg-type]
        lambda: arith.ite(1, 2, 3),
        lambda: arith.both(True, 1),
        lambda: arith.either(0, False),
        lambda: arith.negated(0),
        lambda: laws.cut_to_grid(0, 4, 9, SimpleNamespace(), 4, NO_FAULTS),  # type: ignore[arg-type]
    ],
)
def test_what_is_neither_int_nor_bool_is_refused(call: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arith, "_terms", arith._NoTerms())
    with pytest.raises(TypeError, match="no prover has registered"):
        call()
