"""The shadow worker on hand-made plans; what each cell must hold is derived by hand in the tests.

``cell(group, label, n)`` is what a cell holds that was computed from the request's first n tokens: the cell of
position p holds that of p + 1 tokens, the state after n tokens that of n.
"""

from __future__ import annotations

import pytest
from helpers import Worker, chunked, full, layout_of, load, mamba, new, replace, running, step, window

from kvcheck.model.content import EMPTY, GARBAGE, POISON, UNSETTLED, Prefixes
from kvcheck.model.layout import Connector, Drafter
from kvcheck.model.observation import Promises, Register, Store
from kvcheck.model.shadow import StepResult

NGRAM = Drafter(method="ngram", tokens=2)
EAGLE = Drafter(method="eagle", tokens=2)
TWO_MODULES = Drafter(method="mtp", tokens=2, modules=2)
REJECTED = "content of a rejected draft"
NOT_WRITTEN = "nothing: it was handed out and not written since"


def sound(result: StepResult) -> bool:
    return not result.wrong and not result.bad


def sampled(tokens: tuple[int, ...], count: int = 1) -> tuple[int, ...]:
    """The tokens that follow these."""
    return tuple(Prefixes(tokens).token_list(len(tokens) + count)[len(tokens) :])


# ---- attention -------------------------------------------------------------------------------------------------------


def test_attention_writes_one_cell_a_token_and_samples() -> None:
    worker = Worker(layout_of(full(2)))
    result = worker.run(new("a", (7, 8, 9), ((3, 5),)), fresh=(3, 5))
    assert sound(result)
    assert result.sampled == {"a": sampled((7, 8, 9))}
    assert worker.held(3, 2) == [worker.cell(0, "a", 1), worker.cell(0, "a", 2)]
    assert worker.held(5, 2) == [worker.cell(0, "a", 3), POISON]


def test_a_chunk_that_does_not_reach_the_last_token_samples_nothing() -> None:
    worker = Worker(layout_of(full(2)))
    assert worker.run(new("a", (7, 8, 9), ((3, 5),), count=2)).sampled == {"a": ()}
    result = worker.run(running("a", 2, 1, 3), seq=2)
    assert sound(result)
    assert result.sampled == {"a": sampled((7, 8, 9))}


def test_two_groups_never_hold_the_same_content() -> None:
    worker = Worker(layout_of(full(2), full(2, variant=2)))
    worker.run(new("a", (7, 8), ((1,), (2,))))
    assert not set(worker.held(1, 2)) & set(worker.held(2, 2))
    result = worker.run(new("b", (7, 8, 9), ((2, 3), (2, 4)), start=2), seq=2)
    (wrong,) = result.wrong
    assert (wrong.label, wrong.group, wrong.position, wrong.block) == ("b", 0, 0, 2)
    assert wrong.held == "the content of a's first 1 tokens in group 1"


def test_content_of_another_request_is_found() -> None:
    worker = Worker(layout_of(full(2)))
    worker.run(new("a", (7, 8, 9, 4), ((1, 2),)))
    result = worker.run(new("b", (7, 6, 9), ((1, 3),), start=2), seq=2)
    (wrong,) = result.wrong
    assert (wrong.label, wrong.group, wrong.what) == ("b", 0, "forward")
    assert (wrong.position, wrong.column, wrong.block) == (1, 0, 1)
    assert wrong.held == "the content of a's first 2 tokens"
    assert wrong.expected == "the content of b's first 2 tokens"


def test_a_shared_prefix_is_right_for_both() -> None:
    worker = Worker(layout_of(full(2)))
    worker.run(new("a", (7, 8, 9, 4), ((1, 2),)))
    assert sound(worker.run(new("b", (7, 8, 5), ((1, 3),), start=2), seq=2))


def test_a_salt_makes_content_foreign() -> None:
    worker = Worker(layout_of(full(2)))
    worker.arrive("a", (7, 8, 9), "", 0)
    worker.arrive("b", (7, 8, 9), "secret", 0)
    worker.run(new("a", (7, 8, 9), ((1, 2),)))
    (wrong,) = worker.run(new("b", (7, 8, 9), ((1, 3),), start=2), seq=2).wrong
    assert wrong.position == 0


def test_a_block_is_poisoned_when_it_is_handed_out() -> None:
    worker = Worker(layout_of(full(2)))
    worker.run(new("a", (7, 8), ((1,),)))
    result = worker.run(new("b", (7, 8, 9), ((1, 2),), start=2), seq=2, fresh=(1, 2))
    (wrong,) = result.wrong
    assert (wrong.position, wrong.held) == (0, NOT_WRITTEN)


def test_listed_blocks_are_zeroed_and_others_are_not() -> None:
    worker = Worker(layout_of(full(2)))
    worker.run(new("a", (7, 8, 9), ((1, 2),)), fresh=(1, 2))
    worker.run(new("b", (5,), ((3,),)), seq=2, fresh=(3, 4), zero=(2, 3))
    assert worker.held(2, 2) == [EMPTY, EMPTY]
    assert worker.held(3, 2) == [worker.cell(0, "b", 1), EMPTY]
    assert worker.held(4, 2) == [POISON, POISON]
    assert worker.held(1, 2) == [worker.cell(0, "a", 1), worker.cell(0, "a", 2)]


