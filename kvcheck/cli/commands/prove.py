"""`kvcheck prove`: the laws of the model, on all numbers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvcheck.cli.interrupt import answer_interruptions
from kvcheck.cli.options import color_option, finish, json_option, out_folder, out_option, screen_for, target_option
from kvcheck.engines.findings import Findings, folder_name
from kvcheck.files import InputError
from kvcheck.prover.law import Law, all_laws
from kvcheck.report.account import how_to_reproduce
from kvcheck.report.console import Screen
from kvcheck.targets.reference.target import MODEL, faults_of, is_model

if TYPE_CHECKING:
    from kvcheck.prover.replay import Shown


@click.command()
@click.argument("laws", metavar="[LAW ...]", nargs=-1)
@target_option(MODEL, note=" Only the model can be proved.")
@out_option
@json_option
@color_option
def command(laws: tuple[str, ...], target: str, out: str | None, json_file: str | None, no_color: bool) -> int:
    """Prove the laws of the model, or refute them with a counterexample that is replayed.

    Passed: all are proved. Violated: one is refuted, and a run shows it. Undetermined: neither; one is unknown, or
    refuted by numbers that no run shows, or a fault of the target is one that none of them is about.
    """
    screen = screen_for(json_file, no_color)
    if not is_model(target):
        raise InputError(f"{target}: only the model can be proved ({MODEL}, {MODEL}+FAULT or {MODEL}@X.Y.Z)")
    faults, chosen = faults_of(target), _chosen(laws)
    from kvcheck.prover.check import Checked, Proving, uncovered, verdict  # noqa: PLC0415  the solver is slow to load
    from kvcheck.report.proofs import proof_report, show_proof, show_proofs_verdict  # noqa: PLC0415  the solver is slow to load

    base = out_folder(out)
    reproduce: dict[str, str] = {}

    def tell(one: Checked) -> None:
        if one.shown:
            reproduce[one.proof.law.id] = _kept(screen, base, target, one.proof.law, one.shown)
        show_proof(screen, one, reproduce.get(one.proof.law.id, ""))

    began = time.monotonic()
    proving = Proving(target, tell)
    answer_interruptions(proving, screen)
    checked = proving.run(chosen)
    if proving.interrupted:
        screen.line(f"interrupted after {len(checked)} of {len(chosen)} laws")
    not_covered = uncovered(chosen, faults)
    result = verdict(checked, not_covered, proving.interrupted)
    show_proofs_verdict(screen, result, checked, not_covered, time.monotonic() - began)
    report = proof_report(result, target, checked, not_covered, proving.interrupted, reproduce)
    return finish(json_file, report, result)


def _kept(screen: Screen, base: Path, target: str, law: Law, shown: Shown) -> str:
    """Keep the run of a counterexample; the command that shows it again. A file that cannot be written is told."""
    findings = Findings(base / folder_name(f"prove {law.id} {target}"), target)
    file = findings.save(shown.signature, shown.run)
    if findings.error:
        screen.line(f"not kept: {findings.error}", "yellow")
    return how_to_reproduce(file, target)


def _chosen(names: Sequence[str]) -> list[Law]:
    """The laws of these names, or all."""
    known = {law.id: law for law in all_laws()}
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"no such law: {', '.join(unknown)} (see kvcheck laws)")
    return [known[name] for name in dict.fromkeys(names)] or list(known.values())
