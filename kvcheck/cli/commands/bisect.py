"""`kvcheck bisect`: which release or commit first shows a violation, and which first no longer does."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from kvcheck.cli.options import color_option, finish, json_option, screen_for
from kvcheck.engines.bisect import Judge, Seen, Series, every, halving, judged, seen_of
from kvcheck.engines.watched import Watched
from kvcheck.files import one_line, read_run, stated_signature
from kvcheck.model.actions import Run
from kvcheck.report.console import Screen
from kvcheck.targets.checkout import commits_between, full_name, is_ancestor, subject, unpack
from kvcheck.targets.errors import FORMS, TargetError
from kvcheck.targets.vllm.release import KNOWN_RELEASES

RELEASES = ",".join(f"vllm=={version}" for version in KNOWN_RELEASES)


@click.command()
@click.argument("path", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--targets", metavar="T,T,...", help=f"The oldest first: {FORMS}.  [default: all tested releases]")
@click.option("--repo", metavar="DIR", type=click.Path(path_type=Path), help="A git checkout of vLLM.")
@click.option("--good", metavar="COMMIT", help="With --repo: a commit that does not show it.")
@click.option("--bad", metavar="COMMIT", help="With --repo: one that does. The older of the two is where it begins.")
@click.option("--signature", metavar="TEXT", help="Which violation.  [default: the counterexample's, else any]")
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
    if not names:
        raise click.UsageError("--targets names none")
    screen = screen_for(json_file, no_color, path)
    run = read_run(path)
    signature = signature or stated_signature(path)
    screen.line(f"run        {path}: {len(run.actions)} actions")
    screen.line(f"violation  {signature or 'any'}")
    if repo is None:
        series = judged(names, _told(screen, lambda target: _judged(target, target, run, signature)), every)
        wrong: list[str] = []
        subjects: dict[str, str] = {}
    else:
        series, wrong = _of_commits(screen, repo, str(good), str(bad), run, signature)
        changes = [commit for commit in (series.first_bad, series.first_good) if commit]
        subjects = {commit: f"{commit} ({subject(repo, commit)})" for commit in changes}
    verdict = "undetermined" if wrong else series.verdict
    _show(screen, series, verdict, wrong, subjects)
    return finish(json_file, report(series, verdict), verdict)


def _of_commits(
    screen: Screen, repo: Path, good: str, bad: str, run: Run, signature: str | None
) -> tuple[Series, list[str]]:
    """What is known of the commits between two, and what was said of these two and is wrong."""
    older, newer = (good, bad) if is_ancestor(repo, good, bad) else (bad, good)
    commits = [full_name(repo, older), *commits_between(repo, older, newer)]
    screen.line(f"commits    {len(commits)}, from {older} to {newer}")
    series = judged(commits, _told(screen, lambda commit: _judged_commit(repo, commit, run, signature)), halving)
    said = {full_name(repo, good): "passed", full_name(repo, bad): "violated"}
    wrong = [
        f"{one.target} is {one.verdict}, not {said[one.target]}"
        for one in series.seen
        if said.get(one.target, one.verdict) != one.verdict
    ]
    return series, wrong


def _told(screen: Screen, judge: Judge) -> Judge:
    """Each verdict is told as soon as it is known."""

    def told(target: str) -> Seen:
        seen = judge(target)
        screen.verdict(seen.verdict, f"  {seen.target}" + (f": {seen.message}" if seen.message else ""))
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
        return _judged(commit, f"path:{folder}", run, signature)


def _show(screen: Screen, series: Series, verdict: str, wrong: list[str], subjects: dict[str, str]) -> None:
    screen.line()
    for what, target in (("first bad ", series.first_bad), ("first good", series.first_good)):
        screen.line(f"{what}  {subjects.get(target, target) if target else '-'}")
    if series.between:
        screen.line(f"or one of these, of which nothing can be said: {', '.join(series.between)}", "yellow")
    for text in wrong:
        screen.line(text, "yellow")
    screen.verdict(verdict, f": {_meaning(series, verdict)}")


def _meaning(series: Series, verdict: str) -> str:
    if verdict == "undetermined":
        return "interrupted" if series.interrupted else "not all of it can be told"
    newest = series.seen[-1].target
    if verdict == "violated":
        return f"{newest} shows it"
    return f"{newest} does not show it" + ("" if series.first_bad else ", nor does any other")


def report(series: Series, verdict: str) -> dict[str, Any]:
    """The JSON report."""
    return {
        "version": 1,
        "verdict": verdict,
        "interrupted": series.interrupted,
        "results": [{"target": one.target, "verdict": one.verdict, "message": one.message} for one in series.seen],
        "first_bad": series.first_bad,
        "first_good": series.first_good,
        "between": list(series.between),
    }
