"""`kvcheck export`: a run in another form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click

from kvcheck.cli.commands.replay import Replay, judged_again, judged_on_target, target_of
from kvcheck.cli.options import target_option
from kvcheck.cli.status import PASSED, UNDETERMINED
from kvcheck.engines.watched import code_and_message
from kvcheck.files import RUN_FILE, InputError, one_line, read_run_or_trace, require_writable, write_text
from kvcheck.model.observation import Trace
from kvcheck.report.account import replay_command
from kvcheck.report.info import info_text
from kvcheck.report.pages.render import require_extra
from kvcheck.report.pages.run import RunPage, run_page
from kvcheck.targets.errors import TargetError


class Exported(NamedTuple):
    """What is written, what is said of it, and the exit status: undetermined if it shows too little."""

    text: str
    told: str
    status: int = PASSED


class Format(NamedTuple):
    """A form: how its files end, how one is made of a run or recording and a target (None: not named), and what must
    hold before that."""

    suffix: str
    make: Callable[[Path, str | None], Exported]
    require: Callable[[], None]


def html(path: Path, target: str | None) -> Exported:
    """A page to look at."""
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


FORMATS = {"html": Format(".html", html, require_extra)}


@click.command()
@click.argument("path", metavar="RUN|TRACE", type=click.Path(path_type=Path))
@click.option("--to", "form", type=click.Choice(list(FORMATS)), required=True, help="html: one page to look at.")
@target_option(None, note="  [default: what a counterexample names, else the model; a recording needs none]")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="[default: RUN with another ending]")
def command(path: Path, form: str, target: str | None, out: Path | None) -> int:
    """Turn a run (a counterexample's folder, a run file or a recording) into something else.

    Exit status: 0 if it was written, whatever the run shows; 2 if it could not be seen what the run does.
    """
    chosen = FORMATS[form]
    chosen.require()
    out = out or (path / RUN_FILE if path.is_dir() else path).with_suffix(chosen.suffix)
    require_writable(out)
    exported = chosen.make(path, target)
    write_text(out, exported.text)
    click.echo(f"{out}: {exported.told}")
    return exported.status
