"""Every law is proved for the model, and refuted by each fault that it is about, with a run that shows it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest

from kvcheck.engines.judging import judge_run
from kvcheck.model import laws as model_laws
from kvcheck.model.faults import NO_FAULTS, faults_on
from kvcheck.prover.law import Law, all_laws
from kvcheck.prover.replay import replay
from kvcheck.prover.solve import Result, prove
from kvcheck.targets.loading import load_target

LAWS = all_laws()
REFUTED = [(law, fault) for law in LAWS for fault in law.refutes]
MOST_SECONDS = 2.0
SLOWER = 4
"""How much slower a loaded machine may be."""
Record = Callable[[str, object], None]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.id)
def test_a_law_is_proved_for_the_model(law: Law, record_property: Record) -> None:
    proof = prove(law, NO_FAULTS)
    assert (proof.result, proof.why, proof.numbers) == (Result.PROVED, "", None)
    record_property("measured", f"{law.id}: proved in {proof.seconds:.2f} s ({proof.sizes or 'no sizes'})")


@pytest.mark.parametrize(("law", "fault"), REFUTED, ids=lambda value: value if isinstance(value, str) else value.id)
def test_a_fault_is_refuted_and_its_counterexample_replays(law: Law, fault: str, record_property: Record) -> None:
    spec = f"model+{fault}"
    proof = prove(law, faults_on([fault]))
    assert proof.result is Result.REFUTED
    assert proof.seconds < SLOWER * MOST_SECONDS
    shown = replay(proof, spec)
    assert shown is not None
    assert shown.signature in [v.signature for v in judge_run(load_target(spec), shown.run).violations]
    assert judge_run(load_target("model"), shown.run).violations == ()
    record_property("measured", f"{law.id}, {fault}: refuted in {proof.seconds:.2f} s, shows as {shown.signature}")


def test_every_fault_of_the_laws_is_refuted_by_some_law() -> None:
    read = {name.replace("_", "-") for name in re.findall(r"faults\.(\w+)", inspect.getsource(model_laws))}
    assert read <= {fault for _, fault in REFUTED}


def test_every_law_but_the_open_question_refutes_something() -> None:
    assert [law.id for law in LAWS if not law.refutes] == ["lookahead.covered"]


def test_premises_that_nothing_checks_are_told_with_what_happens_without_them() -> None:
    proofs = {law.id: prove(law, NO_FAULTS) for law in LAWS if law.id in ("chunks.progress", "lookahead.covered")}
    ((premise, numbers),) = proofs["chunks.progress"].needs.items()
    assert premise == "the long-prefill threshold is at least the lookahead"
    assert 0 < numbers["threshold"] < numbers["lookahead"]
    ((premise, numbers),) = proofs["lookahead.covered"].needs.items()
    assert premise == "no unit that a group drops is shorter than the lookahead"
    assert numbers["scheduler block"] >= numbers["lookahead"] > numbers["block"]
