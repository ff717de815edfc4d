"""`kvcheck bisect`: which release or commit first shows a violation, and which first no longer does."""

from __future__ import annotations

import re
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import msgspec

from kvcheck.cli.options import color_option, finish, json_option, screen_for, signature_option
from kvcheck.engines.bisect import Judge, Seen, Series, every, halving, judged, seen_of
from kvcheck.engines.watched import Watched
from kvcheck.files import one_line, read_run, stated_signature
from kvcheck.model.actions import Run
from kvcheck.report.console import Screen
from kvcheck.targets.checkout import commits_between, full_name, is_ancestor, subject, top_of, unpack
from kvcheck.targets.errors import FORMS, TargetError
from kvcheck.targets.vllm.release import KNOWN_RELEASES

MEANS = {"passed": "does not show it", "violated": "shows it", "undetermined": "cannot be judged"}
MOST_NAMED = 8
LONG = 30
"""Actions of a run that is long: on other targets it may part before it comes to its violation."""
RELEASES = ",".join(f"vllm=={version}" for version in KNOWN_RELEASES)


@click.command()
@click.argument("path", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--targets", metavar="T,T,...", help=f"The oldest first: {FORMS}.  [default: all tested releases]")
@click.option("--repo", metavar="DIR", type=click.Path(path_type=Path), help="A git checkout of vLLM.")
@click.option("--good", metavar="COMMIT", help="With --repo: a commit that does not show it.")
@click.option("--bad", metavar="COMMIT", help="With --repo: one that does. The older of the two is where it begins.")
@signature_option("Which violation", "any")
@json_option
@color_option
def command(
    path: Path,
    targets: str | None,
    repo: Path | None,
    good: str | None,
    bad: str | None,
    signature: str | None,
    json_file: str | None,
    no_color: bool,
) -> int:
    """Judge a run on a series of releases or commits: where does its violation begin, and where does it end?

    Exit status: that of the newest; undetermined if the place of a change cannot be told.
    """
    if repo is not None and (targets or not (good and bad)):
        raise click.UsageError("--repo needs --good and --bad, and no --targets")
    if repo is None and (good or bad):
        raise click.UsageError("--good and --bad are commits of a --repo")
    names = [name.strip() for name in (RELEASES if targets is None else targets).split(",") if name.strip()]
    _require_oldest_first(names)
    screen = screen_for(json_file, no_color, path)
    run = read_run(path)
    signature = signature or stated_signature(path)
    screen.line(f"run        {path}: {len(run.actions)} actions")
    screen.line(f"violation  {signature or 'any'}")
    if len(run.actions) > LONG:
        screen.line("a long run may show elsewhere less than a short one: kvcheck shrink it first", "yellow")
    if repo is None:
        series = judged(names, _told(screen, lambda target: _judged(target, target, run, signature), {}), every)
        wrong: list[str] = []
        shown: dict[str, str] = {}
    else:
        top = top_of(repo)
        series, wrong = _of_commits(screen, top, str(good), str(bad), run, signature)
        shown = {one.target: f"{one.target} ({subject(top, one.target)})" for one in series.changes}
    verdict = "undetermined" if wrong else series.verdict
    _show(screen, series, verdict, wrong, shown)
    return finish(json_file, report(series, verdict, wrong), verdict)


def _require_oldest_first(names: list[str]) -> None:
    """Whether a series can be told as history, as far as the names of its releases say.

    Raises:
        UsageError: it cannot.
    """
    if not names:
        raise click.UsageError("--targets names none")
    releases = [name for name in names if name.startswith("vllm==")]
    for older, newer in pairwise(releases):
        if _numbers(older) > _numbers(newer):
            raise click.UsageError(f"--targets: the oldest first, and {older} stands before {newer}")


def _numbers(release: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", release)[:3]]


def _of_commits(
    screen: Screen, repo: Path, good: str, bad: str, run: Run, signature: str | None
) -> tuple[Series, list[str]]:
    """What is known of the commits between two, and what was said of these two and is wrong."""
    older, newer = (good, bad) if is_ancestor(repo, good, bad) else (bad, good)
    commits = [full_name(repo, older), *commits_between(repo, older, newer)]
    halved = "halved: a violation that goes away and comes back between two that were judged is not seen"
    screen.line(f"commits    {len(commits)} along first parents, from {older} to {newer}; {halved}")
    given = {full_name(repo, name): name for name in (good, bad)}
    ends = {commit: f"{commit} ({name})" for commit, name in given.items() if not commit.startswith(name)}
    series = judged(commits, _told(screen, lambda commit: _judged_commit(repo, commit, run, signature), ends), halving)
    verdicts = {one.target: one.verdict for one in series.seen}
    said = (("--good", good, "passed"), ("--bad", bad, "violated"))
    found = [(f"{option} {name}", verdicts.get(full_name(repo, name)), wanted) for option, name, wanted in said]
    return series, [f"{name} {MEANS[seen]}" for name, seen, wanted in found if seen not in (None, wanted)]


def _told(screen: Screen, judge: Judge, names: dict[str, str]) -> Judge:
    """Each verdict is told as soon as it is known. ``names``: of targets that have a better one."""

    def told(target: str) -> Seen:
        seen = judge(target)
        name = names.get(target, target)
        screen.verdict(seen.verdict, f"  {name}" + (f": {seen.message}" if seen.message else ""))
        return seen

    return told


def _judged(name: str, spec: str, run: Run, signature: str | None) -> Seen:
    """What a target does; one that cannot be had says nothing."""
    watched = Watched(spec)
    try:
        return seen_of(name, watched.judge(run), signature)
    except TargetError as error:
        return Seen(name, "undetermined", one_line(error))
    finally:
        watched.close()


def _judged_commit(repo: Path, commit: str, run: Run, signature: str | None) -> Seen:
    with tempfile.TemporaryDirectory(prefix="kvcheck-") as folder:
        try:
            unpack(repo, commit, Path(folder))
        except TargetError as error:
            return Seen(commit, "undetermined", one_line(error))
        seen = _judged(commit, f"path:{folder}", run, signature)
        told = seen.message.removeprefix(f"path:{folder}: ").replace(folder, "the commit")
        return msgspec.structs.replace(seen, message=told)


def _show(screen: Screen, series: Series, verdict: str, wrong: list[str], shown: dict[str, str]) -> None:
    """``shown``: how a target at which the verdict changes is called."""
    screen.line()
    earlier = ", or an earlier one: it is the oldest of those tried" if series.first_bad == series.targets[0] else ""
    for what, target, more in (("first bad ", series.first_bad, earlier), ("first good", series.first_good, "")):
        screen.line(f"{what}  {shown.get(target, target) + more if target else '-'}")
    for one in series.changes[1 : -1 if series.first_good else None]:
        told = "not shown from here" if one.verdict == "passed" else "and again from here"
        screen.line(f"in between  {told}: {shown.get(one.target, one.target)}", "yellow")
    if series.between:
        either = "or one of these, of which" if series.changes else "of these"
        screen.line(f"{either} nothing can be said: {_named(series.between)}", "yellow")
    for text in wrong:
        screen.line(text, "yellow")
    screen.line("this holds for this run: another one may show the same violation elsewhere")
    screen.verdict(verdict, f": {_meaning(series, verdict)}")


def _named(targets: tuple[str, ...]) -> str:
    few = len(targets) <= MOST_NAMED
    return ", ".join(targets) if few else f"{len(targets)} from {targets[0]} to {targets[-1]}"


def _meaning(series: Series, verdict: str) -> str:
    if verdict == "undetermined":
        return "interrupted" if series.interrupted else "not all of it can be told"
    newest = series.seen[-1].target
    return f"{newest} {MEANS[verdict]}" + ("" if series.first_bad else ", nor does any other")


def report(series: Series, verdict: str, wrong: list[str]) -> dict[str, Any]:
    """The JSON report."""
    return {
        "version": 1,
        "verdict": verdict,
        "interrupted": series.interrupted,
        "results": [{"target": one.target, "verdict": one.verdict, "message": one.message} for one in series.seen],
        "first_bad": series.first_bad,
        "first_good": series.first_good,
        "changes": [{"target": one.target, "verdict": one.verdict} for one in series.changes],
        "between": list(series.between),
        "wrong": wrong,
    }
