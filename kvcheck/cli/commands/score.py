"""`kvcheck score`: which of the model's faults the harness finds."""

from __future__ import annotations

from typing import Any

import click
import msgspec

import kvcheck
from kvcheck.cli.interrupt import answer_interruptions
from kvcheck.cli.options import color_option, finish, jobs_option, json_option, screen_for, seconds_option
from kvcheck.engines.score import Scored, Scoring, Summary, summaries
from kvcheck.files import InputError
from kvcheck.model.faults import FAULTS
from kvcheck.report.console import Screen


@click.command()
@click.option(
    "--fault", "faults", metavar="F", multiple=True, help="Only this fault; may be given again.  [default: all]"
)
@seconds_option("Search for each fault for so long at most.", 60.0)
@click.option(
    "--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="Search so many times, with other seeds."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The first seed.")
@jobs_option
@json_option
@color_option
def command(
    faults: tuple[str, ...],
    seconds: float,
    seeds: int,
    seed: int,
    jobs: int,
    json_file: str | None,
    no_color: bool,
) -> int:
    """Search for each fault of the model as if nobody knew it, and tell what finds it, how soon and how short.

    Passed: every fault was found by most searches for it. Undetermined: some were not.
    """
    screen = screen_for(json_file, no_color)
    if unknown := [fault for fault in faults if fault not in FAULTS]:
        raise InputError(f"no such fault: {', '.join(unknown)} (see kvcheck faults)")
    chosen = list(dict.fromkeys(faults)) or list(FAULTS)
    screen.line(f"faults   {len(chosen)}, {seeds} searches each of at most {seconds:g} s")
    scoring = Scoring(seconds, jobs, lambda one: _tell(screen, one))
    answer_interruptions(scoring, screen)
    scored = scoring.run(chosen, range(seed, seed + seeds))
    every = summaries(scored)
    lost = [one.fault for one in every if one.seconds is None]
    verdict = "undetermined" if lost or scoring.interrupted else "passed"
    screen.line("")
    if scoring.interrupted:
        screen.line(f"interrupted after {len(scored)} of {len(chosen) * seeds} searches")
    _conclude(screen, verdict, every, lost)
    return finish(json_file, _report(verdict, every, scored), verdict)


def _tell(screen: Screen, one: Scored) -> None:
    if one.found:
        found = f"{one.invariant} after {one.runs} runs, {one.seconds:.1f} s"
        screen.line(f"{one.fault}: {found}; {one.actions} actions of {one.unshrunk}")
    else:
        screen.line(f"{one.fault}: NOT FOUND in {one.runs} runs, {one.seconds:.1f} s {one.undetermined}".rstrip())


def _conclude(screen: Screen, verdict: str, every: list[Summary], lost: list[str]) -> None:
    slowest = max(every, key=lambda one: one.seconds or 0.0, default=None)
    if lost:
        told = f"not found by most searches: {', '.join(lost)}"
    elif slowest is None:
        told = "nothing was searched for"
    else:
        told = f"{len(every)} found, the slowest {slowest.fault}, median {slowest.seconds:.1f} s"
    screen.verdict(verdict, f": {told}")


def _report(verdict: str, every: list[Summary], scored: list[Scored]) -> dict[str, Any]:
    return {
        "version": 1,
        "kvcheck": kvcheck.__version__,
        "verdict": verdict,
        "faults": msgspec.to_builtins(every),
        "searches": msgspec.to_builtins(scored),
    }
