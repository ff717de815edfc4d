"""How far hits reach: in words, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import kvcheck
from kvcheck.engines.hit_map import Case, Measured, Point, Setup, reasons
from kvcheck.engines.tally import Undetermined
from kvcheck.engines.watched import code_and_message
from kvcheck.files import versioned
from kvcheck.model.observation import TargetInfo
from kvcheck.report.campaign_json import resolved, undetermined
from kvcheck.report.console import Screen
from kvcheck.report.hit_rows import Row, rows

WIDTH = 20
"""Columns of lengths, and of the longest bar."""
MOST_DIFFERENCES = 8
MOST_REASONS = 3

Maps = dict[str, dict[str, Measured]]
"""What was measured, by case and by name of the setup."""


def show_granularity(screen: Screen, setups: Sequence[Setup], maps: Maps) -> None:
    """What hits are multiples of, and why of that; and what a release's own retention is."""
    for setup in setups:
        known = _granularity(setup.name, maps)
        if known["granularity"] is not None:
            name = f"{setup.name}: " if setup is not setups[0] else ""
            screen.line(f"         {name}hits are multiples of {known['granularity']} tokens: {known['because']}")
            if setup.layout.retention == "release":
                screen.line(f"         {name}retention release is {known['retention']} on this target")


def show_case(screen: Screen, case: Case, measured: dict[str, Measured]) -> None:
    """The stairs of one case on the first setup, and where the others differ from it."""
    screen.line()
    screen.line(case.what, "bold")
    (_, base), *others = measured.items()
    if base.undetermined:
        screen.line(f"  {base.undetermined}", "yellow")
        return
    if not base.points:
        screen.line("  no prompts of this kind fit into the longest request")
        return
    told = rows(base.points, base.granularity, case.grows)
    width = max(WIDTH, *(len(_span_of(row)) for row in told))
    screen.line(f"  {'shared':>{width}} {'hit':>14} {'possible':>14}")
    for row in told:
        if row.points:
            screen.line(_row(row, width, base.points[-1].shared), "yellow" if row.lost else "")
        else:
            screen.line(f"  {_span_of(row):>{width}} {'not measured':>14}", "dim")
    for name, other in others:
        for text in _compared(name, base.points, other):
            screen.line(text, "cyan")


def _row(row: Row, width: int, most: int) -> str:
    hits, possible = _span([point.hit for point in row.points]), _span([point.most for point in row.points])
    bar = "#" * round(WIDTH * row.points[-1].hit / max(1, most))
    return f"  {_span_of(row):>{width}} {hits:>14} {possible:>14}  {bar:<{WIDTH}}  {_why(row.points)}"


def _span_of(row: Row) -> str:
    """Of which shared tokens a row is."""
    part = row.parts[0]
    span = _lengths(part.points) if part.points else _span([part.first, part.last])
    return f"{span}, every {row.every} to {row.parts[-1].last}" if row.every else span


def _why(points: Sequence[Point]) -> str:
    """All that stands against longer hits at one of these points."""
    found = reasons(points)
    more = len(found) - MOST_REASONS
    return "; or ".join(found[:MOST_REASONS]) + (f"; or for {more} reason{'s' * (more > 1)} more" if more > 0 else "")


def _lengths(points: Sequence[Point]) -> str:
    """Of which shared tokens these points are; if some between were not measured, how many were."""
    span = _span([point.shared for point in points])
    return span if every_length(points) else f"{len(points)} of {span}"


def _span(numbers: Sequence[int]) -> str:
    first, last = min(numbers), max(numbers)
    return str(first) if first == last else f"{first} to {last}"


def every_length(points: Sequence[Point]) -> bool:
    """Whether no length between the first and the last was left out."""
    return not points or len(points) == points[-1].shared - points[0].shared + 1


