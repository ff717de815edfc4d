"""`kvcheck record`: how a running server is recorded, and what a recording holds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click

from kvcheck.cli.commands.replay import release_of
from kvcheck.cli.options import color_option, json_option, screen_for, write_report
from kvcheck.cli.status import PASSED
from kvcheck.engines.crash import EXCEPTION
from kvcheck.engines.retracing import Retraceable, retraceable
from kvcheck.files import InputError, Stated, require_writable, versioned, write_run
from kvcheck.model.actions import kind_of
from kvcheck.report.console import Screen
from kvcheck.report.describe import layout_lines
from kvcheck.targets.recording import Raised, Recording, read_recording
from kvcheck.targets.vllm.plugin import VARIABLE

HOW = f"""\
Install kvcheck beside vLLM (pip install PATH-OF-ITS-CLONE, in the same environment), and start the server with

    {VARIABLE}=FILE vllm serve MODEL ...

vLLM finds the recorder by itself (entry point kvcheck of the group vllm.general_plugins; VLLM_PLUGINS, if it is set,
must name it). Without the variable nothing is recorded and nothing is touched. Each scheduler writes to a new file:
FILE, then FILE.2, and so on. No text and no token is written, only which prompts share how long a prefix. Anywhere:

    kvcheck record FILE                  what it holds
    kvcheck replay FILE                  judge it, on the release that was recorded (--target path:DIR for a checkout)
    kvcheck record FILE --out run.json   as a run, for kvcheck replay on other releases, shrink, bisect and export"""


@click.command()
@click.argument("path", metavar="[RECORDING]", required=False, type=click.Path(path_type=Path))
@click.option("--out", metavar="RUN", type=click.Path(path_type=Path), help="Write it as a run.")
@json_option
@color_option
def command(path: Path | None, out: Path | None, json_file: str | None, no_color: bool) -> int:
    """Say how to record a running vLLM; of a recording, say what it holds, and make a run of it."""
    screen = screen_for(json_file, no_color, path)
    if path is None:
        if out is not None or json_file is not None:
            raise click.UsageError("--out and --json need a RECORDING")
        screen.line(HOW)
        return PASSED
    if out is not None:
        require_writable(out, path)
    recording = read_recording(path)
    found = retraceable(recording)
    show(screen, path, recording, found)
    if out is not None:
        if recording.opened.layout is None:
            raise InputError(f"{path}: no layout can say what was recorded, so no run can")
        write_run(out, found.run, Stated(target=release_of(recording.opened.vllm), signature=signature_of(found)))
        screen.line(f"as a run     {out}")
    write_report(json_file, report(path, recording, found, out))
    return PASSED


def show(screen: Screen, path: Path, recording: Recording, found: Retraceable) -> None:
    """What a recording holds."""
    kinds = kinds_of(found)
    screen.line(f"recording    {path}: vLLM {recording.opened.vllm or '(version unknown)'}, {ending(recording, found)}")
    screen.line(f"requests     {kinds['arrive']}, {kinds['schedule']} passes, {kinds['abort']} aborted")
    if recording.opened.layout is not None:
        first, *others = layout_lines(recording.opened.layout)
        screen.line(f"layout       {first}")
        for line in others:
            screen.line(f"             {line}")


def ending(recording: Recording, found: Retraceable) -> str:
    """How it ends."""
    last = " (its last line is not whole)" if recording.cut else ""
    return (found.undetermined or raised(found) or "ended in order") + last


def raised(found: Retraceable) -> str:
    """What the server raised at the end; empty if it did not."""
    last = found.steps[-1].outcome if found.steps else None
    if not isinstance(last, Raised):
        return ""
    failure = last.failure
    place = f" in {failure.function} ({failure.file}:{failure.line})" if failure.function else ""
    return f"the server raised {failure.type}{place}"


def signature_of(found: Retraceable) -> str | None:
    """What the run is about: what the server raised at the end; None if it did not."""
    last = found.steps[-1].outcome if found.steps else None
    if not isinstance(last, Raised):
        return None
    return " ".join(filter(None, (EXCEPTION, last.failure.type, last.failure.function)))


def kinds_of(found: Retraceable) -> Counter[str]:
    """Actions by kind."""
    return Counter(kind_of(action) for step in found.steps for action in step.actions)


def report(path: Path, recording: Recording, found: Retraceable, out: Path | None) -> dict[str, Any]:
    """The JSON report."""
    layout = recording.opened.layout
    return {
        "version": 1,
        "recording": str(path),
        "vllm": recording.opened.vllm,
        "layout": None if layout is None else versioned(layout),
        "ended_in_order": not (found.undetermined or raised(found)),
        "raised": raised(found),
        "undetermined": found.undetermined,
        "actions_by_kind": dict(kinds_of(found)),
        "run": None if out is None else str(out),
    }
