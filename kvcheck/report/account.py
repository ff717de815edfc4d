"""The readable account of a violation: what was broken, by which actions, and how to see it again."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvcheck.invariants.registry import MEANING, Severity, Violation, all_invariants
from kvcheck.model.actions import Run
from kvcheck.model.observation import Observation, Trace
from kvcheck.report.console import Screen
from kvcheck.report.describe import action_text, counted, layout_lines, outcome_text, table_lines

MOST_ACTIONS = 60


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A violation with all that is known of it."""

    violation: Violation
    run: Run
    reproduce: str
    trace: Trace | None = None
    needs: tuple[str, ...] = ()
    remark: str = ""


def replay_command(path: Path, spec: str) -> str:
    """The one command that shows a run's violation again."""
    return shlex.join(["kvcheck", "replay", str(path), "--target", spec])


def how_to_reproduce(path: Path, spec: str) -> str:
    """That command, if the run is there."""
    return replay_command(path, spec) if path.is_file() else "its run could not be written"


def account_text(account: Account) -> str:
    """The account as plain text."""
    text = io.StringIO()
    show_account(Screen(text, no_color=True), account)
    return text.getvalue().lstrip()


def show_account(screen: Screen, account: Account, number: int | None = None) -> None:
    """Print it. ``number``: which of several it is."""
    violation = account.violation
    screen.line()
    remark = f"  ({account.remark})" if account.remark else ""
    which = f"[{number}] " if number is not None else ""
    screen.line(f"{which}{violation.signature}{remark}", "bold red")
    for name, text in _facts(account):
        screen.line(f"  {name + ':' if name else '':<12}{text}")
    screen.line("  actions:")
    for text, broke in _action_lines(account):
        screen.line(text, "red" if broke else "")
    for title, lines in _tables(account):
        screen.line(f"  {title}:")
        for line in lines:
            screen.line(f"    {line}")
    screen.line(f"  {'reproduce:':<12}{account.reproduce}", "bold")


def _facts(account: Account) -> Iterator[tuple[str, str]]:
    violation = account.violation
    invariant = next((one for one in all_invariants() if one.id == violation.invariant), None)
    if invariant is not None:
        yield "claim", f"{invariant.claim} ({' '.join(invariant.rules)})"
    yield "severity", f"{violation.severity}: {MEANING[Severity(violation.severity)]}"
    yield "broken", f"at action {violation.index}: {violation.message}"
    first, *others = layout_lines(account.run.layout)
    yield "layout", first
    yield from (("", line) for line in others)
    if account.needs:
        yield "needs", ", ".join(account.needs)


def _action_lines(account: Account) -> Iterator[tuple[str, bool]]:
    actions = account.run.actions
    seen = account.trace.observations if account.trace else ()
    broken = account.violation.index
    skipped = max(0, min(broken + 1, len(actions)) - MOST_ACTIONS)
    if skipped:
        yield f"      ... {counted(skipped, 'action')} before", False
    for index, action in enumerate(actions):
        if skipped <= index <= broken + 1:
            outcome = outcome_text(seen[index]) if index < len(seen) else ""
            mark = ">" if index == broken else " "
            yield f"  {mark} {index:>3}  {action_text(action)}{'  -> ' + outcome if outcome else ''}", index == broken
    if len(actions) > broken + 2:
        yield f"      ... {counted(len(actions) - broken - 2, 'action')} after", False


def _tables(account: Account) -> Iterator[tuple[str, list[str]]]:
    seen: tuple[Observation, ...] = account.trace.observations if account.trace else ()
    index = account.violation.index
    if index >= len(seen):
        return
    if index > 0:
        yield f"block tables before action {index}", table_lines(seen[index - 1].view)
    yield f"block tables after action {index}", table_lines(seen[index].view)