def test_a_step_reads_what_the_step_itself_writes() -> None:
    """Layer by layer all writes of a step come before its reads (R5.5.2)."""
    worker = Worker(layout_of(full(2)))
    assert sound(worker.run(new("b", (7, 8, 5), ((1, 3),), start=2), new("a", (7, 8, 9), ((1, 2),)), fresh=(1, 2, 3)))


def test_the_null_block_holds_nothing() -> None:
    worker = Worker(layout_of(full(2)))
    worker.run(new("a", (7, 8, 9), ((1, 2),)))
    (wrong,) = worker.run(new("b", (7, 8, 9), ((0, 3),), start=2), seq=2).wrong
    assert (wrong.position, wrong.block, wrong.held) == (0, 0, "nothing: the null block")


def test_blocks_are_counted_in_tokens_of_all_ranks() -> None:
    worker = Worker(layout_of(full(2), dcp=2))
    worker.run(new("a", (7, 8, 9, 4, 5), ((1, 2),)), fresh=(1, 2))
    assert worker.held(1, 4) == [worker.cell(0, "a", n) for n in (1, 2, 3, 4)]
    assert worker.held(2, 4) == [worker.cell(0, "a", 5), POISON, POISON, POISON]


# ---- copies ----------------------------------------------------------------------------------------------------------


def test_all_sources_are_read_before_any_target_is_written() -> None:
    worker = Worker(layout_of(full(2)))
    worker.run(new("a", (7, 8, 9, 4), ((1, 2),)))
    one, two = worker.held(1, 2), worker.held(2, 2)
    worker.run(seq=2, copies=((1, 2), (2, 1)))
    assert (worker.held(1, 2), worker.held(2, 2)) == (two, one)


def test_a_chain_of_copies_gives_each_target_what_its_source_held_before() -> None:
    worker = Worker(layout_of(full(2)))
    worker.run(new("a", (7, 8, 9, 4), ((1, 2),)))
    one, two = worker.held(1, 2), worker.held(2, 2)
    worker.run(seq=2, copies=((1, 2), (2, 3)))
    assert (worker.held(2, 2), worker.held(3, 2)) == (one, two)


def test_a_copy_is_made_after_its_target_was_poisoned_and_before_anything_is_written() -> None:
    worker = Worker(layout_of(full(4)))
    worker.run(new("a", (7, 8, 9, 4), ((1,),), count=2), fresh=(1,))
    part = new("b", (7, 8, 6), ((2,),), start=2)
    assert sound(worker.run(running("a", 2, 2, 4), part, seq=2, fresh=(2,), copies=((1, 2),)))
    assert worker.held(1, 4) == [worker.cell(0, "a", n) for n in (1, 2, 3, 4)]
    assert worker.held(2, 4) == [*worker.held(1, 2), worker.cell(0, "b", 3), POISON]


def test_what_a_step_writes_cannot_be_copied_in_that_step() -> None:
    worker = Worker(layout_of(full(2)))
    result = worker.run(
        new("a", (7, 8), ((1,),)), new("b", (7, 8, 9), ((2, 3),), start=2), fresh=(1, 2, 3), copies=((1, 2),)
    )
    (wrong,) = result.wrong
    assert (wrong.label, wrong.position, wrong.held) == ("b", 0, NOT_WRITTEN)


# ---- tables ----------------------------------------------------------------------------------------------------------


def test_blocks_of_a_running_request_are_appended() -> None:
    worker = Worker(layout_of(full(2)))
    worker.run(new("a", (7, 8, 9), ((1,),), count=2))
    assert sound(worker.run(running("a", 2, 1, 3, ((4,),)), seq=2))
    assert worker.rows["a"].tables == [[1, 4]]
    assert worker.held(4, 1) == [worker.cell(0, "a", 3)]


def test_a_column_that_the_worker_has_stays_what_it_was() -> None:
    """The manager may think of another block in column 0: the worker, who is never told, uses the old one (R8.3)."""
    worker = Worker(layout_of(full(2)))
    worker.run(new("a", (7, 8, 9, 4), ((1, 2),), count=1))
    worker.run(running("a", 1, 1, 4, ((),)), seq=2, copies=((1, 5),))
    assert worker.held(1, 2) == [worker.cell(0, "a", 1), worker.cell(0, "a", 2)]
    assert worker.held(5, 2) == [worker.cell(0, "a", 1), EMPTY]


def test_a_resumed_request_starts_a_new_table() -> None:
    worker = Worker(layout_of(full(2)))
    worker.run(new("a", (7, 8, 9), ((1, 2),)))
    worker.run(seq=2, preempted=("a",))
    assert worker.rows == {}
    again = replace(new("a", (7, 8, 9), ((4, 5),)), kind="resumed")
    assert sound(worker.run(again, seq=3))
    assert worker.rows["a"].tables == [[4, 5]]
    assert worker.held(4, 2) == [worker.cell(0, "a", 1), worker.cell(0, "a", 2)]


def test_a_column_that_is_missing_is_a_bad_plan() -> None:
    worker = Worker(layout_of(full(2)))
    (bad,) = worker.run(new("a", (7, 8, 9), ((1,),))).bad
    assert (bad.label, bad.group) == ("a", 0)
    assert bad.text == "writes column 1, which is outside its table of 1"


