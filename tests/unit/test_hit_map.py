"""How far hits reach on the model, and whether the reasons that are told are true."""

from __future__ import annotations

import random
from typing import Any

import pytest
from helpers import chunked, full, layout_of, mamba, replace, window

from kvcheck.engines.hit_map import BY_NAME, CASES, Measured, Point, Question, measure, question, stairs, tail_of
from kvcheck.layouts.changes import changed
from kvcheck.layouts.presets import PRESETS
from kvcheck.model.layout import Drafter, Group, Layout, validate
from kvcheck.report.hit_rows import rows
from kvcheck.targets.loading import load_target

MODEL = load_target("model")
IDLE = "counts for nothing, as no Mamba group has larger blocks (R3.2)"
WINDOWED = "sliding window group 2 cannot be looked up inside a block (R2.12, R3.2)"
REPLAYS = "retention 0 keeps only what is needed where a replay of a prompt resumes (R5.6)"
EAGLE = Drafter(method="eagle", tokens=1)


def hits(layout: Layout, case: str, *lengths: int, tail: int = 8) -> tuple[Point, ...]:
    found = measure(MODEL, layout, Question(case, lengths, tail))
    assert not found.undetermined
    return found.points


def lay(*groups: Group, **settings: Any) -> Layout:
    return layout_of(*groups, **{"num_blocks": 400, "max_model_len": 200, "token_budget": 200, **settings})


def one(layout: Layout, case: str, shared: int, tail: int = 8) -> tuple[int, str]:
    (point,) = hits(layout, case, shared, tail=tail)
    return point.hit, point.why


# ---- each rule: what it takes away, and that it is the one -----------------------------------------------------------


def test_hits_are_multiples_of_the_granularity() -> None:
    assert one(lay(full(4)), "continued", 11) == (8, "hits are multiples of 4 (R3.6)")
    assert one(lay(full(4)), "continued", 12)[0] == 12


def test_the_last_token_is_always_computed() -> None:
    assert one(lay(full(4)), "again", 8) == (4, "the last token is always computed (R4.1)")
    assert one(lay(full(4)), "again", 9)[0] == 8


def test_an_eagle_group_must_find_the_unit_behind() -> None:
    marked = lay(full(4), drafter=EAGLE)
    assert one(marked, "continued", 8, tail=1) == (
        4,
        "full group 0: an EAGLE group must find the 4 tokens behind 8 too (R4.5)",
    )
    assert one(lay(full(4)), "continued", 8)[0] == 8


def test_an_eagle_group_looks_no_further_than_the_cap() -> None:
    marked = lay(full(4), drafter=EAGLE)
    told = "full group 0: an EAGLE group must find the 4 tokens behind 4 too, and looks no further than 7 (R4.5)"
    assert one(marked, "again", 8) == (0, told)


def test_states_are_where_steps_ended() -> None:
    layout = lay(full(4), mamba(4))
    told = "mamba group 1: no state after 8 tokens: steps ended at 16, 17 (R2.9, R8.4)"
    assert one(layout, "shared", 9) == (0, told)
    assert one(replace(layout, token_budget=8), "shared", 9)[0] == 8


def test_retention_keeps_states_of_replays_only() -> None:
    layout = lay(full(4), mamba(4), retention=0)
    told = f"mamba group 1: no state after 8 tokens: {REPLAYS}"
    assert one(layout, "continued", 8) == (0, told)
    assert one(replace(layout, retention="dense"), "continued", 8)[0] == 8


def test_of_a_step_that_ended_between_it_is_told_why_its_state_is_gone() -> None:
    layout = lay(full(4), mamba(4), retention=0, token_budget=8)
    hit, why = one(layout, "shared", 12, tail=9)
    assert (hit, why.endswith(f"; the one of 8 is not there: {REPLAYS}")) == (0, True)


def test_retention_takes_windows_away() -> None:
    layout = lay(full(4), window(4, 8), retention=0)
    hit, why = one(layout, "continued", 8)
    assert (hit, "sliding window group 1: not the window before 8" in why, "(R5.6)" in why) == (4, True, True)
    assert one(replace(layout, retention="dense"), "continued", 8)[0] == 8


def test_inside_a_block_only_the_end_of_a_prompt_has_a_key() -> None:
    layout = lay(full(8), mamba(8), match_unit=2)
    assert one(layout, "continued", 6)[0] == 6
    hit, why = one(layout, "shared", 6)
    assert hit == 0
    assert "full group 0: 6 is inside a block, where only the end of a prompt has a key (R5.4)" in why


