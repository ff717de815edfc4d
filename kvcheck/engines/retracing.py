"""A recording of a live server becomes a run, and the run is retraced: the release is given the same, step by step, and
must do the same, down to each block.

What the recording does not hold (the view, estimates, what a worker would read) the retraced server shows. It stands
for the live one as long as both write the same lines: every block that was taken, touched or given back, every plan,
every end. Where they part, nothing more is said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec.structs import replace

from kvcheck.engines.execution import Execution
from kvcheck.engines.judging import RunResult, Watch
from kvcheck.files import MOST_TOKEN, InputError, check_run, one_line
from kvcheck.model.actions import Abort, Action, Answer, Arrive, Complete, Pause, Reset, Run, Schedule, Transfer
from kvcheck.model.layout import Layout
from kvcheck.targets.base import Target, UnsupportedLayout
from kvcheck.targets.failures import HarnessError
from kvcheck.targets.recording import (
    Aborted,
    Arrived,
    Closed,
    Drafted,
    Ended,
    Opened,
    Outcome,
    Outside,
    Paused,
    Planned,
    Raised,
    Recording,
    Sampled,
    Told,
    as_read,
    tokens_of,
)
from kvcheck.targets.recording import Reset as ResetLine
from kvcheck.targets.vllm.live import LiveRecorder
from kvcheck.targets.vllm.live_layout import differing
from kvcheck.targets.vllm.session import SchedulerSession

WORDS = {
    "who": "requests that run",
    "counts": "tokens that each request runs",
    "going_on": "requests that run on",
    "starts": "tokens computed before, of requests that run on",
    "more": "blocks that are added",
    "new": "requests that begin, with their blocks",
    "resumed": "requests that are resumed",
    "drafts": "drafts that run",
    "preempted": "requests that are preempted",
    "copies": "blocks that are copied",
    "zero": "blocks that are zeroed",
    "done": "whether it was done",
    "failure": "exceptions",
    "log": "what the pool took, touched and gave back",
    "ended": "requests that ended",
}
"""What the fields of an outcome are."""
CUT_OFF = "cut-off: the recording was not ended in order: the server was killed, or still runs"


class Step(msgspec.Struct):
    """Some actions, and what the live server did at the last of them; None: the recording does not say."""

    actions: list[Action]
    outcome: Outcome | None = None


class Retraceable(msgspec.Struct):
    """A recording as a run. ``undetermined``: why nothing can be said of what comes after its end; empty if the
    recording was ended in order."""

    run: Run
    steps: list[Step]
    settings: dict[str, Any]
    undetermined: str = ""


def retraceable(recording: Recording) -> Retraceable:
    """The run that a recording tells of, as far as actions can say it.

    Raises:
        InputError: the recording contradicts itself, or tells of a run that may not be driven.
    """
    opened, layout = recording.opened, recording.opened.layout
    if layout is None:
        nothing = Run(layout=Layout(groups=(), num_blocks=1, max_model_len=1, token_budget=1), actions=())
        return Retraceable(nothing, [], opened.settings, f"outside: {'; '.join(opened.outside)}")
    try:
        reader = _Reader(recording)
        reader.read()
    except (KeyError, IndexError, TypeError, ValueError) as error:
        told = f"{type(error).__name__}: {one_line(error)}"
        raise InputError(f"{recording.path}: the recording contradicts itself ({told})") from error
    if reader.duplicates and layout.connector is not None:
        layout = replace(layout, connector=replace(layout.connector, duplicates=True))
    actions = tuple(action for step in reader.steps for action in step.actions)
    if reader.undetermined == CUT_OFF:
        actions += (Schedule(),)  # the server may have died in it
    run = Run(layout=layout, actions=actions, note=f"recorded from vLLM {opened.vllm or 'of some version'}")
    check_run(recording.path, run)
    return Retraceable(run, reader.steps, opened.settings, reader.undetermined)


def label_of(request: int) -> str:
    """The label of a recorded request."""
    return f"r{request}"


class _Reader:
    """Goes through the lines once. ``undetermined`` says why it stopped, if it was not at the recorder's own end."""

    def __init__(self, recording: Recording) -> None:
        self.steps: list[Step] = []
        self.undetermined = CUT_OFF
        self._lines = recording.lines
        self._drafts = recording.opened.layout.draft_tokens if recording.opened.layout else 0
        self._asynchronous = recording.opened.layout.asynchronous if recording.opened.layout else False
        self._ended = {one.request: one for line in self._lines for one in _ends(line)}
        self._answers = self._all_answers()
        self._plans: deque[list[tuple[int, int]]] = deque()
        self._ran: list[int] = []
        self._received: set[int] = set()
        self.duplicates = False

    def read(self) -> None:
        """All lines, or up to the first that no action can say."""
        for line in self._lines:
            if isinstance(line, Closed | Outside) or (isinstance(line, Arrived) and line.outside):
                why = getattr(line, "why", "") or getattr(line, "outside", "")
                self.undetermined = f"outside: {why}" if why else ""
                return
            self._read(line)

    def _read(self, line: Any) -> None:
        match line:
            case Planned():
                self._plan(line)
                self.steps.append(Step([Schedule()], line))
            case Raised(during="schedule"):
                self.steps.append(Step([Schedule()], line))
            case Told() | Raised():
                self._outcome(line)
            case Arrived():
                self.steps.append(Step([self._arrival(line)]))
            case Sampled():
                self.steps.append(Step(self._completion(line)))
            case Drafted():
                self._propose(line)
            case Aborted():
                self.steps.append(Step([]))
            case ResetLine():
                self.steps.append(Step([Reset(running=line.running)]))
            case Paused():
                self.steps.append(Step([Pause(what=line.what)]))

    def _outcome(self, line: Told | Raised) -> None:
        """What came of the line before. Requests that were ended together are so in the order in which they were."""
        step = self.steps[-1]
        step.outcome = line
        if not step.actions:
            step.actions = [Abort(label=label_of(one.request)) for one in line.ended]

    # ---- requests ------------------------------------------------------------------------------------------------

    def _all_answers(self) -> dict[int, list[Answer]]:
        """What the connector answered, by request."""
        answers: dict[int, list[Answer]] = {}
        for line in self._lines:
            for what, numbers in line.log if isinstance(line, Outcome) else ():
                if what == "asked":
                    request, local, external, asynchronous = numbers
                    holds = None if external < 0 else local + external if external else 0
                    answers.setdefault(request, []).append(Answer(holds=holds, asynchronous=bool(asynchronous)))
        return answers

    def _arrival(self, line: Arrived) -> Arrive:
        end = self._ended.get(line.request, Ended(request=line.request, why="alive"))
        sampled = tokens_of(end.sampled)
        return Arrive(
            label=label_of(line.request),
            prompt=tokens_of(line.prompt),
            max_tokens=min(line.max_tokens, MOST_TOKEN),  # no request gets that far
            stop=sampled[-1] if end.why == "stop" else None,
            salt=line.salt,
            adapter=line.adapter,
            skip_reading=line.skip_reading,
            priority=line.priority,
            store=end.held and end.why in ("stop", "length"),
            answers=tuple(self._answers.get(line.request, ())),
            sampled=sampled,
        )

    # ---- steps ---------------------------------------------------------------------------------------------------

    def _plan(self, plan: Planned) -> None:
        """Remember who runs in this step, and how many drafts each has."""
        self._ran = self._ran if plan.who is None else plan.who
        drafts = dict(plan.drafts)
        self._plans.append([(request, drafts.get(request, 0)) for request in self._ran])

    def _completion(self, line: Sampled) -> list[Action]:
        plan = self._plans.popleft()
        counts = [1] * len(plan) if line.counts is None else line.counts
        sampled = [(request, drafts, count) for (request, drafts), count in zip(plan, counts, strict=True) if count]
        accepted = {label_of(request): count - 1 for request, drafts, count in sampled if drafts and count > 1}
        none = self._drafts and not self._asynchronous
        proposed = {label_of(request): 0 for request, _, _ in sampled} if none else {}
        transfers = [self._reception(request) for request in line.received]
        transfers += [Transfer(label=label_of(request), what="store") for request in line.sent]
        return [*transfers, Complete(accepted=accepted, proposed=proposed)]

    def _reception(self, request: int) -> Transfer:
        again = request in self._received
        self._received.add(request)
        self.duplicates |= again
        return Transfer(label=label_of(request), again=again)

    def _propose(self, line: Drafted) -> None:
        """Drafts for the next step belong to the output that was processed last."""
        for step in reversed(self.steps):
            last = step.actions[-1] if step.actions else None
            if isinstance(last, Complete):
                proposed = {label_of(request): count for request, count in line.counts.items()}
                known = {label: proposed.get(label, 0) for label in last.proposed}
                step.actions[-1] = replace(last, proposed=known)
                return


