"""`kvcheck reproduce`: a crash that somebody reported."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from kvcheck.cli.commands.fuzz import keep_account, work
from kvcheck.cli.options import (
    STDOUT,
    color_option,
    finish,
    folder_for,
    jobs_option,
    json_option,
    layout_of,
    out_option,
    screen_for,
    seconds_option,
    seed_option,
    target_option,
)
from kvcheck.engines.campaign import Plan
from kvcheck.engines.crash import crash_in, told_on
from kvcheck.engines.topics import mentioned, missing
from kvcheck.files import InputError
from kvcheck.model.layout import Layout
from kvcheck.report.describe import layout_lines
from kvcheck.report.info import info_text
from kvcheck.report.reproduction import Reproduction, reproduction_report, show_reproduction
from kvcheck.targets.loading import describe, is_driven
from kvcheck.targets.vllm.release import KNOWN_RELEASES

NEWEST = f"vllm=={KNOWN_RELEASES[-1]}"
DEFAULT_SECONDS = 120.0
SEARCHER = "kvcheck.engines.directed:search"


@click.command()
@click.option("--layout", metavar="NAME|FILE|random", required=True, help="Layout of the server that crashed.")
@click.option(
    "--crash",
    metavar="TEXT",
    required=True,
    help='What was reported: a traceback, "AssertionError ... in function", or a signature of kvcheck '
    f"({STDOUT}: read it from stdin). What else it mentions directs the search.",
)
@target_option(NEWEST)
@seconds_option("Search for so long at most; shrinking may add half of it.", DEFAULT_SECONDS)
@seed_option
@jobs_option
@out_option
@json_option
@color_option
def command(
    layout: str,
    crash: str,
    target: str,
    seconds: float,
    seed: int,
    jobs: int,
    out: str | None,
    json_file: str | None,
    no_color: bool,
) -> int:
    """Search for a crash that somebody reported, on the layout of the report, and shrink it to the shortest run.

    Violated: it was shown. Undetermined: it did not come up, and what was tried is told. Other violations on the way
    are told, and are not what was asked for.
    """
    screen = screen_for(json_file, no_color, Path(layout))
    text = sys.stdin.read() if crash == STDOUT else crash
    wanted = crash_in(text)
    if wanted is None:
        raise InputError(_no_crash(text))
    info = describe(target)
    if wanted.function and not is_driven(target, wanted.function):
        raise InputError(
            f"{target} has no function {wanted.function} in its bookkeeping, and what fails elsewhere cannot be shown: "
            "name the exception alone to search for it wherever it is raised, or the release of the report (--target)"
        )
    chosen = layout_of(layout, info.version)
    topics = mentioned(text)
    plan = Plan(
        spec=target,
        seed=seed,
        out=folder_for(out, target, seed, "reproduce", wanted.text, layout),
        info=info,
        layout=chosen,
        seconds=seconds,
        jobs=jobs,
        searcher=SEARCHER,
        wanted=wanted,
        topics=topics,
    )
    remarks = tuple(_remarks(chosen, topics))
    screen.line(f"target   {target}: {info_text(info)}")
    screen.line(f"layout   {layout}{': ' + layout_lines(chosen)[0] if chosen else ''}")
    screen.line(f"crash    {wanted.text}")
    screen.line(f"more of  {', '.join(topics) or 'nothing: the report mentions none of the topics'}")
    screen.line(f"seed     {seed}, at most {seconds:g} s, {plan.jobs} workers")
    for remark in remarks:
        screen.line(remark, "yellow")
    reproduction = Reproduction(crash=wanted, result=work(screen, plan), remarks=remarks)
    status = finish(json_file, reproduction_report(reproduction), reproduction.verdict)
    for bucket in reproduction.found:
        keep_account(bucket, target)
    show_reproduction(screen, reproduction)
    return status


def _no_crash(text: str) -> str:
    """What a report lacks."""
    if found := told_on(text):
        return (
            f"--crash has only {found}, by which other processes tell that the engine is dead: give the traceback of "
            "the engine, which stands before it in the log (EngineCore)"
        )
    return '--crash names neither an exception (as in a traceback) nor a function ("in NAME", "NAME()") nor a signature'


def _remarks(layout: Layout | None, topics: Sequence[str]) -> Iterator[str]:
    """What stands in the way of a reproduction."""
    if layout is not None and (absent := missing(layout, topics)):
        yield f"mentioned, and nothing of it in the layout: {', '.join(absent)}"