def test_where_no_group_is_to_blame_alone_all_lengths_above_the_hit_are_explained() -> None:
    layout = lay(full(8, eagle=True), mamba(8, 1), match_unit=2, drafter=EAGLE)
    hit, why = one(layout, "again", 16)
    assert hit == 0
    assert "full group 0: no more than 6, " in why
    assert why.endswith("mamba group 1: nothing up to 6, no state after 6 tokens: steps ended at 8, 16 (R2.9, R8.4)")


def test_groups_that_could_serve_the_longest_hit_are_told_for_what_they_lack_below_it() -> None:
    """The state is behind what the EAGLE group can serve, and there is none before."""
    layout = lay(full(8, eagle=True), mamba(8, 1), drafter=EAGLE, retention=0)
    hit, why = one(layout, "again", 24)
    assert hit == 0
    assert "full group 0: no more than 8, an EAGLE group must find the 8 tokens behind 16 too" in why
    assert "mamba group 1: nothing up to 8, no state after 8 tokens" in why


def test_a_hit_that_the_server_does_not_find_is_told() -> None:
    """As every release loses it: counterexamples/eagle-window-run-too-short."""
    layout = lay(full(4), window(2, 8), drafter=EAGLE)
    assert one(layout, "again", 9)[0] == 4
    (lost,) = measure(load_target("model+window-run-rounded-twice"), layout, Question("again", (9,), 8)).points
    assert lost.hit == 0
    assert lost.why.startswith("every group has what a hit of 4 needs, and it was not found")


def test_without_caching_nothing_hits() -> None:
    assert one(lay(full(4), caching=False), "again", 9) == (0, "prefix caching is off")


@pytest.mark.parametrize(
    ("layout", "unit", "why"),
    [
        (lay(full(4), mamba(4)), 4, "all blocks have 4 (R1.7)"),
        (lay(full(4), window(2, 4)), 4, "the least common multiple of blocks 2 and 4 (R1.7)"),
        (lay(full(8), mamba(8), match_unit=2), 2, "the match unit; hits may end inside a block (R3.2)"),
        (
            lay(full(2), mamba(8)),
            2,
            "the greatest common divisor of blocks 2 and 8; hits may end inside a block (R3.2)",
        ),
        (
            lay(full(2), mamba(8), window(4, 8)),
            8,
            f"the least common multiple of blocks 2 and 4 and 8 (R1.7); not finer, as {WINDOWED}",
        ),
        (
            lay(full(4), mamba(16), dcp=2),
            16,
            "the least common multiple of blocks 8 and 16 (R1.7); not finer under DCP (R3.2)",
        ),
        (lay(full(4), chunked(4, 8)), 4, "all blocks have 4 (R1.7)"),
        (
            lay(full(4), window(4, 8), match_unit=1),
            4,
            f"all blocks have 4 (R1.7); the match unit of 1 {IDLE}",
        ),
    ],
)
def test_where_the_granularity_comes_from(layout: Layout, unit: int, why: str) -> None:
    found = measure(MODEL, validate(layout), Question("again", (17,), 1))
    assert (found.granularity, found.because) == (unit, why)


# ---- cases -----------------------------------------------------------------------------------------------------------


def test_the_third_prompt_hits_what_the_second_does_not() -> None:
    layout = lay(full(8), mamba(8))
    assert [one(layout, case, 9)[0] for case in ("shared", "third")] == [0, 8]