def _ends(line: Any) -> list[Ended]:
    return line.alive if isinstance(line, Closed) else line.ended if isinstance(line, Outcome) else []


# ---- retracing ---------------------------------------------------------------------------------------------------


def judge_recording(target: Target, recording: Recording) -> RunResult:
    """Retrace a recording on a release, and judge each moment for as long as it does what the live server did."""
    found = retraceable(recording)
    if not found.steps:
        return RunResult(undetermined=found.undetermined or "nothing-happened: nobody asked the server for anything")
    try:
        session = target.start(found.run.layout)
    except UnsupportedLayout as error:
        return RunResult(undetermined=f"not supported: {error}")
    if not isinstance(session, SchedulerSession):
        return RunResult(undetermined="not supported: only a release can do what a live server did, block by block")
    lines: list[Any] = []
    LiveRecorder(session.scheduler, lambda line: lines.append(as_read(line)))
    opened = lines.pop()
    assert isinstance(opened, Opened)
    if other := opened.outside or differing(found.settings, opened.settings):
        why = f"a server made from its layout is another: {'; '.join(other[:5])}"
        return RunResult(undetermined=f"outside: {_other_release(recording, target)}{why}")
    watch = Watch(session, Execution(session, found.run.layout))
    try:
        return watch.result(_retraced(watch, found, lines) or found.undetermined)
    except HarnessError as error:
        return watch.result(f"harness: {error}")


