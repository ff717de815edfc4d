"""Options that several commands share, and what they mean."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kvcheck.cli.status import UNDETERMINED, status_of
from kvcheck.engines.crash import is_signature
from kvcheck.engines.findings import campaign_folder
from kvcheck.engines.seeds import fresh_seed
from kvcheck.files import RUN_FILE, InputError, OutputError, json_text, read_layout, require_writable, write_json
from kvcheck.layouts.presets import PRESETS, preset
from kvcheck.model.layout import Layout
from kvcheck.report.console import Screen, silence
from kvcheck.targets.errors import FORMS

Command = TypeVar("Command", bound=Callable[..., Any])

RANDOM = "random"
STDOUT = "-"


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def positive_seconds(_context: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    """A finite time above zero."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise click.BadParameter(f"{value:g} is not a number of seconds above 0")
    return value


def target_option(default: str | None, required: bool = False, note: str = "") -> Callable[[Command], Command]:
    """--target."""
    told = f"Code to check: {FORMS}.{note}"
    if default is None:
        return click.option("--target", metavar="T", required=required, help=told)
    return click.option("--target", metavar="T", default=default, show_default=True, help=told)


def json_option(command: Command) -> Command:
    """--json."""
    option = click.option("--json", "json_file", metavar="FILE", help=f"Write a report as JSON ({STDOUT}: to stdout).")
    return option(command)


def color_option(command: Command) -> Command:
    """--no-color."""
    return click.option("--no-color", is_flag=True, help="No colours, even on a terminal.")(command)


def known_signature(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """A signature of a claim that there is, or its first words."""
    words = " ".join((value or "").split())
    if value is not None and not is_signature(words):
        raise click.BadParameter(f"{value!r} begins with no claim (see kvcheck invariants)")
    return words or None


def signature_option(told: str, default: str) -> Callable[[Command], Command]:
    """--signature."""
    more = f"{told}: its signature, or the first words.  [default: the one that RUN was kept for, else {default}]"
    return click.option("--signature", metavar="TEXT", callback=known_signature, help=more)


def seconds_option(told: str, default: float | None = None) -> Callable[[Command], Command]:
    """--seconds."""
    more: dict[str, Any] = {"default": default, "show_default": True} if default is not None else {}
    return click.option("--seconds", type=float, callback=positive_seconds, help=told, **more)


seed_option = click.option(
    "--seed", type=click.IntRange(min=0), default=fresh_seed, help="Seed of the runs.  [default: a random one, printed]"
)
jobs_option = click.option(
    "--jobs", type=click.IntRange(1, 1024), default=cores, help="Worker processes.  [default: one for each core]"
)
out_option = click.option(
    "--out", metavar="DIR", help="Where findings are kept.  [default: $KVCHECK_OUT or kvcheck-out]"
)


def out_folder(given: str | None) -> Path:
    """Where findings are kept."""
    return Path(given or os.environ.get("KVCHECK_OUT") or "kvcheck-out")


def folder_for(out: str | None, target: str, seed: int, *kind: str) -> Path:
    """The folder of one campaign. Finds out whether it can be written."""
    folder = campaign_folder(out_folder(out), target, seed, *kind)
    require_writable(folder / RUN_FILE)
    return folder


def screen_for(json_file: str | None, no_color: bool, *read: Path | None) -> Screen:
    """Where people read: stdout, or stderr if stdout is for the JSON. Finds out whether the report can be written, and
    not over the files that the command has ``read``."""
    if json_file not in (None, STDOUT):
        require_writable(Path(json_file), *filter(None, read))
    return Screen(sys.stderr if json_file == STDOUT else sys.stdout, no_color)


def write_report(json_file: str | None, report: Any) -> None:
    """The JSON report, if one was asked for.

    Raises:
        OutputError: it cannot be written.
    """
    if json_file == STDOUT:
        _write_to_stdout(json_text(report))
    elif json_file is not None:
        write_json(Path(json_file), report)


def _write_to_stdout(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        silence(sys.stdout)
        raise OutputError(f"cannot write to stdout: {error.strerror or error}") from error


def written(write: Callable[[], object]) -> bool:
    """Write something of what was found; whether that could be done. If not, it is told, and all else goes on."""
    try:
        write()
    except OutputError as error:
        click.echo(f"kvcheck: {error}", err=True)
        return False
    return True


def finish(json_file: str | None, report: Any, verdict: str, whole: bool = True) -> int:
    """Write the report, and give the exit status. ``whole``: all else could be written."""
    return final_status(verdict, written(lambda: write_report(json_file, report)) and whole)


def final_status(verdict: str, whole: bool) -> int:
    """The exit status. What could not be written makes no violation undone, and lets nothing pass."""
    return status_of(verdict) if whole or verdict == "violated" else UNDETERMINED


def layout_of(text: str, version: str) -> Layout | None:
    """What --layout names, as the release resolves it; None: random ones.

    Raises:
        InputError: it names nothing.
    """
    if text == RANDOM:
        return None
    if text in PRESETS:
        numbers = version.split(".")
        known = len(numbers) > 1 and all(part.isdigit() for part in numbers[:2])
        return preset(text, version if known else None)
    path = Path(text)
    try:
        there = path.exists()
    except OSError:  # no file can have this name
        there = False
    if not there:
        raise InputError(f"{text!r} is neither a preset (see kvcheck layouts) nor a file")
    return read_layout(path)