def test_writing_to_the_null_block_is_a_bad_plan() -> None:
    worker = Worker(layout_of(full(2)))
    (bad,) = worker.run(new("a", (7, 8, 9), ((0, 1),))).bad
    assert bad.text == "writes column 0, which is the null block"


def test_a_request_that_the_worker_was_never_told_of_is_a_bad_plan() -> None:
    worker = Worker(layout_of(full(2)))
    worker.arrive("a", (7, 8), "", 0)
    bad = worker.run(running("a", 0, 2, 2, ((1,),))).bad
    assert [(b.label, b.text) for b in bad] == [("a", "runs, but the worker was never told of it")]


def test_a_finished_request_is_forgotten() -> None:
    worker = Worker(layout_of(full(2)))
    worker.run(new("a", (7, 8, 9), ((1, 2),)))
    worker.run(seq=2, finished=("a",))
    assert worker.rows == {}


def test_tokens_that_a_session_has_exchanged_are_the_new_ones() -> None:
    worker = Worker(layout_of(full(2)))
    worker.run(new("a", (7, 8), ((1,),)))
    worker.run(new("a", (7, 6, 5), ((2, 3),)), seq=2)
    assert worker.prefixes["a"].tokens[:3] == [7, 6, 5]
    assert worker.held(2, 2) == [worker.cell(0, "a", 1), worker.cell(0, "a", 2)]
    assert worker.held(1, 1) == worker.held(2, 1)
    assert worker.held(1, 2) != worker.held(2, 2)


