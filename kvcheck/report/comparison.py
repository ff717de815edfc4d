"""A comparison of two targets: on the screen, as JSON, and as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kvcheck
from kvcheck.engines.comparison import BASE, HEAD, Difference, Result, Worse
from kvcheck.engines.measures import MEASURES, SECONDS, WORSE
from kvcheck.files import versioned
from kvcheck.report.account import Account, account_text, how_to_reproduce, show_account
from kvcheck.report.campaign_json import resolved, undetermined, violation_entry
from kvcheck.report.console import Screen
from kvcheck.report.describe import action_text, counted, layout_lines
from kvcheck.report.markdown import code, folded, undetermined_list
from kvcheck.report.verdict import show_undetermined

LONGEST_TABLE_NAME = 20
LONGEST_COMMENT = 65_000
"""Characters; GitHub takes a few more."""


def show_comparison(screen: Screen, result: Result) -> None:
    """What came of it."""
    for kind, spec, differences in _kinds(result):
        for number, one in enumerate(differences, 1):
            show_account(screen, _account(one, f"{kind}: only on {spec}, in {counted(one.times, 'run')}", spec), number)
    for signature, (base, head) in result.both.items():
        screen.line()
        screen.line(f"{signature}: on both, in different runs: base {base}, head {head}")
    if result.alike:
        screen.line()
        alike = ", ".join(f"{signature} ({counted(times, 'run')})" for signature, times in result.alike.items())
        screen.line(f"broken by both alike: {alike}")
    screen.line()
    for line in _table(result):
        screen.line(line)
    for worse in result.worse:
        screen.line()
        for line in _worse_lines(worse):
            screen.line(line)
    show_undetermined(screen, result.undetermined)
    screen.line()
    screen.verdict(result.verdict, f": {meaning(result)}")


def _kinds(result: Result) -> Iterator[tuple[str, str, tuple[Difference, ...]]]:
    yield "new", result.plan.head, result.new
    yield "fixed", result.plan.base, result.fixed


def _account(one: Difference, remark: str, spec: str) -> Account:
    reproduce = how_to_reproduce(one.file, spec)
    return Account(violation=one.violation, run=one.run, reproduce=reproduce, trace=one.trace, remark=remark)


def _rows(result: Result) -> Iterator[tuple[str, str, str, str]]:
    for measure in MEASURES:
        base, head = result.base[measure], result.head[measure]
        yield measure, str(base), str(head), _change(base, head)
    base_seconds, head_seconds = result.scheduling_seconds
    yield SECONDS, f"{base_seconds:.2f}", f"{head_seconds:.2f}", _change(base_seconds, head_seconds)


def _change(base: float, head: float) -> str:
    return f"{100 * (head - base) / base:+.1f} %" if base else ("-" if head == base else "new")


def _bound(result: Result) -> str:
    """What became of all runs; the totals are of those that came to their end on both."""
    counts = {
        "came to their end on both": result.paired,
        "on base alone": result.unfinished[HEAD],
        "on head alone": result.unfinished[BASE],
        "on neither": result.neither,
        "have a layout that one has not": result.not_supported,
        "could not be drawn": result.not_drawn,
    }
    told = [f"{count} {what}" for what, count in counts.items() if count or what == "came to their end on both"]
    return f"{counted(result.runs, 'run')}: {', '.join(told)}"


def _table(result: Result) -> Iterator[str]:
    yield _bound(result)
    yield "what those cost that came to their end on both:"
    yield f"  {'':<{LONGEST_TABLE_NAME}}{'base':>12}{'head':>12}{'change':>10}"
    for name, base, head, change in _rows(result):
        yield f"  {name:<{LONGEST_TABLE_NAME}}{base:>12}{head:>12}{change:>10}"


def _worse_head(worse: Worse) -> str:
    return (
        f"{worse.measure}: worse in {counted(worse.times, 'run')}, better in {worse.better}; "
        f"{worse.base} becomes {worse.head} in the shortest run found"
    )


def _worse_lines(worse: Worse) -> Iterator[str]:
    """The shortest run, and where in it the measure differs."""
    assert worse.run is not None
    yield _worse_head(worse)
    for index, line in enumerate(layout_lines(worse.run.layout)):
        yield f"  {'' if index else 'layout:':<9}{line}"
    differs = {index: f"  -> {base} becomes {head}" for index, base, head in worse.at}
    for index, action in enumerate(worse.run.actions):
        yield f"  {'>' if index in differs else ' '} {index:>3}  {action_text(action)}{differs.get(index, '')}"
    yield f"  run:     {worse.file}"


def meaning(result: Result) -> str:
    """What the verdict means, with its bound."""
    words = []
    if result.new:
        words.append(f"head breaks {counted(len(result.new), 'thing')} that base does not")
    words += [f"{measure} worse by more than {result.plan.limits[measure]:g} %" for measure in result.exceeded]
    if not words:
        passed = result.verdict == "passed"
        words.append("head breaks nothing in these runs that base does not" if passed else "not all was looked at")
    lost = [worse.measure for worse in result.worse if worse.measure not in result.exceeded]
    if lost:
        words.append(f"worse in some runs: {', '.join(lost)}")
    bound = f"{counted(result.runs, 'run')}, seed {result.plan.seed}, {result.seconds:.0f} s"
    return f"{'; '.join(words)} ({bound}{', interrupted' if result.interrupted else ''})"


def comparison_report(result: Result) -> dict[str, Any]:
    """The JSON report."""
    plan = result.plan
    measures: dict[str, Any] = {
        name: {"base": result.base[name], "head": result.head[name], "direction": WORSE.get(name, 0)}
        for name in MEASURES
    }
    base_seconds, head_seconds = (round(seconds, 3) for seconds in result.scheduling_seconds)
    measures[SECONDS] = {"base": base_seconds, "head": head_seconds, "direction": 1}
    return {
        "version": 1,
        "kvcheck": kvcheck.__version__,
        "verdict": result.verdict,
        "base": plan.base,
        "head": plan.head,
        "base_resolved": resolved(plan.infos[BASE]),
        "head_resolved": resolved(plan.infos[HEAD]),
        "seed": plan.seed,
        "layout": None if plan.layout is None else versioned(plan.layout),
        "runs": result.runs,
        "paired": result.paired,
        "unfinished": dict(zip(("base", "head"), result.unfinished, strict=True)),
        "neither": result.neither,
        "not_supported": result.not_supported,
        "not_drawn": result.not_drawn,
        "seconds": round(result.seconds, 3),
        "interrupted": result.interrupted,
        "new": [_entry(one, plan.head) for one in result.new],
        "fixed": [_entry(one, plan.base) for one in result.fixed],
        "both": [{"signature": name, "base": base, "head": head} for name, (base, head) in result.both.items()],
        "alike": [{"signature": name, "runs": runs} for name, runs in result.alike.items()],
        "measures": measures,
        "worse": [_worse_entry(worse) for worse in result.worse],
        "exceeded": list(result.exceeded),
        "undetermined": undetermined(result.undetermined),
    }


def _entry(one: Difference, spec: str) -> dict[str, Any]:
    return violation_entry(one.violation, one.run, one.file, spec, times=one.times)


def _worse_entry(worse: Worse) -> dict[str, Any]:
    assert worse.run is not None
    return {
        "measure": worse.measure,
        "runs_worse": worse.times,
        "runs_better": worse.better,
        "base": worse.base,
        "head": worse.head,
        "at": [{"action": index, "base": base, "head": head} for index, base, head in worse.at],
        "layout": versioned(worse.run.layout),
        "run": str(worse.file),
        "actions": len(worse.run.actions),
    }


def markdown(result: Result) -> str:
    """A comment for a pull request, without the runs' actions if it were too long for one."""
    whole = "".join(f"{line}\n" for line in _markdown_lines(result, short=False))
    if len(whole) <= LONGEST_COMMENT:
        return whole
    return "".join(f"{line}\n" for line in _markdown_lines(result, short=True))


def _markdown_lines(result: Result, short: bool) -> Iterator[str]:
    """``short``: of each run only the last line, which says where it is."""
    plan = result.plan
    yield f"### kvcheck: {result.verdict}"
    yield ""
    yield f"{code(plan.head)} against {code(plan.base)}: {meaning(result)}."
    for kind, spec, differences in _kinds(result):
        if differences:
            yield from ("", f"**{kind}** (only on {code(spec)})")
        for one in differences:
            lines = account_text(_account(one, counted(one.times, "run"), spec)).splitlines()
            yield from folded(_title(one), lines[-1:] if short else lines)
    yield from ("", f"{_bound(result)}.", "", "| to the end on both | base | head | change |", "|---|---:|---:|---:|")
    yield from (f"| {' | '.join(row)} |" for row in _rows(result))
    for worse in result.worse:
        title, *lines = _worse_lines(worse)
        yield from folded(title, lines[-1:] if short else lines)
    yield from undetermined_list(result.undetermined)


def _title(one: Difference) -> str:
    violation = one.violation
    return f"{violation.signature} ({violation.severity}, {counted(one.times, 'run')}): {violation.message}"
