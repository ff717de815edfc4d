"""`kvcheck hits`: how far will it hit, and which rule stops it there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from kvcheck.cli.options import color_option, finish, json_option, layout_of, screen_for, target_option, written
from kvcheck.engines.hit_map import BY_NAME, CASES, Case, Measured, Setup, question, room_of, tail_of
from kvcheck.engines.watched import Watched
from kvcheck.files import InputError, require_apart, require_writable
from kvcheck.layouts.changes import CHANGES, changed
from kvcheck.model.layout import Layout
from kvcheck.model.observation import TargetInfo
from kvcheck.report.console import Screen
from kvcheck.report.describe import layout_lines
from kvcheck.report.hits import (
    Maps,
    hits_report,
    problems,
    show_case,
    show_granularity,
    show_summaries,
    verdict_of,
)
from kvcheck.report.hits_plot import SUFFIX, plot, require_plots
from kvcheck.report.info import info_text
from kvcheck.report.verdict import show_undetermined
from kvcheck.targets.errors import FORMS
from kvcheck.targets.loading import DEFAULT_TARGET, describe

_CHANGES = ", ".join(f"{name} ({values})" for name, (values, _) in CHANGES.items())


@click.command()
@click.option("--layout", metavar="NAME|FILE", required=True, help="Layout of the server.")
@target_option(DEFAULT_TARGET)
@click.option("--compare", metavar="T", multiple=True, help=f"Another target to compare with: {FORMS}.")
@click.option(
    "--with", "changes", metavar="NAME=VALUE", multiple=True, help=f"Compare with the layout changed: {_CHANGES}."
)
@click.option("--case", "cases", type=click.Choice(list(BY_NAME)), multiple=True, help="Only this case.")
@click.option("--up-to", type=click.IntRange(min=1), metavar="TOKENS", help="How much prompts share, at most.")
@click.option("--tail", type=click.IntRange(min=1), metavar="TOKENS", help="Tokens behind what prompts share.")
@click.option("--plot", "plot_file", metavar="FILE", type=click.Path(path_type=Path), help=f"Draw it ({SUFFIX}).")
@json_option
@color_option
def command(
    layout: str,
    target: str,
    compare: tuple[str, ...],
    changes: tuple[str, ...],
    cases: tuple[str, ...],
    up_to: int | None,
    tail: int | None,
    plot_file: Path | None,
    json_file: str | None,
    no_color: bool,
) -> int:
    """Measure how long hits are, and tell what stands against longer ones.

    Asked are the same prompt again, the prompt continued, two and three prompts with a shared head, and a conversation
    turn by turn. The pool is so large that nothing is evicted. Passed: all was measured.
    """
    screen = screen_for(json_file, no_color, Path(layout))
    if plot_file is not None:
        require_plots(plot_file)
        require_writable(plot_file, Path(layout))
        require_apart(json_file, plot_file)
    if len({target, *compare}) <= len(compare):
        raise click.UsageError("--compare names a target twice, or the one that all are compared with")
    infos = {spec: describe(spec) for spec in (target, *compare)}
    setups = _setups(layout, target, infos, changes)
    asked = [case for case in CASES if case.name in (cases or BY_NAME)]
    for spec, info in infos.items():
        screen.line(f"target   {spec}: {info_text(info)}")
    for index, line in enumerate(layout_lines(setups[0].layout)):
        screen.line(f"         {line}" if index else f"layout   {layout}: {line}")
    tail = tail or tail_of(setups[0].layout)
    maps = _measured(setups, infos, asked, tail, up_to)
    room = min(room_of([setup.layout for setup in setups], case, tail) for case in asked)
    cut = f"prompts share no more than {room} tokens, as the longest request ends" if (up_to or 0) > room > 0 else ""
    _show(screen, setups, asked, maps, cut)
    whole = True
    if plot_file is not None:
        whole = written(lambda: plot(plot_file, asked, maps))
        if whole:
            screen.line(f"drawn in {plot_file}")
    return finish(json_file, hits_report(setups, infos, maps), verdict_of(maps), whole)


def _setups(layout: str, target: str, infos: dict[str, TargetInfo], changes: Sequence[str]) -> list[Setup]:
    """The layout on each target, as that resolves it, and each change of it on the first."""
    setups = [Setup(spec, spec, _layout(layout, info)) for spec, info in infos.items()]
    for change in dict.fromkeys(changes):
        try:
            setups.append(Setup(f"with {change}", target, changed(setups[0].layout, change)))
        except ValueError as error:
            raise InputError(f"--with {error}") from error
    return setups


def _layout(text: str, info: TargetInfo) -> Layout:
    found = layout_of(text, info.version)
    if found is None:
        raise InputError("hits are measured on one layout: name a preset or a file")
    return found


def _measured(
    setups: Sequence[Setup], infos: dict[str, TargetInfo], cases: Sequence[Case], tail: int, up_to: int | None
) -> Maps:
    """All cases on all setups, each target in a process of its own."""
    workers = {spec: Watched(spec, expected=info) for spec, info in infos.items()}
    try:
        return {case.name: _of_case(setups, workers, case, tail, up_to) for case in cases}
    finally:
        for worker in workers.values():
            worker.close()


def _of_case(
    setups: Sequence[Setup], workers: dict[str, Watched], case: Case, tail: int, up_to: int | None
) -> dict[str, Measured]:
    asked = question([setup.layout for setup in setups], case, tail, up_to)
    return {setup.name: workers[setup.spec].map_hits(setup.layout, asked) for setup in setups}


def _show(screen: Screen, setups: Sequence[Setup], cases: Sequence[Case], maps: Maps, cut: str) -> None:
    """``cut``: why lengths that were asked for could not be measured."""
    show_granularity(screen, setups, maps)
    for case in cases:
        show_case(screen, case, maps[case.name])
    show_summaries(screen, cases, setups, maps)
    show_undetermined(screen, problems(maps))
    verdict = verdict_of(maps)
    meaning = f"all was measured{f' that fits: {cut}' if cut else ''}"
    meaning = meaning if verdict == "passed" else "not all could be measured"
    points = sum(len(measured.points) for by_setup in maps.values() for measured in by_setup.values())
    screen.line()
    screen.verdict(verdict, f": {meaning} ({points} point{'s' * (points != 1)})")
