"""`kvcheck shrink`: the shortest run that shows what a run shows."""

from __future__ import annotations

from pathlib import Path

import click

from kvcheck.cli.options import (
    color_option,
    finish,
    json_option,
    screen_for,
    seconds_option,
    signature_option,
    target_option,
    written,
)
from kvcheck.engines.campaign import SHRINK_SECONDS
from kvcheck.engines.findings import said_of
from kvcheck.engines.judging import RunResult
from kvcheck.engines.tally import Undetermined
from kvcheck.engines.watched import Watched, code_and_message
from kvcheck.engines.worker_protocol import Shrunk
from kvcheck.files import InputError, name_of, read_run, require_writable, run_file, stated_signature, write_run
from kvcheck.invariants.registry import Violation
from kvcheck.model.actions import Run
from kvcheck.report.account import Account, how_to_reproduce, show_account
from kvcheck.report.campaign_json import undetermined, violation_entry
from kvcheck.report.console import Screen
from kvcheck.report.verdict import show_replay_verdict
from kvcheck.targets.loading import describe


@click.command()
@click.argument("path", metavar="RUN", type=click.Path(path_type=Path))
@target_option(None, required=True)
@signature_option("Which violation to keep", "the first")
@seconds_option("Shrink for so long at most.", 3 * SHRINK_SECONDS)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="[default: NAME.shrunk.json in the current folder]"
)
@json_option
@color_option
def command(
    path: Path,
    target: str,
    signature: str | None,
    seconds: float,
    out: Path | None,
    json_file: str | None,
    no_color: bool,
) -> int:
    """Shrink a run that breaks an invariant: fewer actions, a plainer layout, fewer tokens."""
    screen = screen_for(json_file, no_color, path)
    file = run_file(path)
    out = out or Path(f"{name_of(path)}.shrunk.json")
    require_writable(out, path)
    run = read_run(path)
    signature = signature or stated_signature(path)
    watched = Watched(target, expected=describe(target))
    try:
        before = watched.judge(run)
        violation = _chosen(file, before, signature)
        if violation is None:
            return _nothing_to_shrink(screen, before, json_file)
        shrunk = watched.shrink(run, violation.signature, seconds)
        after = watched.judge(shrunk.run, record=True)
    finally:
        watched.close()
    last = next((v for v in after.violations if v.signature == violation.signature), None)
    if last is None:
        return _not_shown_again(screen, violation, json_file)
    whole = written(lambda: write_run(out, shrunk.run, said_of(target, last.signature)))
    _show(screen, run, shrunk, last, after, how_to_reproduce(out, target))
    entry = violation_entry(last, shrunk.run, out, target, shrunk.needs)
    return finish(json_file, {"version": 1, "verdict": "violated", "violations": [entry]}, "violated", whole)


def _chosen(file: Path, result: RunResult, signature: str | None) -> Violation | None:
    if signature is None:
        return result.violations[0] if result.violations else None
    found = next((v for v in result.violations if v.is_called(signature)), None)
    if found is None and result.violations:
        raise InputError(f"{file}: shows {', '.join(v.signature for v in result.violations)}, not {signature}")
    return found


def _not_shown_again(screen: Screen, violation: Violation, json_file: str | None) -> int:
    message = f"{violation.signature}: not seen when the shrunk run was replayed"
    screen.line(message)
    why = undetermined([Undetermined(code="not-reproducible", message=message)])
    return finish(json_file, {"version": 1, "verdict": "undetermined", "undetermined": why}, "undetermined")


def _nothing_to_shrink(screen: Screen, result: RunResult, json_file: str | None) -> int:
    verdict = "undetermined" if result.undetermined else "passed"
    screen.line("there is nothing to shrink: the run breaks no invariant on this target")
    show_replay_verdict(screen, verdict, code_and_message(result.undetermined), result, result.actions)
    return finish(json_file, {"version": 1, "verdict": verdict, "violations": []}, verdict)


def _show(screen: Screen, run: Run, shrunk: Shrunk, violation: Violation, after: RunResult, reproduce: str) -> None:
    remark = f"{len(run.actions)} actions before, {len(shrunk.run.actions)} now"
    account = Account(
        violation=violation,
        run=shrunk.run,
        reproduce=reproduce,
        trace=after.trace,
        needs=shrunk.needs,
        remark=remark,
    )
    show_account(screen, account, 1)
