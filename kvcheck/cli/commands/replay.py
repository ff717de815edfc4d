"""`kvcheck replay`: one run again, or a recording judged again."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from kvcheck.cli.options import color_option, finish, json_option, screen_for, target_option, written
from kvcheck.engines.judging import RunResult, judge_trace
from kvcheck.engines.retracing import retraceable
from kvcheck.engines.tally import Undetermined
from kvcheck.engines.watched import Watched, code_and_message
from kvcheck.files import (
    InputError,
    OutputError,
    one_line,
    read_run_or_trace,
    require_apart,
    require_writable,
    run_file,
    stated_of,
    write_trace,
)
from kvcheck.model.actions import Arrive, Run
from kvcheck.model.observation import TargetInfo, Trace
from kvcheck.report.account import Account, replay_command, show_account
from kvcheck.report.campaign_json import Core, resolved, undetermined, violation_entry
from kvcheck.report.console import Screen
from kvcheck.report.info import info_text
from kvcheck.report.verdict import show_replay_verdict
from kvcheck.targets.errors import TargetError
from kvcheck.targets.loading import DEFAULT_TARGET, describe
from kvcheck.targets.recording import is_recording, read_recording

NOT_FETCHED = (
    "a release that cannot be fetched: name what it was (--target vllm==X.Y.Z), or its sources (--target path:DIR)"
)


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was judged: where it came from, on what, and what came of it."""

    file: Path
    run: Run
    spec: str
    info: TargetInfo
    result: RunResult
    seconds: float
    interrupted: bool = False

    @property
    def undetermined(self) -> str:
        """Why nothing can be said, as "code: message"; empty if something can."""
        result = self.result
        if result.violations or result.undetermined:
            return "" if result.violations else result.undetermined
        if result.actions <= result.skipped:
            return "nothing-happened: no action of this run had a subject"
        if result.trace is not None and not _anybody_arrived(result.trace):
            return "nothing-happened: the server would accept no request of this run"
        return ""

    @property
    def verdict(self) -> str:
        """What it says about the target."""
        if self.result.violations:
            return "violated"
        return "undetermined" if self.undetermined else "passed"


def _anybody_arrived(trace: Trace) -> bool:
    seen = zip(trace.run.actions, trace.observations, strict=False)
    return any(isinstance(action, Arrive) and not observation.skipped for action, observation in seen)


@click.command()
@click.argument("path", metavar="RUN|TRACE|RECORDING", type=click.Path(path_type=Path))
@target_option(None, note="  [default: what RUN was kept for or recorded on, else the model]")
@click.option("--record", metavar="FILE", type=click.Path(path_type=Path), help="Keep what was seen as a trace.")
@json_option
@color_option
def command(path: Path, target: str | None, record: Path | None, json_file: str | None, no_color: bool) -> int:
    """Judge one run (a counterexample's folder or a run file) on a target, a trace of one (what --record wrote) without
    one, or what a live server has recorded (see kvcheck record) on the release that it was."""
    screen = screen_for(json_file, no_color, path)
    if record is not None:
        require_writable(record, path)
        require_apart(json_file, record)
    if is_recording(path) and record is None:  # else it must be a run first
        return finished(screen, judged_live(path, target), json_file)
    found = read_run_or_trace(path)
    if isinstance(found, Trace) and target is None:
        if record is not None:
            raise InputError(f"{path}: is a trace already; --record needs a --target")
        replay = judged_again(path, found)
    else:
        run = found.run if isinstance(found, Trace) else found
        replay = judged_on_target(path, run, target or target_of(path))
    show(screen, replay)
    whole = record is None or written(lambda: _record(screen, record, replay.result.trace))
    return finish(json_file, replay_report(replay), replay.verdict, whole)


def _record(screen: Screen, file: Path, trace: Trace | None) -> None:
    """Write what was seen.

    Raises:
        OutputError: that cannot be done.
    """
    if trace is None:
        raise OutputError(f"cannot write {file}: the run gave no recording")
    write_trace(file, trace)
    screen.line(f"trace in {file}", "yellow")


def target_of(path: Path) -> str:
    """The first target that is said to show the run's violation, else what it was found or recorded on, else the
    default.

    Raises:
        InputError: it was recorded on something that cannot be fetched.
    """
    stated = stated_of(path)
    if stated.target == "":
        raise InputError(f"{path}: {NOT_FETCHED}")
    shown = (spec for spec, verdict in stated.expected.items() if verdict == "violated")
    return next(shown, stated.target or DEFAULT_TARGET)