def test_a_conversation_shares_all_but_the_last_token_of_an_answer() -> None:
    points = hits(lay(full(4)), "conversation", 40, tail=16)
    assert [point.shared for point in points][:3] == [5, 11, 17]  # 4 tokens of input and 2 of answer a turn
    assert [point.prompt for point in points][:3] == [10, 16, 22]
    assert all(point.hit == point.most == point.shared // 4 * 4 for point in points)


def test_prompts_below_the_one_usable_boundary_hit_nothing() -> None:
    layout = lay(full(528), mamba(528), max_model_len=512, token_budget=8192)
    for case in CASES:
        points = measure(MODEL, layout, question([layout], case, tail_of(layout))).points
        assert points
        assert {(point.hit, point.why) for point in points} == {(0, "hits are multiples of 528 (R3.6)")}
        assert len(stairs(points)) == 1


def test_small_layouts_are_measured_at_every_length_and_large_ones_beside_boundaries() -> None:
    small = question([lay(full(4))], BY_NAME["again"], 4)
    assert small.lengths == tuple(range(1, 18))
    chunks = question([replace(lay(full(8), mamba(8)), token_budget=32)], BY_NAME["again"], 8)
    assert chunks.lengths == tuple(range(1, 42))  # also between scheduler blocks and the ends of steps
    sized = lay(full(528), mamba(528), max_model_len=100_000, token_budget=8192)
    large = question([sized], BY_NAME["again"], 528)
    assert {527, 528, 529, 2111, 2112, 2113, 8191, 8192, 8193} <= set(large.lengths)
    assert len(large.lengths) < 40
    assert question([sized], BY_NAME["again"], 528, up_to=600).lengths[-1] == 600


def test_up_to_the_end_that_was_chosen_each_boundary_is_measured_and_what_is_beside_it() -> None:
    sized = lay(full(16), window(16, 64), max_model_len=100_000)
    lengths = question([sized], BY_NAME["again"], 16, up_to=512).lengths
    assert {mark + side for mark in range(16, 512, 16) for side in (-1, 0, 1)} | {511, 512} <= set(lengths)
    assert len(lengths) < 120


def test_prompts_that_do_not_fit_are_not_asked() -> None:
    layout = lay(full(4), max_model_len=10)
    assert question([layout], BY_NAME["continued"], 4).lengths == (1, 2, 3, 4, 5)
    assert question([layout], BY_NAME["continued"], 9).lengths == ()
    assert measure(MODEL, layout, Question("conversation", (), 40)).points == ()


def test_a_server_that_fails_is_undetermined() -> None:
    target = load_target("model+no-capability-check")
    layout = lay(full(2), mamba(8), window(4, 8))
    found = measure(target, layout, Question("again", (9,), 1))
    assert found.points == ()
    assert found.undetermined.startswith("not served: ServerError in fine-grained-window")


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if not preset.checkpoints])
def test_on_every_preset_a_hit_is_as_long_as_it_can_be_or_a_group_lacks_something(name: str) -> None:
    layout = PRESETS[name].layout()
    for case in CASES:
        asked = question([layout], case, tail_of(layout))
        lengths = asked.lengths[:: max(1, len(asked.lengths) // 12)]
        measured: Measured = measure(MODEL, layout, Question(case.name, lengths, asked.tail))
        for point in measured.points:
            assert 0 <= point.hit <= point.most <= point.shared
            assert point.hit % measured.granularity == 0
            if point.hit < point.most:
                assert " group" in point.why
                assert "not found" not in point.why


# ---- stairs ----------------------------------------------------------------------------------------------------------


def test_lengths_that_hit_alike_make_one_stair() -> None:
    points = [
        Point(1, 1, 0, 0, "none"),
        Point(2, 2, 0, 0, "none"),
        Point(4, 4, 4, 4, "unit"),
        Point(8, 8, 8, 8, "unit"),
        Point(9, 9, 4, 8, "no state after 8"),
        Point(13, 13, 8, 12, "no state after 12"),
        Point(14, 14, 8, 12, "something else"),
        Point(15, 15, 0, 12, "something else"),
        Point(16, 16, 0, 12, "mamba groups 1, 2: ends at 4, 8"),
        Point(17, 17, 0, 12, "mamba groups 1, 2: ends at ..., 4, 8, 12"),
        Point(18, 18, 0, 12, "mamba groups 1, 3: ends at 4, 8"),
    ]
    assert [(stair.first.shared, stair.last.shared, stair.lost) for stair in stairs(points)] == [
        (1, 2, False),
        (4, 8, False),
        (9, 13, True),
        (14, 14, True),
        (15, 15, True),
        (16, 17, True),
        (18, 18, True),
    ]


def test_no_stair_goes_on_over_a_boundary_that_was_not_measured() -> None:
    points = [Point(at, at, 0, 0, "none") for at in (1, 3, 5, 6, 10)]
    spans = [(stair.first.shared, stair.last.shared) for stair in stairs(points, unit=2)]
    assert spans == [(1, 6), (10, 10)]


# ---- rows ------------------------------------------------------------------------------------------------------------


def told(points: list[Point], unit: int = 0, grows: bool = False) -> list[tuple[int, int, int, int]]:
    """Of each row: the first part's lengths, how far apart the parts are, and where the last one ends."""
    return [(row.parts[0].first, row.parts[0].last, row.every, row.parts[-1].last) for row in rows(points, unit, grows)]


def repeating(times: int) -> list[Point]:
    """Blocks of four tokens: two lengths that hit all they can, one that lacks a state, one that has no key."""
    return [
        Point(4 * block + at, 0, *rest)
        for block in range(1, times + 1)
        for at, rest in enumerate(
            (
                (4 * block, 4 * block, "unit"),
                (4 * block, 4 * block, "unit"),
                (4 * block, 4 * block + 2, f"no state after {4 * block + 2}"),
                (4 * block, 4 * block + 2, f"{4 * block + 2} is inside a block"),
            )
        )
    ]


def test_a_group_of_rows_that_comes_again_is_told_once() -> None:
    assert told(repeating(3)) == [(4, 5, 4, 13), (6, 6, 4, 14), (7, 7, 4, 15)]
    assert told(repeating(2)) == [(4, 5, 4, 9), (6, 6, 4, 10), (7, 7, 4, 11)]
    assert told(repeating(1)) == [(4, 5, 0, 5), (6, 6, 0, 6), (7, 7, 0, 7)]
    assert told(repeating(3)[:-1]) == [(4, 5, 4, 13), (6, 6, 4, 14), (7, 7, 4, 11)]


def test_what_was_not_measured_comes_again_too() -> None:
    points = [Point(at + side, 0, 0, 0, "none") for at in (10, 20, 30, 40) for side in (0, 1)]
    assert told(points, unit=2) == [(10, 11, 10, 41), (12, 19, 10, 39)]
    assert told(points, unit=2, grows=True) == [(10, 41, 0, 41)]


@pytest.mark.parametrize("change", [{"hit": 1}, {"most": 15}, {"why": "something else"}, {"hit": 0}])
def test_what_is_not_quite_the_same_is_a_row_of_its_own(change: dict[str, Any]) -> None:
    points = repeating(3)
    points[10] = replace(points[10], **change)
    assert len(told(points)) > len(told(repeating(3)))


def test_rows_lose_nothing() -> None:
    """From the first part of a row, its distance and its end, all its parts can be told."""
    rng = random.Random(1)
    for _ in range(300):
        points = []
        for at in range(1, rng.randint(2, 60)):
            most = at - at % 2
            hit = rng.choice((0, most, most, most - most % 8))
            points.append(Point(at, at, hit, most, rng.choice(("one", "two")) if hit < most else "unit"))
        points = [point for point in points if rng.random() < 0.95]
        found = rows(points, 2, grows=False)
        parts = sorted((part for row in found for part in row.parts), key=lambda part: part.first)
        assert [point for part in parts for point in part.points] == points
        for row in found:
            pairs = list(zip(row.parts, row.parts[1:], strict=False))
            assert {b.first - a.first for a, b in pairs} | {b.last - a.last for a, b in pairs} <= {row.every}
            steps = [
                [(b.hit - a.hit, b.most - a.most) for a, b in zip(x.points, y.points, strict=True)] for x, y in pairs
            ]
            assert all(step == steps[0] for step in steps)
            assert len({step for one in steps for step in one}) <= 1


# ---- changes of a layout ---------------------------------------------------------------------------------------------


def test_a_layout_is_changed_in_one_setting() -> None:
    layout = lay(full(8), mamba(8))
    assert changed(layout, "match-unit=2").hash_block == 2
    assert changed(layout, "retention=16").retention == 16
    assert changed(layout, "budget=64").token_budget == 64
    assert {group.block_size for group in changed(layout, "block-size=4").groups} == {4}
    eagle = changed(layout, "drafter=eagle:2")
    assert (eagle.eagle_groups, eagle.groups[1].speculative_blocks) == ({0, 1}, 2)
    assert changed(eagle, "drafter=none") == replace(layout, num_blocks=eagle.num_blocks)
    small = replace(layout, num_blocks=layout.min_blocks)
    assert changed(small, "block-size=2").num_blocks > small.num_blocks


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("size", "changes nothing: one of block-size="),
        ("size=4", "changes nothing: one of block-size="),
        ("block-size=four", "block-size is tokens a block"),
        ("block-size=0", "the layout then breaks R1"),
        ("match-unit=3", "must divide every block size"),
        ("retention=3", "must be a multiple"),
        ("drafter=magic:1", "drafter is none, or METHOD:DRAFTS"),
        ("budget=1", "is below max_requests"),
    ],
)
def test_a_change_that_is_none_is_told(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]*\Z") as caught:
        changed(lay(full(8), mamba(8)), text)
    assert told in str(caught.value)
