"""Every law is proved for the model, and refuted by each fault that it is about, with a run that shows it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest

from kvcheck.engines.execution import Execution
from kvcheck.engines.judging import judge_run
from kvcheck.model import laws as model_laws
from kvcheck.model.actions import Arrive
from kvcheck.model.arith import aligned, equal, round_down
from kvcheck.model.faults import NO_FAULTS, faults_on
from kvcheck.prover.law import Law, all_laws
from kvcheck.prover.replay import replay
from kvcheck.prover.runs import STEP, group, layout, mtp
from kvcheck.prover.sizes import NONE, SIZES
from kvcheck.prover.solve import Result, prove
from kvcheck.targets.loading import load_target

LAWS = all_laws()
REFUTED = [(law, fault) for law in LAWS for fault in law.refutes]
Record = Callable[[str, object], None]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.id)
def test_a_law_is_proved_for_the_model(law: Law, record_property: Record) -> None:
    proof = prove(law, NO_FAULTS)
    assert (proof.result, proof.why, proof.numbers) == (Result.PROVED, "", None)
    assert (proof.sizes == NONE) == (law.sizes == NONE)
    assert [*SIZES, NONE].index(proof.sizes) <= [*SIZES, NONE].index(law.sizes)
    record_property("measured", f"{law.id}: proved in {proof.seconds:.2f} s ({proof.sizes or 'no sizes'})")


@pytest.mark.parametrize(("law", "fault"), REFUTED, ids=lambda value: value if isinstance(value, str) else value.id)
def test_a_fault_is_refuted_and_its_counterexample_replays(law: Law, fault: str, record_property: Record) -> None:
    spec = f"model+{fault}"
    proof = prove(law, faults_on([fault]))
    assert proof.result is Result.REFUTED
    shown = replay(proof, spec)
    assert shown is not None
    assert shown.signature in [v.signature for v in judge_run(load_target(spec), shown.run).violations]
    assert judge_run(load_target("model"), shown.run).violations == ()
    record_property("measured", f"{law.id}, {fault}: refuted in {proof.seconds:.2f} s, shows as {shown.signature}")


@pytest.mark.parametrize(
    ("identifier", "function", "wrong"),
    [
        ("chunks.ends", "junction_stop", lambda *_: 0),
        ("chunks.ends", "tail_stop", lambda *_: 0),
        ("chunks.ends", "last_cacheable", lambda known, grid, _: round_down(known, grid)),
        ("windows.kept", "state_at_segment", lambda column, block, segment: aligned(block * column, segment)),
        ("windows.kept", "state_at_boundary", lambda column, block, at, whole: equal(block * column, at)),
    ],
)
def test_a_law_that_is_made_wrong_is_refuted(
    identifier: str, function: str, wrong: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a statement claims is said in words of its own, not by the law that it is about."""
    monkeypatch.setattr(model_laws, function, wrong)
    (law,) = [law for law in LAWS if law.id == identifier]
    assert prove(law, NO_FAULTS).result is Result.REFUTED


def test_every_fault_of_the_laws_is_refuted_by_some_law() -> None:
    read = {name.replace("_", "-") for name in re.findall(r"faults\.(\w+)", inspect.getsource(model_laws))}
    assert read <= {fault for _, fault in REFUTED}


def test_every_law_but_the_open_question_refutes_something() -> None:
    assert [law.id for law in LAWS if not law.refutes] == ["lookahead.covered"]


def test_premises_that_nothing_checks_are_told_with_what_happens_without_them() -> None:
    (law,) = [law for law in LAWS if law.id == "lookahead.covered"]
    ((premise, numbers),) = prove(law, NO_FAULTS).needs.items()
    assert premise == "no unit that a group drops is shorter than the lookahead"
    assert numbers["scheduler block"] >= numbers["lookahead"] > numbers["block"]


# ---- R9.1: drafts of several modules where hits end inside blocks ----------------------------------------------------


def draft_entries_of_others(block: int, shared: int) -> list[tuple[str, int, int]]:
    """Entries of the drafter that a request reads (its label, group, position) though they go with other tokens; it
    shares so many tokens with one before. The drafter reads 2 tokens ahead, h is ``block``."""
    of = layout(group("full", block), group("mamba", 2 * block), drafter=mtp(1))
    assert (of.partial_hits, of.hash_block, of.prefill_lookahead) == (True, block, 2)
    execution = Execution(load_target("model").start(of), of)
    prefix = tuple(range(1, shared + 1))
    actions = [
        Arrive(label="a", prompt=(*prefix, 40)),
        *STEP * 3,
        Arrive(label="b", prompt=(*prefix, 50, 51, 52), max_tokens=2),
        *STEP * 3,
    ]
    wrong = [read for action in actions for read in execution.apply(action).wrong]
    assert {read.what for read in wrong} <= {"draft"}
    return sorted({(read.label, read.group, read.position) for read in wrong})


def test_r9_1_a_drop_below_the_lookahead_lets_a_drafter_read_what_goes_with_other_tokens() -> None:
    assert draft_entries_of_others(1, 7) == [("b", 0, 5)]


def test_r9_1_a_drop_as_long_as_the_lookahead_does_not() -> None:
    assert [draft_entries_of_others(2, shared) for shared in range(2, 20)] == [[]] * 18
