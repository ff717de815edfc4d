"""A recording as what a page steps through: for each action what happened, and what it changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from kvcheck.engines.execution import Execution
from kvcheck.invariants.moment import Moment
from kvcheck.invariants.registry import Violation, all_invariants
from kvcheck.model.actions import Action
from kvcheck.model.observation import CacheView, RequestView, Tables, Trace
from kvcheck.report.describe import action_text, counted, event_text, outcome_text
from kvcheck.report.pages.contents import Content, Contents
from kvcheck.targets.recorded import RecordedSession

Key = TypeVar("Key")
Value = TypeVar("Value")


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """A read that did not find what it should."""

    label: str
    what: str
    group: int
    position: int
    column: int
    block: int
    found: str
    expected: str


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """A violation, and what it breaks."""

    signature: str
    severity: str
    claim: str
    message: str


class Frame(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One action. What is not named, or None as a whole, is as it was before; an entry that is None is gone.

    ``ran``: it was run; ``dead``: the server did not survive it. By block: ``refs`` references, ``keys`` in words,
    ``content`` the number of what it holds, ``outside`` references held outside the tables. ``requests``: status, and
    how far it is. ``free``: the free queue, next first.
    """

    action: str
    outcome: str = ""
    ran: bool = True
    skipped: bool = False
    dead: bool = False
    lines: list[str] = []
    wrong: list[Read] = []
    broken: list[Broken] = []
    tables: dict[str, Tables | None] = {}
    requests: dict[str, tuple[str, str] | None] = {}
    refs: dict[int, int | None] = {}
    keys: dict[int, list[str] | None] = {}
    content: dict[int, int | None] = {}
    outside: dict[int, int | None] = {}
    free: tuple[int, ...] | None = None
    running: tuple[str, ...] | None = None
    waiting: tuple[str, ...] | None = None


class Film(msgspec.Struct, kw_only=True):
    """All that a run's page steps through. ``labels``: requests in order of arrival."""

    frames: list[Frame]
    labels: list[str] = []
    contents: list[Content] = []


def film_of(trace: Trace, violations: tuple[Violation, ...]) -> Film:
    """What a recording shows, step by step; the shadow worker runs again for that, the target does not.

    Raises:
        KeyError, IndexError, ValueError, TypeError, TargetError: the recording contradicts itself.
    """
    session = RecordedSession(trace)
    execution = Execution(session, trace.run.layout, trace.run.level)
    contents = Contents(execution.shadow)
    frames: list[Frame] = []
    picture = _Picture()
    for action in trace.run.actions[: len(trace.observations)]:
        session.advance()
        moment = execution.apply(action)
        contents.learn()
        frame = _frame(moment)
        touched, execution.shadow.dirty = execution.shadow.dirty, set()
        picture.update(frame, moment.view, {block: contents.of(block) for block in sorted(touched)})
        frames.append(frame)
    frames += [not_run(action) for action in trace.run.actions[len(frames) :]]
    mark(frames, violations)
    return Film(frames=frames, labels=contents.labels, contents=contents.all)


def not_run(action: Action) -> Frame:
    """An action of which nothing is known but that it is in the run."""
    return Frame(action=action_text(action), ran=False)


def mark(frames: list[Frame], violations: tuple[Violation, ...]) -> None:
    """Put violations at the actions where they were seen."""
    claims = {one.id: one.claim for one in all_invariants()}
    for violation in violations:
        if violation.index < len(frames):
            claim = claims.get(violation.invariant, "")
            broken = Broken(
                signature=violation.signature, severity=violation.severity, claim=claim, message=violation.message
            )
            frames[violation.index].broken = [*frames[violation.index].broken, broken]


def _frame(moment: Moment) -> Frame:
    seen = moment.observation
    return Frame(
        action=action_text(moment.action),
        outcome=outcome_text(seen),
        skipped=bool(seen.skipped),
        dead=seen.failure is not None,
        lines=list(_lines(moment)),
        wrong=[
            Read(
                label=read.label,
                what=read.what,
                group=read.group,
                position=read.position,
                column=read.column,
                block=read.block,
                found=read.held,
                expected=read.expected,
            )
            for read in moment.wrong
        ],
    )


def _lines(moment: Moment) -> Iterator[str]:
    """What else is to be told of an action, in order."""
    if moment.executed is not None:
        ran = ", ".join(f"{r.label} {r.start}..{r.start + r.count}" for r in moment.executed.requests)
        yield f"step {moment.executed.seq} is executed: {ran or 'nothing'}"
    yield from (f"the worker cannot: {bad.label} {bad.text} (group {bad.group})" for bad in moment.bad)
    yield from (event_text(event) for event in moment.observation.log)
    if moment.observation.failure is not None:
        yield str(moment.observation.failure)


class _Picture:
    """The bookkeeping as the last frame left it."""

    def __init__(self) -> None:
        self._maps: dict[str, dict[Any, Any]] = {}
        self._lists: dict[str, tuple[Any, ...]] = {}
        self._content: dict[int, int] = {}

    def update(self, frame: Frame, view: CacheView | None, contents: Mapping[int, int]) -> None:
        """Put into a frame what has changed."""
        self._content |= contents
        maps: dict[str, dict[Any, Any]] = {"content": dict(self._content)}
        if view is not None:
            maps |= _maps_of(view)
            lists = {"free": view.free, "running": view.running, "waiting": view.waiting}
            for name, value in lists.items():
                if value != self._lists.get(name):
                    setattr(frame, name, value)
            self._lists = lists
        for name, now in maps.items():
            setattr(frame, name, _changes(self._maps.get(name, {}), now))
        self._maps |= maps


def _maps_of(view: CacheView) -> dict[str, dict[Any, Any]]:
    keys: dict[int, list[str]] = {}
    for group, block, length, _ in sorted(view.keys):
        keys.setdefault(block, []).append(f"group {group}, {counted(length, 'token')}")
    return {
        "tables": dict(view.tables),
        "requests": {label: (request.status, _request_text(request)) for label, request in view.requests.items()},
        "refs": {block: count for block, count in enumerate(view.refs) if count},
        "keys": keys,
        "outside": dict(view.holders),
    }


def _request_text(request: RequestView) -> str:
    text = f"{request.computed} of {counted(request.known, 'token')} computed"
    return f"{text}, {request.in_flight} of them in flight" if request.in_flight else text


def _changes(before: Mapping[Key, Value], now: Mapping[Key, Value]) -> dict[Key, Value | None]:
    """Entries that are new or other than before, and None for those that are gone."""
    changed: dict[Key, Value | None] = {key: value for key, value in now.items() if before.get(key) != value}
    return changed | {key: None for key in before if key not in now}