def _other_release(recording: Recording, target: Target) -> str:
    """That the target is not what was recorded; empty if it is, as far as versions tell."""
    live, made = (version.partition("+")[0] for version in (recording.opened.vllm, target.info.version))
    return f"recorded from {live}, the target is {made}: " if live and made and live != made else ""


def _retraced(watch: Watch, found: Retraceable, lines: list[Any]) -> str:
    """Go through all steps; why it stopped, if it was not at the end or at a violation."""
    steps = found.steps
    if found.undetermined == CUT_OFF and steps[-1].outcome is None:
        steps = steps[:-1]  # nobody knows what came of it: the server may have died in it
    for number, step in enumerate(steps):
        for action in step.actions:
            before = dict(watch.violations)
            watch.apply(action)
            if action is step.actions[-1] and (parted := _parted(step, lines)):
                watch.violations = before  # what this moment showed is not what the live server did
                return f"parted: {_place(found, number)} the live server and the release part: {parted}"
            if watch.broken:
                return ""
    return ""


def _place(found: Retraceable, number: int) -> str:
    return f"at action {sum(len(step.actions) for step in found.steps[: number + 1]) - 1}"


def _parted(step: Step, lines: list[Any]) -> str:
    """How what the release has just done differs from what the live server did; empty if it does not."""
    made = _merged(line for line in lines if isinstance(line, Outcome))
    lines.clear()
    live = step.outcome
    if live is None and made is None:
        return ""
    for field in _fields(live, made):
        theirs, ours = _comparable(live, field), _comparable(made, field)
        if field == "kind" and theirs != ours:
            return f"the live server {_did(live)}, and the release {_did(made)}"
        if theirs != ours:
            return f"{WORDS[field]}: {_first_difference(theirs, ours)}"
    return ""


def _first_difference(theirs: Any, ours: Any) -> str:
    if isinstance(theirs, list | None) and isinstance(ours, list | None):
        pairs = enumerate(zip_longest(theirs or (), ours or (), fillvalue="nothing"))
        index, (theirs, ours) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        return f"{_short(theirs)} on the live server, {_short(ours)} on the release (entry {index})"
    return f"{_short(theirs)} on the live server, {_short(ours)} on the release"


def _did(outcome: Outcome | None) -> str:
    """What came of an action, in words."""
    match outcome:
        case Planned():
            return "planned a step"
        case Raised():
            return f"raised {outcome.failure.type} in {outcome.failure.function}"
        case None:
            return "told nothing"
    return "went on"


def _merged(outcomes: Iterator[Outcome]) -> Outcome | None:
    """One outcome of those of several calls, as when requests are ended one by one."""
    merged: Outcome | None = None
    for outcome in outcomes:
        if merged is None:
            merged = outcome
        else:
            both = {"log": [*merged.log, *outcome.log], "ended": [*merged.ended, *outcome.ended]}
            merged = replace(merged, **both)
    return merged


def _fields(live: Outcome | None, made: Outcome | None) -> list[str]:
    kinds = [type(one).__name__.lower() for one in (live, made) if one is not None]
    if len(set(kinds)) > 1:
        return ["kind"]
    names = [field for field in (live or made).__struct_fields__ if field != "during"]  # type: ignore[union-attr]
    return sorted(names, key=lambda name: name in ("log", "ended"))


def _comparable(outcome: Outcome | None, field: str) -> Any:
    """What must be the same: not the tokens, which the release knows by other names, nor where a stack began."""
    if field == "kind":
        return None if outcome is None else type(outcome).__name__.lower()
    value = getattr(outcome, field, None)
    if field == "ended":
        return [(one.request, one.why, len(one.sampled), one.held) for one in value or ()]
    if field == "failure" and value is not None:
        return value.type, value.function, value.line
    return msgspec.to_builtins(value) or None


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
