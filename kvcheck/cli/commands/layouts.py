"""`kvcheck layouts`: named layouts."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from kvcheck.cli.options import STDOUT, json_option, screen_for, target_option, write_report
from kvcheck.cli.status import PASSED
from kvcheck.files import InputError, json_text, versioned
from kvcheck.layouts.from_config import Derived, config_in, derive, read_config
from kvcheck.layouts.presets import NEWEST, PRESETS, all_presets, preset
from kvcheck.layouts.server_args import parse_server_args
from kvcheck.report.console import Screen
from kvcheck.report.describe import group_text, layout_lines
from kvcheck.report.lists import show_table
from kvcheck.targets.loading import DEFAULT_TARGET, describe, load_planner

STDIN = "-"


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


@command.command()
@click.argument("config", metavar="CONFIG.json|-", type=click.Path(path_type=Path))
@click.option(
    "--server-args",
    metavar="TEXT",
    multiple=True,
    help="Arguments of the server, as on its command line: \"-tp 8 --speculative-config '{...}'\".",
)
@target_option(DEFAULT_TARGET, note=" A release's own code makes the groups; the model stands for the newest release.")
@click.option("--full-size", is_flag=True, help="Keep the real sizes.  [default: the ratios of them, scaled down]")
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    default=STDOUT,
    show_default=True,
    help=f"Where to write the layout ({STDOUT}: to stdout).",
)
def from_config(config: Path, server_args: tuple[str, ...], target: str, full_size: bool, json_file: str) -> int:
    """Print the layout that a public model's config.json (-: from stdin) and a server's arguments lead to."""
    screen = screen_for(json_file, False, config)
    raw = config_in(config, sys.stdin.buffer.read()) if str(config) == STDIN else read_config(config)
    args = parse_server_args(" ".join(server_args))
    info, planner = describe(target), load_planner(target)
    try:
        found = derive(raw, args, release_of(info.version), full_size, planner)
    except InputError as error:
        raise InputError(f"{config}: {error}") from error
    explain(screen, found, target)
    write_report(json_file, msgspec.to_builtins(versioned(found.layout)))
    return PASSED


def release_of(version: str) -> tuple[int, int]:
    """Major and minor number; those of the newest release known where there is none."""
    numbers = version.split(".")[:2]
    if len(numbers) < 2 or not all(number.isdigit() for number in numbers):
        return NEWEST
    return int(numbers[0]), int(numbers[1])


def explain(screen: Screen, found: Derived, target: str) -> None:
    """How the layout came about."""
    screen.line(f"target   {target}")
    real = found.real
    for index, (group, layers) in enumerate(zip(real.groups, found.layers, strict=True)):
        screen.line(f"group    {group_text(group, index in real.eagle_groups)}: {layers} layers")
    screen.line(f"sizes    hash block {real.hash_block}, scheduler block {real.scheduler_block}")
    for line in layout_lines(found.layout):
        screen.line(f"layout   {line}")
    for note in found.notes:
        screen.line(f"note     {note}", "yellow")
