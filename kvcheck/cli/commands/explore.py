"""`kvcheck explore`: all states of the model within small scopes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from kvcheck.cli.interrupt import answer_interruptions
from kvcheck.cli.options import (
    color_option,
    finish,
    jobs_option,
    json_option,
    out_folder,
    out_option,
    screen_for,
    seconds_option,
    target_option,
)
from kvcheck.engines.findings import Findings, folder_name
from kvcheck.explorer.explore import Result
from kvcheck.explorer.exploring import Exploring
from kvcheck.explorer.scope import Scope, names, scope_of
from kvcheck.files import InputError
from kvcheck.model.faults import names_of
from kvcheck.report.console import Screen
from kvcheck.report.exploration import Reported, exploration_report, show_exploration, show_exploration_verdict, verdict
from kvcheck.targets.reference.target import MODEL, faults_of, is_model


@click.command()
@target_option(MODEL, note=" Only the model can be explored.")
@click.option("--scope", "scopes", metavar="NAME|FILE", multiple=True, help="Only this scope; may be given again.")
@seconds_option("For each scope, at most.", 60.0)
@jobs_option
@out_option
@json_option
@color_option
def command(
    target: str,
    scopes: tuple[str, ...],
    seconds: float,
    jobs: int,
    out: str | None,
    json_file: str | None,
    no_color: bool,
) -> int:
    """Search all states of the model within small scopes, breadth first: what is found is shortest.

    Passed: all was seen, and nothing is broken. Violated: something is. Undetermined: a search was cut before it came
    to its end, did not come to what its scope is made for, or shows nothing of the faults that the model has.
    """
    screen = screen_for(json_file, no_color, *map(Path, scopes))
    if not is_model(target):
        raise InputError(f"{target}: only the model can be explored ({MODEL}, {MODEL}+FAULT or {MODEL}@X.Y.Z)")
    faults = names_of(faults_of(target))
    chosen = _chosen(scopes)
    base = out_folder(out)
    told: dict[str, Reported] = {}

    def tell(result: Result) -> None:
        told[result.scope] = Reported(chosen[result.scope], result, _kept(screen, base, target, result))
        show_exploration(screen, told[result.scope], target)

    began = time.monotonic()
    exploring = Exploring(target, seconds, jobs, tell)
    answer_interruptions(exploring, screen)
    exploring.run(list(chosen.items()))
    if exploring.interrupted:
        screen.line("interrupted")
    reported = [told[name] for name in chosen]
    result = verdict([one.result for one in reported])
    not_covered = faults if result == "passed" else []
    if not_covered:
        result = "undetermined"
    show_exploration_verdict(screen, result, reported, not_covered, time.monotonic() - began)
    return finish(json_file, exploration_report(result, target, reported, not_covered, exploring.interrupted), result)


def _chosen(texts: Sequence[str]) -> dict[str, Scope]:
    """The scopes of these names or files, or all that come with kvcheck."""
    return {text: scope_of(text) for text in texts or names()}


def _kept(screen: Screen, base: Path, target: str, result: Result) -> dict[str, Path]:
    """The files of the runs that show what was found, by signature. A file that cannot be written is told, no more."""
    findings = Findings(base / folder_name(f"explore {result.scope} {target}"), target)
    runs = {one.violation.signature: one for one in result.shown if one.run is not None and one.replays}
    files = {}
    for signature, one in runs.items():
        assert one.run is not None
        files[signature] = findings.save(signature, one.run, (one.trace,) if one.trace else ())
    if findings.error:
        screen.line(f"not kept: {findings.error}", "yellow")
    return files
