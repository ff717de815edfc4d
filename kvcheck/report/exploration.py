"""Exhaustive searches in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import kvcheck
from kvcheck.explorer.explore import Result, Shown
from kvcheck.explorer.scope import Scope, ServerScope, facts
from kvcheck.files import versioned
from kvcheck.report.account import Account, how_to_reproduce, show_account
from kvcheck.report.campaign_json import violation_entry
from kvcheck.report.console import STYLES, Screen
from kvcheck.report.describe import layout_lines


class Reported(NamedTuple):
    """A scope, what came of it, and the files of the runs that show what was found, by signature."""

    scope: Scope
    result: Result
    files: dict[str, Path]


def show_exploration(screen: Screen, one: Reported, spec: str) -> None:
    """One scope: its bounds, how far the search got, and what it found."""
    result = one.result
    screen.line(f"{result.scope}: {_outcome(result)} ({result.seconds:.1f} s)", STYLES[result.verdict])
    for name, text in _facts(one):
        screen.line(f"  {name + ':' if name else '':<15} {text}")
    for number, shown in enumerate(result.shown, 1):
        _show(screen, shown, one.files.get(shown.violation.signature), spec, number)
    screen.line()


def _outcome(result: Result) -> str:
    if result.undetermined:
        return "undetermined"
    if result.shown:
        return "violated" if result.verdict == "violated" else "undetermined"
    return "complete" if result.complete else "cut"


def _facts(one: Reported) -> Iterator[tuple[str, str]]:
    scope, result = one.scope, one.result
    yield "what", scope.what
    if isinstance(scope, ServerScope):
        for index, line in enumerate(layout_lines(scope.layout)):
            yield "" if index else "layout", line
    yield from facts(scope).items()
    if result.undetermined:
        yield "undetermined", result.undetermined
    if not result.states:
        return
    speed = result.states / result.seconds if result.seconds else 0.0
    yield (
        "seen",
        f"{result.states} states, {result.transitions} transitions, depth {result.depth}; {speed:.0f} states/s",
    )
    if result.left:
        yield "left", f"{result.left} of these states were not looked into when it was stopped"
    memory = f"{result.bytes_a_state} bytes a state" if result.bytes_a_state else "too little to measure"
    yield "memory", f"{memory}; two states with the same fingerprint: {result.collision:.0e}"
    if not result.taken:
        return
    yield (
        "taken",
        ", ".join(
            f"{kind} {taken} ({result.enabled.get(kind, 0)} states, {result.new.get(kind, 0)} new)"
            for kind, taken in result.taken.items()
        ),
    )
    if result.unreached:
        yield "not reached", ", ".join(result.unreached)


def _show(screen: Screen, shown: Shown, file: Path | None, spec: str, number: int) -> None:
    if shown.run is not None and file is not None:
        command = how_to_reproduce(file, spec)
        show_account(
            screen, Account(violation=shown.violation, run=shown.run, reproduce=command, trace=shown.trace), number
        )
        return
    screen.line(f"[{number}] {shown.violation.signature}: {shown.violation.message}", "bold red")
    for place, move in enumerate(shown.moves):
        screen.line(f"    {place:>3}  {move}")
    if not shown.replays:
        screen.line(f"  {shown.doubt}", "yellow")


def verdict(results: Sequence[Result]) -> str:
    """Violated: something is broken. Passed: all was seen of every scope."""
    verdicts = {result.verdict for result in results}
    return next(
        (one for one in ("violated", "undetermined") if one in verdicts), "passed" if verdicts else "undetermined"
    )


def show_exploration_verdict(
    screen: Screen, result: str, reported: Sequence[Reported], not_covered: Sequence[str], seconds: float
) -> None:
    """The last lines. ``not_covered``: faults that are on, of which nothing shows."""
    if not_covered:
        screen.line(f"undetermined: none of these scopes shows {', '.join(not_covered)}", "yellow")
    complete = sum(one.result.complete for one in reported)
    states = sum(one.result.states for one in reported)
    screen.verdict(result, f": {complete} of {len(reported)} scopes complete, {states} states, {seconds:.0f} s")


def exploration_report(
    result: str, target: str, reported: Sequence[Reported], not_covered: Sequence[str], interrupted: bool
) -> dict[str, Any]:
    """The JSON report."""
    return {
        "version": 1,
        "kvcheck": kvcheck.__version__,
        "verdict": result,
        "target": target,
        "interrupted": interrupted,
        "scopes": [_entry(one, target) for one in reported],
        "not_covered": list(not_covered),
    }


def _entry(one: Reported, spec: str) -> dict[str, Any]:
    result = one.result
    return {
        "scope": result.scope,
        "what": one.scope.what,
        "verdict": result.verdict,
        "undetermined": result.undetermined,
        "complete": result.complete,
        "left": result.left,
        "states": result.states,
        "transitions": result.transitions,
        "depth": result.depth,
        "seconds": round(result.seconds, 3),
        "bytes_a_state": result.bytes_a_state,
        "collision": result.collision,
        "violations": [_violation(shown, one.files, spec) for shown in result.shown],
        "actions_by_kind": result.taken,
        "enabled_by_kind": result.enabled,
        "new_states_by_kind": result.new,
        "witnesses": result.witnesses,
        "unreached": list(result.unreached),
    }


def _violation(shown: Shown, files: dict[str, Path], spec: str) -> dict[str, Any]:
    violation, file = shown.violation, files.get(shown.violation.signature)
    told = {"moves": list(shown.moves), "replays": shown.replays}
    if shown.run is not None and file is not None:
        return {**violation_entry(violation, shown.run, file, spec), **told, "whole_run": versioned(shown.run)}
    return {
        "signature": violation.signature,
        "invariant": violation.invariant,
        "severity": violation.severity,
        "message": violation.message,
        **told,
    }
