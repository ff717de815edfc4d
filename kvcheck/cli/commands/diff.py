"""`kvcheck diff`: the same runs on two targets."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from kvcheck.cli.interrupt import answer_interruptions
from kvcheck.cli.options import (
    RANDOM,
    color_option,
    final_status,
    folder_for,
    json_option,
    layout_of,
    out_option,
    screen_for,
    seconds_option,
    seed_option,
    write_report,
    written,
)
from kvcheck.engines.comparison import Comparison, Plan
from kvcheck.engines.measures import MEASURES, SECONDS, WORSE
from kvcheck.files import require_apart, require_writable, write_text
from kvcheck.report.comparison import comparison_report, markdown, show_comparison
from kvcheck.report.console import LINE_SECONDS, Screen
from kvcheck.report.describe import counted
from kvcheck.report.info import info_text
from kvcheck.targets.errors import FORMS
from kvcheck.targets.loading import describe

DEFAULT_SECONDS = 60.0


def _limits(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> dict[str, float]:
    """Percent by measure."""
    found = {}
    for text in values:
        name, _, percent = text.partition("=")
        try:
            found[name] = float(percent)
        except ValueError as error:
            raise click.BadParameter(f"{text!r} is not MEASURE=PERCENT") from error
        if name in {*MEASURES, SECONDS} - {*WORSE}:
            raise click.BadParameter(f"{name} is told, and never judged: limits are for {', '.join(WORSE)}")
        if name not in WORSE or not (math.isfinite(found[name]) and found[name] >= 0):
            raise click.BadParameter(f"{text!r} is not a percentage of 0 or more of one of {', '.join(WORSE)}")
    return found


@click.command()
@click.option("--base", metavar="T", required=True, help=f"What is changed: {FORMS}.")
@click.option("--head", metavar="T", required=True, help="What it is changed to.")
@click.option("--layout", metavar="NAME|FILE|random", default=RANDOM, show_default=True, help="Layout of the servers.")
@seconds_option("Compare for so long; shrinking may take as long again.  [default: 60, no limit with --runs]")
@click.option("--runs", type=click.IntRange(min=1), help="Stop after so many runs.")
@seed_option
@click.option(
    "--limit",
    "limits",
    metavar="MEASURE=PERCENT",
    multiple=True,
    callback=_limits,
    help="Violated too if this measure is worse by more than so many percent, such as hit_tokens=1; one of "
    f"{', '.join(WORSE)}; may be given again.",
)
@out_option
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write a comment for a pull request.")
@json_option
@color_option
def command(
    base: str,
    head: str,
    layout: str,
    seconds: float | None,
    runs: int | None,
    seed: int,
    limits: dict[str, float],
    out: str | None,
    markdown_file: str | None,
    json_file: str | None,
    no_color: bool,
) -> int:
    """Run the same on two targets: what only one of them breaks, and what the same work costs each.

    Violated: head breaks what base does not, in any of the runs. What costs more on head is told, with the shortest run
    found that shows it; it is a violation only beyond a --limit. A preset is laid out as head has it.
    """
    screen = screen_for(json_file, no_color, Path(layout))
    infos = describe(base), describe(head)
    if markdown_file is not None:
        require_writable(Path(markdown_file), Path(layout))
    require_apart(json_file, markdown_file)
    plan = Plan(
        base=base,
        head=head,
        seed=seed,
        out=folder_for(out, head, seed, "diff", base),
        infos=infos,
        layout=layout_of(layout, infos[1].version),
        seconds=DEFAULT_SECONDS if (seconds, runs) == (None, None) else seconds,
        runs=runs,
        limits=limits,
    )
    for name, spec, info in zip(("base", "head"), (base, head), infos, strict=True):
        screen.line(f"{name:<9}{spec}: {info_text(info)}")
    screen.line(f"layout   {layout}")
    screen.line(f"seed     {seed}")
    comparison = Comparison(plan)
    answer_interruptions(comparison, screen)
    result = comparison.run(_from_time_to_time(screen))
    whole = written(lambda: write_report(json_file, comparison_report(result)))
    if markdown_file is not None:
        whole &= written(lambda: write_text(Path(markdown_file), markdown(result)))
    show_comparison(screen, result)
    return final_status(result.verdict, whole)


def _from_time_to_time(screen: Screen) -> Callable[[Comparison], None]:
    last = time.monotonic()

    def watch(comparison: Comparison) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_SECONDS:
            last = time.monotonic()
            screen.line(f"{counted(comparison.runs, 'run')}, {comparison.paired} of them to the end on both")

    return watch
