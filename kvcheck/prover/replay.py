"""A counterexample in numbers, shown by the model: a run that breaks an invariant with the fault, and none without."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from kvcheck.engines.judging import judge_run
from kvcheck.model.actions import Run
from kvcheck.model.layout import problems
from kvcheck.prover.law import LAWS, Law, Numbers
from kvcheck.prover.solve import Proof, prove
from kvcheck.targets.loading import load_target
from kvcheck.targets.reference.target import MODEL, faults_of

MOST_RUNS = 400
"""How many runs around the numbers are tried."""


class Shown(NamedTuple):
    """A run around the numbers of a law, and the violation that it shows, by its signature."""

    run: Run
    signature: str
    law: Law
    numbers: Numbers


def replay(proof: Proof, spec: str) -> Shown | None:
    """The first run around a counterexample's numbers that breaks an invariant of the law's on ``spec`` and, if that
    has faults, none at all on the model without. It ends where it shows."""
    law, numbers = proof.law, proof.numbers
    if law.instance:
        law = LAWS[law.instance]
        numbers = prove(law, faults_of(spec)).numbers
    if numbers is None or law.replays is None:
        return None
    faulty, sound = load_target(spec), load_target(MODEL)
    for run in islice(law.replays(numbers), MOST_RUNS):
        if problems(run.layout):
            continue
        shown = [v for v in judge_run(faulty, run).violations if v.invariant.startswith(law.shows)]
        if shown and (spec == MODEL or not judge_run(sound, run).violations):
            return Shown(replace(run, actions=run.actions[: shown[0].index + 1]), shown[0].signature, law, numbers)
    return None
