"""Proving laws of a target and replaying what refutes them: the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvcheck.model.faults import FAULTS, Faults
from kvcheck.prover.law import Law
from kvcheck.prover.replay import Shown, replay
from kvcheck.prover.solve import Proof, Result, prove
from kvcheck.targets.reference.target import faults_of


@dataclass(frozen=True)
class Checked:
    """A proof, and the run that shows its counterexample."""

    proof: Proof
    shown: Shown | None = None

    @property
    def refuted(self) -> bool:
        """Whether there is a counterexample."""
        return self.proof.result is Result.REFUTED

    @property
    def undetermined(self) -> str:
        """Why nothing can be said, if so."""
        if self.proof.result is Result.UNKNOWN:
            return f"{self.proof.law.id} is unknown: {self.proof.why}"
        if self.refuted and self.shown is None:
            return (
                f"the counterexample of {self.proof.law.id} does not replay: this is a bug of the law or of the model"
            )
        return ""


def check(laws: Sequence[Law], spec: str, told: Callable[[Checked], None]) -> list[Checked]:
    """Prove each of these laws for a model with its faults. ``told`` hears of each when it is over."""
    faults = faults_of(spec)
    checked = []
    for law in laws:
        proof = prove(law, faults)
        one = Checked(proof, replay(proof, spec) if proof.result is Result.REFUTED else None)
        told(one)
        checked.append(one)
    return checked


def uncovered(laws: Sequence[Law], faults: Faults) -> list[str]:
    """The faults that are on and that none of these laws is about."""
    on = [name for name in FAULTS if getattr(faults, name.replace("-", "_"))]
    return [name for name in on if not any(name in law.refutes for law in laws)]


def verdict(checked: Sequence[Checked], not_covered: Sequence[str]) -> str:
    """Violated: some counterexample replays. Passed: every law is proved, and there is no fault that none is about."""
    if any(one.refuted and not one.undetermined for one in checked):
        return "violated"
    return "undetermined" if not_covered or any(one.undetermined for one in checked) else "passed"
