"""Proving laws of a target and replaying what refutes them: the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from kvcheck.model.faults import Faults, names_of
from kvcheck.prover.law import Law
from kvcheck.prover.questions import Stopped
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
                f"the counterexample of {self.proof.law.id} does not replay: no run around its numbers breaks an "
                "invariant. Either the law says more than invariants see, or its runs do not lead there"
            )
        return ""


class Proving:
    """Proofs of laws for a model with its faults. ``told`` hears of each when it is over."""

    def __init__(self, spec: str, told: Callable[[Checked], None]) -> None:
        self._spec, self._told = spec, told
        self._faults = faults_of(spec)
        self.checked: list[Checked] = []
        self.interrupted = self._over = False

    def run(self, laws: Sequence[Law]) -> list[Checked]:
        """Prove each of these; what was proved before an interrupt."""
        with suppress(Stopped):
            for law in laws:
                proof = prove(law, self._faults, goes_on=lambda: not self.interrupted)
                one = Checked(proof, replay(proof, self._spec) if proof.result is Result.REFUTED else None)
                self.checked.append(one)
                self._told(one)
        self._over = True
        self.interrupted = len(self.checked) < len(laws)
        return self.checked

    def interrupt(self) -> None:
        """End with the question to Z3 that is being asked, without its law."""
        self.interrupted |= not self._over

    kill = interrupt

    @property
    def found_something(self) -> bool:
        """Whether a counterexample was found that replays."""
        return any(one.shown for one in self.checked)


def uncovered(laws: Sequence[Law], faults: Faults) -> list[str]:
    """The faults that are on and that none of these laws is about."""
    return [name for name in names_of(faults) if not any(name in law.refutes for law in laws)]


def verdict(checked: Sequence[Checked], not_covered: Sequence[str], interrupted: bool = False) -> str:
    """Violated: some counterexample replays. Passed: every law is proved, and there is no fault that none is about."""
    if any(one.shown for one in checked):
        return "violated"
    doubtful = interrupted or not_covered or any(one.undetermined for one in checked)
    return "undetermined" if doubtful else "passed"
