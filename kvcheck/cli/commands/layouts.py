"""`kvcheck layouts`: named layouts."""

from __future__ import annotations

import sys

import click
import msgspec

from kvcheck.cli.options import json_option, screen_for, write_report
from kvcheck.cli.status import PASSED
from kvcheck.files import InputError, json_text, versioned
from kvcheck.layouts.presets import PRESETS, all_presets, preset
from kvcheck.report.describe import layout_lines
from kvcheck.report.lists import show_table


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def command(context: click.Context, json_file: str | None) -> int:
    """List the named layouts: name, sizes, and the models that they stand for."""
    if context.invoked_subcommand is not None:
        return PASSED
    screen = screen_for(json_file, no_color=True)
    layouts = {one.name: one.layout() for one in all_presets()}
    show_table(screen, [(one.name, layout_lines(layouts[one.name])[0], one.models) for one in all_presets()])
    entries = [
        {"name": one.name, "models": one.models, "sizes": one.sizes, "layout": versioned(layouts[one.name])}
        for one in all_presets()
    ]
    write_report(json_file, {"version": 1, "layouts": entries})
    return PASSED


@command.command()
@click.argument("name")
@click.option("--release", metavar="X.Y.Z", help="As this release resolves it.  [default: the newest one known]")
def show(name: str, release: str | None) -> int:
    """Print one layout as JSON."""
    if name not in PRESETS:
        raise InputError(f"{name!r} is no named layout: kvcheck layouts lists them")
    try:
        layout = preset(name, release)
    except ValueError as error:
        raise InputError(f"{release!r} is no release") from error
    sys.stdout.write(json_text(msgspec.to_builtins(versioned(layout))))
    return PASSED