def _compared(name: str, base: Sequence[Point], other: Measured) -> Iterator[str]:
    """Where another setup hits something else."""
    if other.undetermined:
        yield f"  {name}: {other.undetermined}"
        return
    pairs = list(zip(base, other.points, strict=False))  # conversations may have fewer turns
    less, more = sum(b.hit < a.hit for a, b in pairs), sum(b.hit > a.hit for a, b in pairs)
    if not less + more:
        yield f"  {name}: the same at all {len(pairs)} measured lengths"
        return
    yield f"  {name}: shorter hits at {less} of {len(pairs)} measured lengths, longer ones at {more}"
    alike = [
        list(run) for _, run in groupby(pairs, lambda pair: (pair[1].hit > pair[0].hit) - (pair[1].hit < pair[0].hit))
    ]
    differing = [run for run in alike if run[0][0].hit != run[0][1].hit]
    for run in differing[:MOST_DIFFERENCES]:
        before, after = [pair[0] for pair in run], [pair[1] for pair in run]
        hits = f"{_span([point.hit for point in before])} becomes {_span([point.hit for point in after])}"
        yield f"  {_lengths(before):>{WIDTH}} shared: {hits}: {_why(after)}"
    if len(differing) > MOST_DIFFERENCES:
        yield f"  {'':>{WIDTH}} and {len(differing) - MOST_DIFFERENCES} stretches more, see --json"


def summary(case: Case, points: Sequence[Point]) -> str:
    """The one sentence that people ask for."""
    first = next((point for point in points if point.hit), None)
    if first is None:
        last = points[-1]
        return f"{case.what}: {_nothing(points)} up to {last.shared} shared tokens hits: {_why(points)}"
    below = [point for point in points if point.shared < first.shared]
    rest = points[len(below) :]
    text = f"{case.what}: " + (
        f"{_nothing(below)} below {first.shared} shared tokens hits: {_why(below)}" if below else "all hit"
    )
    lost = sum(point.hit < point.most for point in rest)
    return f"{text}; from there on {lost} of {len(rest)} measured lengths hit less than they could" if lost else text


def _nothing(points: Sequence[Point]) -> str:
    return "nothing" if every_length(points) else "nothing measured"


def show_summaries(screen: Screen, cases: Sequence[Case], setups: Sequence[Setup], maps: Maps) -> None:
    """The sentence of each case and setup."""
    screen.line()
    for setup in setups:
        if len(setups) > 1:
            screen.line(setup.name, "bold")
        for case in cases:
            if points := maps[case.name][setup.name].points:
                screen.line(("  " if len(setups) > 1 else "") + summary(case, points))


def problems(maps: Maps) -> list[Undetermined]:
    """What could not be measured."""
    every = [measured for by_setup in maps.values() for measured in by_setup.values()]
    times = Counter(code_and_message(measured.undetermined) for measured in every if measured.undetermined)
    empty = [case for case, by_setup in maps.items() if any(_nothing_fits(m) for m in by_setup.values())]
    if empty:
        times["nothing-fits", f"no prompts fit into the longest request: {', '.join(empty)}"] = len(empty)
    return [Undetermined(code=code, message=message, times=count) for (code, message), count in times.items()]


def _nothing_fits(measured: Measured) -> bool:
    return not measured.points and not measured.undetermined


def verdict_of(maps: Maps) -> str:
    """Passed: all was measured. How long hits are is no matter of passing."""
    return "undetermined" if problems(maps) else "passed"


def hits_report(setups: Sequence[Setup], infos: dict[str, TargetInfo], maps: Maps) -> dict[str, Any]:
    """The JSON report."""
    return {
        "version": 1,
        "kvcheck": kvcheck.__version__,
        "verdict": verdict_of(maps),
        "setups": [
            {
                "name": setup.name,
                "target": setup.spec,
                "target_resolved": resolved(infos[setup.spec]),
                "layout": versioned(setup.layout),
                **_granularity(setup.name, maps),
            }
            for setup in setups
        ],
        "cases": {
            case: {name: [_entry(point) for point in measured.points] for name, measured in by_setup.items()}
            for case, by_setup in maps.items()
        },
        "undetermined": undetermined(problems(maps)),
    }


def _granularity(name: str, maps: Maps) -> dict[str, Any]:
    known = next((m[name] for m in maps.values() if m[name].granularity), Measured())
    retention = "dense" if known.retention is None else known.retention
    return {
        "granularity": known.granularity or None,
        "because": known.because,
        "retention": retention if known.granularity else None,
    }


def _entry(point: Point) -> dict[str, Any]:
    return {
        "shared": point.shared,
        "prompt": point.prompt,
        "hit": point.hit,
        "possible": point.most,
        "why": point.why,
    }
