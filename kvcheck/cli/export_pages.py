"""Runs as pages to look at."""

from __future__ import annotations

from pathlib import Path

import click

from kvcheck.cli.commands.replay import Replay, judged_again, judged_on_target, target_of
from kvcheck.cli.exported import Exported
from kvcheck.cli.status import PASSED, UNDETERMINED
from kvcheck.engines.watched import code_and_message
from kvcheck.files import InputError, one_line, read_run_or_trace
from kvcheck.model.observation import Trace
from kvcheck.report.account import replay_command
from kvcheck.report.console import Screen
from kvcheck.report.info import info_text
from kvcheck.report.pages.run import RunPage, run_page
from kvcheck.targets.errors import TargetError


def page_of(path: Path, target: str | None, signature: str | None, _screen: Screen) -> Exported:
    """A page to look at: all that the run shows, whatever it is."""
    if signature is not None:
        raise InputError("--signature is for tests: a page shows all violations")
    replay = _judged(path, target)
    result = replay.result
    if replay.interrupted:
        raise click.Abort
    page = RunPage(
        run=replay.run,
        target=f"{replay.spec}: {info_text(replay.info)}",
        verdict=replay.verdict,
        violations=result.violations,
        reproduce=replay_command(replay.file, replay.spec),
        trace=result.trace,
        why=_why(replay),
    )
    try:
        text = run_page(page)
    except (KeyError, IndexError, ValueError, TypeError, TargetError) as error:
        raise InputError(
            f"{path}: the recording contradicts itself ({type(error).__name__}: {one_line(error)})"
        ) from error
    status = UNDETERMINED if replay.verdict == "undetermined" else PASSED
    return Exported(text, f"{replay.verdict}, {len(replay.run.actions)} actions", status)


def _judged(path: Path, target: str | None) -> Replay:
    """What comes of the run on the target; of a recording, what it shows."""
    found = read_run_or_trace(path)
    if isinstance(found, Trace) and target is None:
        return judged_again(path, found)
    run = found.run if isinstance(found, Trace) else found
    return judged_on_target(path, run, target or target_of(path))


def _why(replay: Replay) -> str:
    """Why nothing can be said, or nothing can be shown."""
    if replay.undetermined:
        code, message = code_and_message(replay.undetermined)
        return f"{code}: {message}"
    return "" if replay.result.trace is not None else "there is no recording of this run: it did not end"
