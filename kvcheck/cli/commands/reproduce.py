"""`kvcheck reproduce`: a crash that somebody reported."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import click

from kvcheck.cli.commands.fuzz import keep_account, work
from kvcheck.cli.options import (
    STDOUT,
    color_option,
    cores,
    finish,
    json_option,
    layout_of,
    out_folder,
    positive_seconds,
    screen_for,
    target_option,
)
from kvcheck.engines.campaign import Plan
from kvcheck.engines.crash import Crash, crash_in
from kvcheck.engines.findings import campaign_folder
from kvcheck.engines.seeds import fresh_seed
from kvcheck.engines.topics import mentioned, missing
from kvcheck.files import InputError, require_writable
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
@click.option(
    "--seconds",
    type=float,
    default=DEFAULT_SECONDS,
    show_default=True,
    callback=positive_seconds,
    help="Search for so long at most; shrinking may add half of it.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the search.  [default: a random one, printed]")
@click.option("--jobs", type=click.IntRange(1, 1024), help="Worker processes.  [default: as many as there are cores]")
@click.option("--out", metavar="DIR", help="Folder for what is found.  [default: $KVCHECK_OUT or kvcheck-out]")
@json_option
@color_option
def command(
    layout: str,
    crash: str,
    target: str,
    seconds: float,
    seed: int | None,
    jobs: int | None,
    out: str | None,
    json_file: str | None,
    no_color: bool,
) -> int:
    """Search for a crash that somebody reported, on the layout of the report, and shrink it to the shortest run.

    Violated: it was shown. Undetermined: it did not come up, and what was tried is told. Other violations on the way
    are told, and are not what was asked for.
    """
    screen = screen_for(json_file, no_color)
    text = sys.stdin.read() if crash == STDOUT else crash
    wanted = crash_in(text)
    if wanted is None:
        raise InputError("--crash names neither an exception (as in a traceback) nor a function nor a signature")
    info = describe(target)
    chosen = layout_of(layout, info.version)
    topics = mentioned(text)
    seed = fresh_seed() if seed is None else seed
    folder = campaign_folder(out_folder(out), target, seed, "reproduce", layout)
    require_writable(folder / "run.json")
    plan = Plan(
        spec=target,
        seed=seed,
        out=folder,
        info=info,
        layout=chosen,
        seconds=seconds,
        jobs=jobs or cores(),
        searcher=SEARCHER,
        wanted=wanted,
        topics=topics,
    )
    remarks = tuple(_remarks(target, chosen, wanted, topics))
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


def _remarks(target: str, layout: Layout | None, wanted: Crash, topics: Sequence[str]) -> Iterator[str]:
    """What stands in the way of a reproduction."""
    if wanted.function and not is_driven(target, wanted.function):
        yield f"{target} has no function {wanted.function} in its bookkeeping: what fails elsewhere cannot be shown"
    if layout is not None and (absent := missing(layout, topics)):
        yield f"mentioned, and nothing of it in the layout: {', '.join(absent)}"
