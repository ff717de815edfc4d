"""Options that several commands share, and what they mean."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kvcheck.cli.status import UNDETERMINED, VIOLATED, status_of
from kvcheck.files import InputError, OutputError, json_text, read_layout, require_writable, write_json
from kvcheck.layouts.presets import PRESETS, preset
from kvcheck.model.layout import Layout
from kvcheck.report.console import Screen
from kvcheck.targets.errors import FORMS

Command = TypeVar("Command", bound=Callable[..., Any])

RANDOM = "random"
STDOUT = "-"


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


def out_folder(given: str | None) -> Path:
    """Where findings are kept."""
    return Path(given or os.environ.get("KVCHECK_OUT") or "kvcheck-out")


def screen_for(json_file: str | None, no_color: bool) -> Screen:
    """Where people read: stdout, or stderr if stdout is for the JSON. Finds out whether the report can be written."""
    if json_file not in (None, STDOUT):
        require_writable(Path(json_file))
    return Screen(sys.stderr if json_file == STDOUT else sys.stdout, no_color)


def write_report(json_file: str | None, report: Any) -> None:
    """The JSON report, if one was asked for."""
    if json_file == STDOUT:
        sys.stdout.write(json_text(report))
    elif json_file is not None:
        write_json(Path(json_file), report)


def finish(json_file: str | None, report: Any, verdict: str) -> int:
    """Write the report, and give the exit status. A report that cannot be written makes no violation undone."""
    try:
        write_report(json_file, report)
    except OutputError as error:
        click.echo(f"kvcheck: {error}", err=True)
        return VIOLATED if verdict == "violated" else UNDETERMINED
    return status_of(verdict)


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