def judged_again(path: Path, trace: Trace) -> Replay:
    """Judge a recording."""
    began = time.monotonic()
    try:
        result = judge_trace(trace)
    except (KeyError, IndexError, ValueError, TypeError, TargetError) as error:
        told = f"{type(error).__name__}: {one_line(error)}"
        raise InputError(f"{path}: the recording contradicts itself ({told})") from error
    result.trace = trace
    missing = len(trace.run.actions) - len(trace.observations)
    if missing and not result.violations and not result.undetermined:
        result.undetermined = f"cut-off: what the last {missing} actions showed is not in the recording"
    seconds = time.monotonic() - began
    return Replay(file=path, run=trace.run, spec=trace.target.spec, info=trace.target, result=result, seconds=seconds)


def judged_live(path: Path, target: str | None) -> Replay:
    """Judge what a live server has recorded, on the release that it was, in a watched process."""
    recording = read_recording(path)
    found = retraceable(recording)
    spec = target or release_of(recording.opened.vllm)
    if not spec:
        raise InputError(f"{path}: recorded from vLLM {recording.opened.vllm or 'of no known version'}, {NOT_FETCHED}")
    info = describe(spec)
    began = time.monotonic()
    watched = Watched(spec, expected=info)
    interrupted = False
    try:
        result = watched.retrace(path)
    except KeyboardInterrupt:
        result, interrupted = RunResult(undetermined="interrupted: the recording was not retraced to its end"), True
    finally:
        watched.close()
    seconds = time.monotonic() - began
    return Replay(
        file=path, run=found.run, spec=spec, info=info, result=result, seconds=seconds, interrupted=interrupted
    )


def release_of(version: str) -> str:
    """The release that was recorded; empty if it is none that can be fetched."""
    release = version.partition("+")[0]
    return f"vllm=={release}" if re.fullmatch(r"\d+\.\d+\.\d+(\.post\d+)?", release) else ""


def finished(screen: Screen, replay: Replay, json_file: str | None) -> int:
    """Show and report a replay; the exit status."""
    show(screen, replay)
    return finish(json_file, replay_report(replay), replay.verdict)


def judged_on_target(path: Path, run: Run, spec: str) -> Replay:
    """Judge a run on a target, in a watched process."""
    info = describe(spec)
    began = time.monotonic()
    watched = Watched(spec, expected=info)
    interrupted = False
    try:
        result = watched.judge(run, record=True)
    except KeyboardInterrupt:
        result, interrupted = RunResult(undetermined="interrupted: the run was not finished"), True
    finally:
        watched.close()
    return Replay(
        file=run_file(path),
        run=run,
        spec=spec,
        info=info,
        result=result,
        seconds=time.monotonic() - began,
        interrupted=interrupted,
    )


def show(screen: Screen, replay: Replay) -> None:
    """What came of it."""
    screen.line(f"target   {replay.spec}: {info_text(replay.info)}")
    screen.line(f"run      {replay.file}: {len(replay.run.actions)} actions")
    for number, violation in enumerate(replay.result.violations, 1):
        account = Account(
            violation=violation,
            run=replay.run,
            reproduce=replay_command(replay.file, replay.spec),
            trace=replay.result.trace,
        )
        show_account(screen, account, number)
    show_replay_verdict(
        screen, replay.verdict, code_and_message(replay.undetermined), replay.result, len(replay.run.actions)
    )


def replay_report(replay: Replay) -> dict[str, Any]:
    """The JSON report."""
    result = replay.result
    code, message = code_and_message(replay.undetermined)
    return Core(
        verdict=replay.verdict,
        target=replay.spec,
        target_resolved=resolved(replay.info),
        actions=result.actions,
        seconds=round(replay.seconds, 3),
        interrupted=replay.interrupted,
        violations=[violation_entry(v, replay.run, replay.file, replay.spec) for v in result.violations],
        undetermined=undetermined([Undetermined(code=code, message=message)] if replay.undetermined else []),
        witnesses={name: result.witnesses.get(name, 0) for name in sorted({*result.possible, *result.witnesses})},
        actions_by_kind=result.actions_by_kind,
    ).report(skipped=result.skipped)
