"""Runs as tests for somebody else's test-suite: each fails on the target, and passes where the violation is gone."""

from __future__ import annotations

from pathlib import Path

from kvcheck.cli.commands.replay import judged_on_target, target_of
from kvcheck.cli.exported import Exported
from kvcheck.cli.status import UNDETERMINED
from kvcheck.engines.watched import code_and_message
from kvcheck.export.found import Found
from kvcheck.export.pytest_test import pytest_test
from kvcheck.export.trial import tried
from kvcheck.export.vllm_test import vllm_test
from kvcheck.files import InputError, extra, name_of, read_run_or_trace, stated_signature
from kvcheck.model.observation import Trace
from kvcheck.report.console import Screen
from kvcheck.report.info import info_text
from kvcheck.targets.reference.target import is_model


def own_test(path: Path, target: str | None, signature: str | None, screen: Screen) -> Exported:
    """A test that uses kvcheck."""
    found = _shown(path, target, signature, screen)
    return Exported(pytest_test(found, name_of(path)), found.violation.signature)


def server_test(path: Path, target: str | None, signature: str | None, screen: Screen) -> Exported:
    """A test in the style of the server's own. It is tried where it should fail."""
    found = _shown(path, target, signature, screen)
    if is_model(found.trace.target.spec):
        raise InputError(f"{path}: the server's own tests run on a release: name one with --target")
    text = vllm_test(found, name_of(path))
    lost = _trial(text, found, screen)
    return Exported(None, lost, UNDETERMINED) if lost else Exported(text, found.violation.signature)


def _shown(path: Path, target: str | None, signature: str | None, screen: Screen) -> Found:
    found = _found_in(path, target, signature)
    screen.line(f"target     {found.trace.target.spec}: {info_text(found.trace.target)}")
    screen.line(f"violation  {found.violation.signature}")
    return found


def _found_in(path: Path, target: str | None, signature: str | None) -> Found:
    """The violation to export, at its moment.

    Raises:
        InputError: the run does not show it on the target.
    """
    content = read_run_or_trace(path)
    run = content.run if isinstance(content, Trace) else content
    spec = target or (content.target.spec if isinstance(content, Trace) else target_of(path))
    replay = judged_on_target(path, run, spec)
    if replay.interrupted:
        raise KeyboardInterrupt
    wanted = signature or stated_signature(path)
    violations = [one for one in replay.result.violations if wanted is None or one.is_called(wanted)]
    if replay.result.violations and not violations:
        others = ", ".join(one.signature for one in replay.result.violations)
        raise InputError(f"{path}: {spec} does not show {wanted!r}, but {others}")
    if not violations or replay.result.trace is None:
        why = code_and_message(replay.undetermined)[1] if replay.undetermined else "the run shows no violation"
        raise InputError(f"{path}: nothing to export from {spec}: {why}")
    return Found(replay.result.trace, violations[0])


def _trial(text: str, found: Found, screen: Screen) -> str:
    """Try a test of the server's own where it should fail; why it is worth nothing, if so."""
    try:
        lost = tried(text, found)
    except LookupError as error:
        screen.line(f"not tried  {error}: it comes with {extra('test')}", "yellow")
        return ""
    if not lost:
        screen.line(f"tried      it fails on {found.trace.target.spec}, as it should")
    return lost
