"""Judging a run on a target, or a recorded trace without one."""

from __future__ import annotations

from collections import Counter

import msgspec

from kvcheck.engines.execution import Execution
from kvcheck.engines.measures import Measures, measures_of
from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.moment import Moment
from kvcheck.invariants.registry import Judge, Severity, Violation
from kvcheck.invariants.witnesses import Witness, happening, possible_witnesses
from kvcheck.model.actions import Action, Run, kind_of
from kvcheck.model.observation import Observation, Trace
from kvcheck.targets.base import Session, Target, UnsupportedLayout
from kvcheck.targets.failures import HarnessError
from kvcheck.targets.recorded import RecordedSession

SOFT = frozenset({Severity.LOST_REUSE, Severity.DRAFT_QUALITY, Severity.BOOKKEEPING})
"""Severities of violations that leave the server sound: a run goes on after them."""


class RunResult(msgspec.Struct):
    """What judging a run gave. ``undetermined`` says why nothing can be said, if so. ``measures``: of each action, if
    they were asked for; then ``finished`` says whether all requests have come to their end. ``scheduling_seconds``: the
    time that scheduling passes took."""

    violations: tuple[Violation, ...] = ()
    witnesses: dict[str, int] = {}
    possible: tuple[str, ...] = ()
    actions_by_kind: dict[str, int] = {}
    actions: int = 0
    skipped: int = 0
    undetermined: str = ""
    trace: Trace | None = None
    measures: tuple[Measures, ...] = ()
    finished: bool = False
    scheduling_seconds: float = 0.0

    @property
    def sound(self) -> bool:
        """Whether nothing was broken that makes the rest of the run meaningless."""
        return all(violation.severity in SOFT for violation in self.violations)

    def said_of(self, signature: str | None, index: int | None = None) -> tuple[str, str]:
        """The verdict on the violation with a signature, whole or its first words (None: on any), with what shows it,
        or why nothing can be said.

        A run that another violation has ended says nothing about the one that is asked for. ``index``: the action at
        which that is looked for; what ends the run after it does not matter.
        """
        shown = [one.signature for one in self.violations if signature is None or one.is_called(signature)]
        if shown:
            return "violated", shown[0]
        if self.undetermined:
            return "undetermined", self.undetermined
        hard = (violation for violation in self.violations if violation.severity not in SOFT)
        ended = [violation.signature for violation in hard if index is None or violation.index <= index]
        return ("undetermined", f"masked: it shows {ended[0]} instead") if ended else ("passed", "")


class Watch:
    """An execution with its judge; counts what came up, and keeps the first violation of each signature."""

    def __init__(self, session: Session, execution: Execution, situations: tuple[Witness, ...] | None = None) -> None:
        self.execution = execution
        self.ledger = Ledger(execution.layout, session.promises, execution.shadow)
        self.judge = Judge(self.ledger)
        self._situations = possible_witnesses(execution.layout) if situations is None else situations
        self.witnesses: Counter[str] = Counter()
        self.actions: Counter[str] = Counter()
        self.skipped = 0
        self.violations: dict[str, Violation] = {}

    @property
    def broken(self) -> bool:
        """Whether something is broken that makes the rest of the run meaningless."""
        return any(violation.severity not in SOFT for violation in self.violations.values())

    def apply(self, action: Action) -> Moment:
        """Let one action happen and judge it."""
        moment = self.execution.apply(action)
        self.actions[kind_of(action)] += 1
        self.skipped += bool(moment.observation.skipped)
        for violation in self.judge.feed(moment):
            self.violations.setdefault(violation.signature, violation)
        if not moment.observation.skipped:
            self.witnesses.update(happening(self._situations, moment, self.ledger))
        return moment

    def result(self, undetermined: str = "", trace: Trace | None = None) -> RunResult:
        """What came of it."""
        return RunResult(
            violations=tuple(self.violations.values()),
            witnesses=dict(self.witnesses),
            possible=tuple(w.name for w in self._situations),
            actions_by_kind=dict(self.actions),
            actions=sum(self.actions.values()),
            skipped=self.skipped,
            undetermined=undetermined,
            trace=trace,
            scheduling_seconds=self.execution.scheduling_seconds,
        )


def judge_run(target: Target, run: Run, record: bool = False, measure: bool = False) -> RunResult:
    """Run all actions, or up to the first after which the rest means nothing, and judge each moment."""
    try:
        session = target.start(run.layout, run.level)
    except UnsupportedLayout as error:
        return RunResult(undetermined=f"not supported: {error}")
    result, observations = _judge(session, run)
    if measure:
        view = observations[-1].view if observations else None
        result.measures = tuple(map(measures_of, observations))
        result.finished = view is not None and not view.requests
    if record:
        result.trace = Trace(run, target.info, session.promises, tuple(observations))
    return result


def shows(target: Target, run: Run, signature: str) -> Violation | None:
    """The first violation with this signature, if the run shows one. Looks no further, and counts nothing."""
    try:
        session = target.start(run.layout, run.level)
    except UnsupportedLayout:
        return None
    watch = Watch(session, Execution(session, run.layout, run.level), situations=())
    try:
        for action in run.actions:
            watch.apply(action)
            if watch.broken or signature in watch.violations:
                break
    except HarnessError:
        return None
    return watch.violations.get(signature)


def _judge(session: Session, run: Run) -> tuple[RunResult, list[Observation]]:
    watch = Watch(session, Execution(session, run.layout, run.level))
    observations: list[Observation] = []
    undetermined = ""
    try:
        for action in run.actions:
            if isinstance(session, RecordedSession):
                session.advance()
            observations.append(watch.apply(action).observation)
            if watch.broken:
                break
    except HarnessError as error:
        undetermined = f"harness: {error}"
    return watch.result(undetermined), observations


def judge_trace(trace: Trace) -> RunResult:
    """Judge a recording again, without its target."""
    run = msgspec.structs.replace(trace.run, actions=trace.run.actions[: len(trace.observations)])
    return _judge(RecordedSession(trace), run)[0]