# ---- windows and chunks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "first"), [(2, 5), (3, 4), (4, 3), (6, 1), (7, 0), (9, 0)])
def test_a_window_is_read_exactly(tokens: int, first: int) -> None:
    """The token at 6 attends to itself and the window - 1 tokens before it."""
    prompt = (7, 8, 9, 4, 5, 6, 3)
    for position in range(6):
        worker = Worker(layout_of(window(2, tokens)))
        worker.run(new("a", prompt, ((1, 2, 3, 4),), count=6))
        worker.cells[position // 2 + 1, position % 2] = POISON
        wrong = worker.run(running("a", 6, 1, 7), seq=2).wrong
        assert [w.position for w in wrong] == ([position] if position >= first else [])


def test_the_first_token_of_a_step_decides_how_far_back_the_window_reaches() -> None:
    worker = Worker(layout_of(window(2, 3)))
    worker.run(new("a", (7, 8, 9, 4, 5, 6), ((1, 2, 3),), count=4))
    worker.cells[2, 0] = POISON
    (wrong,) = worker.run(running("a", 4, 2, 6), seq=2).wrong
    assert wrong.position == 2


def test_columns_outside_the_window_may_be_null() -> None:
    prompt = (7, 8, 9, 4, 5)
    worker = Worker(layout_of(window(2, 3)))
    worker.run(new("a", prompt, ((1, 2, 3),), count=4))
    assert sound(worker.run(new("b", prompt, ((0, 2, 4),), start=4), seq=2))
    (wrong,) = worker.run(new("c", prompt, ((1, 0, 5),), start=4), seq=3).wrong
    assert (wrong.position, wrong.held) == (2, "nothing: the null block")


@pytest.mark.parametrize(("start", "first"), [(3, 0), (4, 4), (5, 4), (6, 4), (7, 4), (8, 8)])
def test_a_chunk_is_read_exactly(start: int, first: int) -> None:
    """Nothing below the chunk that the token lies in; at its first token nothing at all."""
    prompt = (7, 8, 9, 4, 5, 6, 3, 2, 1)
    for position in range(start):
        worker = Worker(layout_of(chunked(2, 4)))
        worker.run(new("a", prompt, ((1, 2, 3, 4, 5),), count=start))
        worker.cells[position // 2 + 1, position % 2] = POISON
        wrong = worker.run(running("a", start, 1, 9), seq=2).wrong
        assert [w.position for w in wrong] == ([position] if position >= first else [])


# ---- Mamba align -----------------------------------------------------------------------------------------------------


def test_the_state_lies_in_the_column_of_the_last_token_and_moves_at_a_boundary() -> None:
    worker = Worker(layout_of(mamba(4)))
    prompt = (7, 8, 9, 4, 5, 6)
    assert sound(worker.run(new("a", prompt, ((1,),), count=4), fresh=(1,)))
    assert worker.state(1) == worker.cell(0, "a", 4)
    assert sound(worker.run(running("a", 4, 2, 6, ((2,),)), seq=2, fresh=(2,)))
    assert worker.state(2) == worker.cell(0, "a", 6)
    assert worker.state(1) == worker.cell(0, "a", 4)  # it stays behind for others
    assert sound(worker.run(running("a", 6, 1, 7), seq=3))
    assert worker.state(2) == worker.cell(0, "a", 7)


def test_a_chunk_that_crosses_a_boundary_leaves_no_state_there() -> None:
    worker = Worker(layout_of(mamba(4)))
    assert sound(worker.run(new("a", (7, 8, 9, 4, 5, 6), ((0, 2),)), fresh=(2,)))
    assert worker.state(2) == worker.cell(0, "a", 6)


def test_a_state_of_other_tokens_is_found() -> None:
    worker = Worker(layout_of(mamba(4)))
    worker.run(new("a", (7, 8, 9, 4), ((1,),)), fresh=(1,))
    result = worker.run(new("b", (7, 8, 9, 3, 5), ((1, 2),), start=4), seq=2, fresh=(2,))
    (wrong,) = result.wrong
    assert (wrong.label, wrong.what, wrong.position, wrong.column, wrong.block) == ("b", "state", 3, 1, 2)
    assert wrong.held == "the content of a's first 4 tokens"
    assert wrong.expected == "the content of b's first 4 tokens"


def test_a_state_that_has_moved_on_is_found() -> None:
    worker = Worker(layout_of(mamba(4)))
    worker.run(new("a", (7, 8, 9, 4, 5), ((0, 1),)))
    worker.run(running("a", 5, 1, 6), seq=2)
    continued = (7, 8, 9, 4, 5, 1)
    (wrong,) = worker.run(new("b", continued, ((0, 1),), start=5), seq=3).wrong
    assert (wrong.position, wrong.held) == (4, "the content of a's first 6 tokens")


def test_a_state_is_not_used_in_the_step_that_writes_it() -> None:
    """Unlike attention: the source is copied before the step computes (R5.5.3)."""
    worker = Worker(layout_of(mamba(4)))
    result = worker.run(new("a", (7, 8, 9, 4), ((1,),)), new("b", (7, 8, 9, 4, 5), ((1, 2),), start=4), fresh=(1, 2))
    (wrong,) = result.wrong
    assert (wrong.label, wrong.what, wrong.held) == ("b", "state", NOT_WRITTEN)


def test_a_state_without_a_block_is_a_bad_plan() -> None:
    worker = Worker(layout_of(mamba(4)))
    assert [b.text for b in worker.run(new("a", (7, 8), ((0,),))).bad] == ["state column 0 is the null block"]
    other = Worker(layout_of(mamba(4)))
    texts = {b.text for b in other.run(new("a", (7, 8, 9, 4, 5), ((1,),))).bad}
    assert texts == {"state column 1 is outside its table of 1"}


def test_a_checkpoint_inside_a_chunk_lies_in_the_column_before_its_last() -> None:
    """Twenty tokens in one chunk: the state after 18, the last multiple of 2 below the last token, is kept too."""
    states = replace(mamba(8), checkpoint_blocks=1, checkpoint_alignment=2)
    prompt = tuple(range(1, 21))
    attention = tuple(range(4, 14))
    for unit, kept in ((2, 18), (8, 16), (None, None)):
        worker = Worker(layout_of(states, full(2), num_blocks=20), Promises(checkpoint_unit=unit))
        assert sound(worker.run(new("a", prompt, ((0, 2, 3), attention)), fresh=(2, 3)))
        assert worker.state(3) == worker.cell(0, "a", 20)
        assert worker.state(2) == (POISON if kept is None else worker.cell(0, "a", kept))


SPECULATIVE = layout_of(mamba(4, 2), drafter=NGRAM)


def decoding(table: tuple[int, ...], prompt: tuple[int, ...] = (7, 8, 9, 4)) -> Worker:
    """A worker whose request ``a`` has run its prompt."""
    worker = Worker(SPECULATIVE)
    assert sound(worker.run(new("a", prompt, (table,)), fresh=table))
    return worker


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_each_draft_has_a_state_of_its_own(accepted: int) -> None:
    """Tokens 5, 6, 7 run from a state after 4: states after 5, 6 and 7 in columns 1, 2 and 3."""
    worker = decoding((1,))
    draft = running("a", 4, 3, 5, ((2, 3, 4),), drafts=2)
    result = worker.run(draft, seq=2, fresh=(2, 3, 4), accepted={"a": accepted})
    assert sound(result)
    assert result.sampled["a"] == sampled((7, 8, 9, 4), accepted + 2)[1:]
    states = [worker.state(block) for block in (2, 3, 4)]
    assert states == [worker.cell(0, "a", 5 + i) if i <= accepted else UNSETTLED for i in range(3)]


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_the_next_step_starts_from_the_state_of_the_last_accepted_draft(accepted: int) -> None:
    worker = decoding((1,))
    worker.run(running("a", 4, 3, 5, ((2, 3, 4),), drafts=2), seq=2, fresh=(2, 3, 4), accepted={"a": accepted})
    start = 5 + accepted
    result = worker.run(running("a", start, 1, start + 1), seq=3)
    assert sound(result)
    column = (start + 1 + 3) // 4 - 1
    assert worker.state((1, 2, 3, 4)[column]) == worker.cell(0, "a", start + 1)


def test_a_step_that_starts_from_a_rejected_state_is_found() -> None:
    """The server believes that both drafts were accepted, the worker knows that one was."""
    worker = decoding((1,))
    worker.run(running("a", 4, 3, 5, ((2, 3, 4),), drafts=2), seq=2, fresh=(2, 3, 4), accepted={"a": 1})
    (wrong,) = worker.run(running("a", 7, 1, 8), seq=3).wrong
    assert (wrong.what, wrong.position, wrong.held) == ("state", 6, "the content of a's first 6 tokens")


@pytest.mark.parametrize(("accepted", "kept"), [(0, False), (1, True), (2, True)])
def test_accepted_drafts_that_pass_a_boundary_leave_its_state_in_its_column(accepted: int, kept: bool) -> None:
    """Tokens 7, 8, 9 run after 6: the state after 8 is that of the first draft, and column 1 ends at 8 tokens."""
    worker = decoding((0, 1, 2, 3, 4), prompt=(7, 8, 9, 4, 5, 6))
    draft = running("a", 6, 3, 7, drafts=2)
    assert sound(worker.run(draft, seq=2, accepted={"a": accepted}))
    assert [worker.state(b) for b in (2, 3)][: accepted + 1] == [worker.cell(0, "a", n) for n in (7, 8)][: accepted + 1]
    assert worker.state(1) == worker.cell(0, "a", 8 if kept else 6)
    start = 7 + accepted
    assert sound(worker.run(running("a", start, 1, start + 1), seq=3))


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_a_step_with_drafts_moves_the_state_of_the_last_accepted_one(accepted: int) -> None:
    """Two steps with drafts; the second one ends in the next block, so its state moves there from where it lies."""
    worker = decoding((1,))
    worker.run(running("a", 4, 3, 5, ((2, 3, 4),), drafts=2), seq=2, fresh=(2, 3, 4), accepted={"a": accepted})
    start = 5 + accepted
    item = running("a", start, 9 - start, start + 1, ((5, 6),), drafts=8 - start)
    assert sound(worker.run(item, seq=3, fresh=(5, 6), accepted={"a": 0}))
    assert worker.state(3) == worker.cell(0, "a", start + 1)


def test_a_step_whose_known_tokens_end_at_a_boundary_leaves_the_state_there() -> None:
    """Token 8 and two drafts run after 7: the step works in column 2, and column 1 ends at 8 tokens."""
    worker = decoding((0, 1, 2, 3, 4), prompt=(7, 8, 9, 4, 5, 6, 3))
    assert sound(worker.run(running("a", 7, 3, 8, drafts=2), seq=2, accepted={"a": 0}))
    assert worker.state(2) == worker.cell(0, "a", 8)
    assert worker.state(1) == worker.cell(0, "a", 8)


# ---- drafts in attention ---------------------------------------------------------------------------------------------


def test_rejected_drafts_are_overwritten_by_the_next_step() -> None:
    worker = Worker(layout_of(full(4), drafter=NGRAM))
    prompt = (7, 8, 9)
    worker.run(new("a", prompt, ((1, 2),)), fresh=(1, 2))
    result = worker.run(running("a", 3, 3, 4, drafts=2), seq=2, accepted={"a": 0})
    assert result.sampled == {"a": sampled(prompt, 2)[1:]}
    assert worker.held(1, 4)[3] == worker.cell(0, "a", 4)
    assert worker.held(2, 2) == [UNSETTLED, UNSETTLED]
    assert sound(worker.run(running("a", 4, 2, 5, drafts=1), seq=3, accepted={"a": 1}))
    assert worker.held(2, 2) == [worker.cell(0, "a", 5), worker.cell(0, "a", 6)]


def test_a_step_that_reads_a_rejected_draft_is_found() -> None:
    worker = Worker(layout_of(full(4), drafter=NGRAM))
    worker.run(new("a", (7, 8, 9), ((1, 2),)))
    worker.run(running("a", 3, 3, 4, drafts=2), seq=2, accepted={"a": 0})
    (wrong,) = worker.run(running("a", 6, 1, 7), seq=3).wrong
    assert (wrong.position, wrong.held) == (4, REJECTED)


def test_more_drafts_than_there_were_cannot_be_accepted() -> None:
    worker = Worker(layout_of(full(4), drafter=NGRAM))
    worker.run(new("a", (7, 8, 9), ((1, 2),)))
    result = worker.run(running("a", 3, 2, 4, drafts=1), seq=2, accepted={"a": 9})
    assert result.sampled == {"a": sampled((7, 8, 9), 3)[1:]}


def test_a_step_planned_before_drafts_were_rejected_starts_where_the_worker_is() -> None:
    """Overlapping steps: the plan counts on both drafts, the worker has accepted none (R8.2.4)."""
    worker = Worker(layout_of(full(4), drafter=NGRAM, steps_in_flight=2))
    worker.run(new("a", (7, 8, 9), ((1, 2),)))
    worker.run(running("a", 3, 3, 4, drafts=2), seq=2, accepted={"a": 0})
    assert sound(worker.run(running("a", 6, 3, 7, drafts=2), seq=3, accepted={"a": 0}))
    assert worker.held(2, 3) == [worker.cell(0, "a", 5), UNSETTLED, UNSETTLED]


# ---- what the drafter caches -----------------------------------------------------------------------------------------


def draft_cells(worker: Worker, block: int, count: int) -> list[int]:
    return [int(value) for value in worker.draft_cells[block, :count]]


def test_a_drafter_caches_each_position_with_the_token_after_it() -> None:
    """Position p is computed from p + 2 tokens; for the last one, the sampled token is already there."""
    worker = Worker(layout_of(full(4), drafter=EAGLE))
    assert sound(worker.run(new("a", (7, 8, 9), ((1,),)), fresh=(1,)))
    assert draft_cells(worker, 1, 4) == [*(worker.cell(0, "a", n) for n in (2, 3, 4)), POISON]
    assert worker.held(1, 4) == [*(worker.cell(0, "a", n) for n in (1, 2, 3)), POISON]


def test_drafter_content_that_goes_with_another_next_token_is_found() -> None:
    """The shared block is right for the model and wrong for the drafter: that is what the drop of R4.5 is for."""
    worker = Worker(layout_of(full(4), drafter=EAGLE))
    worker.run(new("a", (7, 8, 9, 4, 5), ((1, 2),)))
    (wrong,) = worker.run(new("b", (7, 8, 9, 4, 6), ((1, 3),), start=4), seq=2).wrong
    assert (wrong.label, wrong.what, wrong.position) == ("b", "draft", 3)
    assert wrong.held == "the content of a's first 5 tokens"
    assert wrong.expected == "the content of b's first 5 tokens"


@pytest.mark.parametrize("method", ["dflash", "dspark"])
def test_drafters_without_a_next_token_cache_what_the_model_does(method: str) -> None:
    worker = Worker(layout_of(full(4), drafter=Drafter(method=method, tokens=2)))
    worker.run(new("a", (7, 8, 9, 4, 5), ((1, 2),)))
    assert draft_cells(worker, 1, 4) == worker.held(1, 4)
    assert sound(worker.run(new("b", (7, 8, 9, 4, 6), ((1, 3),), start=4), seq=2))


def test_only_marked_groups_have_drafter_content() -> None:
    worker = Worker(layout_of(full(4), full(4, eagle=True, variant=2), drafter=EAGLE))
    worker.run(new("a", (7, 8, 9), ((1,), (2,))))
    assert draft_cells(worker, 1, 3) == [EMPTY] * 3
    assert draft_cells(worker, 2, 3) == [worker.cell(1, "a", n) for n in (2, 3, 4)]


def test_accepted_drafts_leave_drafter_content_that_is_settled_by_the_step() -> None:
    worker = Worker(layout_of(full(8), drafter=EAGLE))
    worker.run(new("a", (7, 8, 9), ((1,),)))
    assert sound(worker.run(running("a", 3, 3, 4, drafts=2), seq=2, accepted={"a": 1}))
    assert draft_cells(worker, 1, 5) == [worker.cell(0, "a", n) for n in (2, 3, 4, 5, 6)]
    assert sound(worker.run(running("a", 5, 1, 6), seq=3))


def test_several_modules_look_further_and_prefill_again_what_they_could_not_settle() -> None:
    """Two modules: position p needs p + 3 tokens, and the last one of a chunk is prefilled again by the next."""
    worker = Worker(layout_of(full(8), drafter=TWO_MODULES))
    prompt = (7, 8, 9, 4, 5, 6)
    assert sound(worker.run(new("a", prompt, ((1,),), count=5), fresh=(1,)))
    assert draft_cells(worker, 1, 6) == [*(worker.cell(0, "a", n) for n in (3, 4, 5, 6)), UNSETTLED, POISON]
    assert sound(worker.run(running("a", 5, 1, 6), seq=2))
    assert draft_cells(worker, 1, 6) == [*(worker.cell(0, "a", n) for n in (3, 4, 5, 6, 7)), UNSETTLED]


def test_tokens_before_a_hit_are_not_prefilled_again() -> None:
    """After a hit of 4 nothing below 4 is written again, though two modules would start one token earlier; nor is
    position 3, which goes with a's sixth token, read by ``b``: where nothing was hit it would have been new."""
    worker = Worker(layout_of(full(4), drafter=TWO_MODULES))
    worker.run(new("a", (7, 8, 9, 4, 5, 6), ((1, 2),)))
    before = draft_cells(worker, 1, 4)
    assert sound(worker.run(new("b", (7, 8, 9, 4, 5, 1, 3), ((1, 3),), start=4), seq=2))
    assert draft_cells(worker, 1, 4) == before


def test_a_draft_window_is_read_like_the_models() -> None:
    for position in range(6):
        worker = Worker(layout_of(window(2, 3), drafter=EAGLE))
        worker.run(new("a", (7, 8, 9, 4, 5, 6, 3), ((1, 2, 3, 4),), count=6))
        worker.draft_cells[position // 2 + 1, position % 2] = POISON
        wrong = worker.run(running("a", 6, 1, 7), seq=2).wrong
        assert [(w.what, w.position) for w in wrong] == ([("draft", position)] if position >= 4 else [])


# ---- loads and stores ------------------------------------------------------------------------------------------------

CONNECTED = layout_of(full(4), mamba(4), connector=Connector())
PROMPT = (7, 8, 9, 4, 5, 6, 3, 2, 1)


def test_a_load_before_a_step_fills_what_follows_the_local_hit() -> None:
    """Two tokens local, five external: positions 2 to 6 and the state after 7 tokens."""
    worker = Worker(CONNECTED)
    worker.run(new("a", PROMPT[:2], ((1,), (2,))))
    tables = ((1, 3, 4), (0, 5, 6))
    item = new("b", PROMPT, tables, start=7)
    assert sound(worker.run(item, seq=2, fresh=(3, 4, 5, 6), loads=(load("b", 2, 5, tables),)))
    assert worker.held(1, 4) == [worker.cell(0, "b", n) for n in (1, 2, 3, 4)]
    assert worker.held(3, 4) == [worker.cell(0, "b", n) for n in (5, 6, 7, 8)]
    assert worker.state(5) == worker.cell(1, "b", 7)
    assert worker.state(6) == worker.cell(1, "b", 9)


def test_a_load_leaves_the_local_hit_alone() -> None:
    worker = Worker(CONNECTED)
    tables = ((1, 3, 4), (0, 5, 6))
    item = new("b", PROMPT, tables, start=7)
    (wrong,) = worker.run(item, fresh=(1, 3, 4, 5, 6), loads=(load("b", 4, 3, tables),)).wrong
    assert (wrong.what, wrong.position, wrong.held) == ("forward", 0, NOT_WRITTEN)


def test_a_load_that_does_not_arrive_whole_leaves_garbage_and_says_where() -> None:
    """Of eight external tokens three arrive: position 3 on is garbage, and so is the one state."""
    worker = Worker(CONNECTED)
    tables = ((1, 3, 4), (2, 5, 6))
    part = load("b", 0, 8, tables, arrives=3)
    result = worker.run(new("b", PROMPT, tables, start=8), fresh=(1, 2, 3, 4, 5, 6), loads=(part,))
    assert [(w.group, w.what, w.position, w.held) for w in result.wrong] == [
        (1, "state", 7, "what a failed load left"),
        (0, "forward", 3, "what a failed load left"),
    ]
    assert worker.held(1, 4) == [*(worker.cell(0, "b", n) for n in (1, 2, 3)), GARBAGE]
    assert worker.held(3, 4) == [GARBAGE] * 4
    assert worker.unfilled_blocks(part) == (1, 3, 5)
    assert worker.unfilled_blocks(replace(part, arrives=4)) == (3, 5)
    assert worker.unfilled_blocks(replace(part, arrives=8)) == ()
    assert worker.unfilled_blocks(replace(part, arrives=None)) == ()


def test_an_asynchronous_load_writes_when_it_ends_and_not_before() -> None:
    worker = Worker(CONNECTED)
    worker.arrive("b", PROMPT, "", 0)
    tables = ((1, 3), (0, 5))
    plan = step(awaited=(1, 3, 5), fresh=(1, 3, 5), loads=(load("b", 0, 8, tables, asynchronous=True),))
    worker.issued(plan)
    worker.execute(plan, {})
    assert worker.held(1, 4) == [POISON] * 4
    assert worker.load_ends("b") == ()
    assert worker.held(1, 4) == [worker.cell(0, "b", n) for n in (1, 2, 3, 4)]
    assert worker.state(5) == worker.cell(1, "b", 8)
    assert worker.load_ends("b") is None
    assert sound(worker.run(new("b", PROMPT, ((1, 3, 4), (0, 5, 6)), start=8), seq=2, fresh=(4, 6)))


def test_an_asynchronous_load_that_fails_says_which_blocks_it_left() -> None:
    worker = Worker(CONNECTED)
    worker.arrive("b", PROMPT, "", 0)
    tables = ((1, 3), (0, 5))
    worker.issued(step(awaited=(1, 3, 5), loads=(load("b", 0, 8, tables, asynchronous=True, arrives=4),)))
    assert worker.load_ends("b") == (3, 5)
    assert worker.held(1, 4) == [worker.cell(0, "b", n) for n in (1, 2, 3, 4)]
    assert worker.held(3, 4) == [GARBAGE] * 4
    assert worker.state(5) == GARBAGE


@pytest.mark.parametrize(("divergent", "filled"), [(True, True), (False, False)])
def test_a_divergent_load_fills_blocks_below_the_local_hit_too(divergent: bool, filled: bool) -> None:
    worker = Worker(replace(CONNECTED, connector=Connector(divergent=divergent)))
    worker.arrive("b", PROMPT, "", 0)
    tables = ((1, 3), (0, 5))
    worker.issued(step(awaited=(1, 3, 5), loads=(load("b", 4, 4, tables, asynchronous=True),)))
    worker.load_ends("b")
    assert worker.held(1, 4) == ([worker.cell(0, "b", n) for n in (1, 2, 3, 4)] if filled else [POISON] * 4)
    assert worker.held(3, 4) == [worker.cell(0, "b", n) for n in (5, 6, 7, 8)]


def test_a_divergent_load_never_writes_a_block_that_had_a_key() -> None:
    worker = Worker(replace(CONNECTED, connector=Connector(divergent=True)))
    worker.run(new("a", (7, 8, 9, 1), ((1,), (2,))))
    before = worker.held(1, 4)
    worker.arrive("b", PROMPT, "", 0)
    worker.issued(step(awaited=(3, 5), loads=(load("b", 4, 4, ((1, 3), (0, 5)), asynchronous=True, fresh=(3, 5)),)))
    worker.load_ends("b")
    assert worker.held(1, 4) == before
    assert worker.held(3, 4) == [worker.cell(0, "b", n) for n in (5, 6, 7, 8)]


def test_a_load_brings_the_drafters_content_too() -> None:
    worker = Worker(layout_of(full(4), drafter=EAGLE, connector=Connector()))
    tables = ((1, 3),)
    assert sound(worker.run(new("b", PROMPT[:5], tables, start=4), loads=(load("b", 0, 4, tables),)))
    assert draft_cells(worker, 1, 4) == [worker.cell(0, "b", n) for n in (2, 3, 4, 5)]


def test_a_store_reads_the_finished_tokens_and_no_null_blocks() -> None:
    worker = Worker(layout_of(window(2, 4), connector=Connector()))
    worker.run(new("a", (7, 8, 9, 4, 5), ((1, 2, 3),)))
    assert worker.read_store(Store("a", 5, ((1, 2, 3),))) == []
    assert worker.read_store(Store("a", 5, ((0, 2, 3),))) == []
    worker.run(new("b", (6, 6), ((2,),)), seq=2)
    (wrong,) = worker.read_store(Store("a", 5, ((0, 2, 3),)))
    assert (wrong.label, wrong.what, wrong.position, wrong.block) == ("a", "store", 2, 2)
    assert wrong.held == "the content of b's first 1 tokens"
    assert worker.read_store(Store("a", 2, ((0, 2, 3),))) == []


# ---- several steps in flight -----------------------------------------------------------------------------------------


def in_flight() -> Worker:
    """``a`` has computed four tokens; block 1 and 2 hold them, and its next step is planned but has not run."""
    worker = Worker(layout_of(full(2), steps_in_flight=2, connector=Connector()))
    worker.run(new("a", (7, 8, 9, 4, 5), ((1, 2, 3),), count=4))
    return worker


def test_a_block_may_be_given_to_a_later_step() -> None:
    """Steps run in order: what the earlier one reads is still there (R8.2)."""
    worker = in_flight()
    earlier = step(running("a", 4, 1, 5), seq=2)
    worker.issued(earlier)
    worker.arrive("b", (6, 6), "", 0)
    later = step(new("b", (6, 6), ((1,),)), seq=3, fresh=(1,), finished=("a",))
    worker.issued(later)
    assert sound(worker.execute(earlier, {}))
    assert sound(worker.execute(later, {}))
    assert worker.held(1, 2) == [worker.cell(0, "b", 1), worker.cell(0, "b", 2)]


def test_a_block_must_not_be_given_to_a_load_that_nothing_orders() -> None:
    """The load may write as soon as it is planned, before the earlier step reads (R8.2.1)."""
    worker = in_flight()
    earlier = step(running("a", 4, 1, 5), seq=2)
    worker.issued(earlier)
    worker.arrive("b", (6, 6, 6), "", 0)
    worker.issued(step(seq=3, fresh=(1,), awaited=(1,), loads=(load("b", 0, 2, ((1,),), asynchronous=True),)))
    (wrong,) = worker.execute(earlier, {}).wrong
    assert (wrong.label, wrong.position, wrong.held) == ("a", 0, NOT_WRITTEN)


def test_a_step_that_had_a_block_before_a_load_got_it_leaves_the_load_alone() -> None:
    """Its request was taken out of the plan again. What the load wrote is destroyed only if the step says so."""
    for zero, held in (((), None), ((1,), "nothing: it was never written")):
        worker = Worker(layout_of(full(4)))
        worker.arrive("b", (6, 6, 6), "", 0)
        earlier = step(seq=1, fresh=(1,), zero=zero)
        worker.issued(earlier)
        worker.issued(step(seq=2, fresh=(1,), awaited=(1,), loads=(load("b", 0, 2, ((1,),), asynchronous=True),)))
        worker.load_ends("b")
        worker.execute(earlier, {})
        worker.execute(step(seq=2, fresh=(1,), awaited=(1,)), {})
        read = worker.execute(step(new("b", (6, 6, 6), ((1,),), start=2), seq=3), {}).wrong
        assert [wrong.held for wrong in read] == [held] * (held is not None)


# ---- published keys --------------------------------------------------------------------------------------------------


def test_a_key_of_an_attention_block_names_the_part_of_the_block_that_it_covers() -> None:
    worker = Worker(layout_of(full(4)))
    worker.run(new("a", (7, 8, 9, 4, 5, 6), ((1, 2),)), fresh=(1, 2))
    prefixes = worker.prefixes["a"]
    for length, block, right in ((4, 1, True), (6, 2, True), (5, 2, True), (8, 2, False), (4, 2, False), (8, 1, False)):
        wrong = worker.check_key(Register("a", 0, block, length, prefixes.id_of(length)), prefixes)
        assert (wrong is None) == right, (length, block)
    wrong = worker.check_key(Register("a", 0, 2, 8, prefixes.id_of(8)), prefixes)
    assert wrong is not None
    assert (wrong.what, wrong.position, wrong.held) == ("key", 6, NOT_WRITTEN)


def test_a_key_of_a_state_names_exactly_its_tokens() -> None:
    worker = Worker(layout_of(mamba(4)))
    worker.run(new("a", (7, 8, 9, 4, 5, 6), ((0, 2),)), fresh=(2,))
    prefixes = worker.prefixes["a"]
    assert worker.check_key(Register("a", 0, 2, 6, prefixes.id_of(6)), prefixes) is None
    wrong = worker.check_key(Register("a", 0, 2, 5, prefixes.id_of(5)), prefixes)
    assert wrong is not None
    assert (wrong.position, wrong.held) == (4, "the content of a's first 6 tokens")


def test_written_blocks_are_told() -> None:
    worker = Worker(layout_of(full(2), mamba(2)))
    worker.run(new("a", (7, 8, 9), ((1, 2), (0, 3))), fresh=(4,), copies=((1, 5),))
    assert worker.dirty == {1, 2, 3, 4, 5}
