"""Exploring scopes: the search of each, what it says, and the runs that show what it found."""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from kvcheck.engines.execution import Execution
from kvcheck.engines.judging import Watch, judge_run
from kvcheck.explorer.pool import PoolMove, PoolState, PoolWorld
from kvcheck.explorer.scope import PoolScope, Scope, ServerScope
from kvcheck.explorer.search import Explored, Search
from kvcheck.explorer.server import Saved, Server
from kvcheck.invariants.registry import REGISTRY, Violation, all_invariants
from kvcheck.model.actions import Action, Run, kind_of
from kvcheck.model.observation import Trace
from kvcheck.targets.loading import load_target
from kvcheck.targets.reference.target import ReferenceTarget, faults_of

LIVELOCK = "progress.livelock"
GoesOn = Callable[[], bool]


class Shown(msgspec.Struct, frozen=True):
    """A violation, the moves of a shortest way to it in words, and whether going that way alone shows it again.

    ``run``: these moves as a run, of a server. ``trace``: what it showed. ``doubt``: what it means that it does not.
    """

    violation: Violation
    moves: tuple[str, ...]
    replays: bool
    run: Run | None = None
    trace: Trace | None = None
    doubt: str = "these moves alone do not show it: this is a bug of the explorer"


class Result(msgspec.Struct):
    """What came of one scope. ``left``: states that were seen and not looked into. ``bytes_a_state``: memory that grew
    with the states. ``unreached``: situations that the layout allows and that no order of events leads to, known of a
    complete search only. ``undetermined``: why nothing can be said, if so."""

    scope: str
    undetermined: str = ""
    complete: bool = False
    left: int = 0
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    collision: float = 0.0
    bytes_a_state: int = 0
    enabled: dict[str, int] = {}
    taken: dict[str, int] = {}
    new: dict[str, int] = {}
    shown: list[Shown] = []
    witnesses: dict[str, int] = {}
    unreached: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Undetermined, if the search was cut or what it found does not replay."""
        if any(one.replays for one in self.shown):
            return "violated"
        return "passed" if self.complete and not self.undetermined and not self.shown else "undetermined"


def explore(name: str, scope: Scope, spec: str, goes_on: GoesOn) -> Result:
    """Search a scope on the model ``spec``, while it ``goes_on``."""
    return (
        _explore_pool(name, scope, spec, goes_on)
        if isinstance(scope, PoolScope)
        else _explore_server(name, scope, spec, goes_on)
    )


def _explore_pool(name: str, scope: PoolScope, spec: str, goes_on: GoesOn) -> Result:
    faults, before = faults_of(spec), _memory()
    explored = Search[PoolState, PoolMove](PoolWorld(scope.pool, faults)).run(goes_on)
    result = _result(name, explored, before)
    for found in explored.found:
        again = PoolWorld(scope.pool, faults)
        broken = [v.signature for move in found.way for v in (*again.apply(move), *again.check())]
        moves = tuple([str(move) for move in found.way])
        result.shown.append(Shown(found.violation, moves, found.violation.signature in broken))
    return result


def _explore_server(name: str, scope: ServerScope, spec: str, goes_on: GoesOn) -> Result:
    if why := ReferenceTarget(spec).supports(scope.layout):
        return Result(scope=name, undetermined=f"not supported: {why}")
    server, before = Server(scope, faults_of(spec)), _memory()
    explored = Search[Saved, Action](server).run(goes_on)
    result = _result(name, explored, before)
    for found in explored.found:
        result.shown.append(_replayed(scope, spec, found.way, found.violation))
    if explored.cycle is not None and not explored.found:
        result.shown.append(_going_round(scope, spec, *explored.cycle, goes_on))
    result.witnesses = {one.name: server.witnesses[one.name] for one in server.situations}
    if result.complete:
        result.unreached = tuple([one.name for one in server.situations if not server.witnesses[one.name]])
        if missed := set(scope.reaches).intersection(result.unreached):
            result.undetermined = f"no order of events leads to what it is made for: {', '.join(sorted(missed))}"
    return result


def _result(name: str, explored: Explored[Any], before: int) -> Result:
    return Result(
        scope=name,
        complete=explored.complete,
        left=explored.left,
        states=explored.states,
        transitions=explored.transitions,
        depth=explored.depth,
        seconds=explored.seconds,
        collision=explored.collision,
        bytes_a_state=max(0, _memory() - before) // max(1, explored.states),
        enabled=_sorted(explored.enabled),
        taken=_sorted(explored.taken),
        new=_sorted(explored.new),
        shown=[],
    )


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return {kind: counts[kind] for kind in sorted(counts)}


def _replayed(scope: ServerScope, spec: str, way: tuple[Action, ...], violation: Violation) -> Shown:
    """A way as a run, judged alone."""
    run = Run(layout=scope.layout, actions=way)
    judged = judge_run(load_target(spec), run, record=True)
    seen = next((one for one in judged.violations if one.signature == violation.signature), None)
    return Shown(seen or violation, _words(way), seen is not None, run, judged.trace)


def _going_round(
    scope: ServerScope, spec: str, way: tuple[Action, ...], cycle: tuple[Action, ...], goes_on: GoesOn
) -> Shown:
    """A run that goes round a cycle until an invariant of progress sees it: each round has a pass at least."""
    session = load_target(spec).start(scope.layout)
    watch = Watch(session, Execution(session, scope.layout), situations=())
    done: list[Action] = []
    for moves in (way, *[cycle] * (2 * scope.layout.max_model_len + 20)):
        for action in moves:
            watch.apply(action)
            done.append(action)
            seen = next((v for v in watch.violations.values() if v.invariant.startswith("progress.")), None)
            if seen is not None:
                return _replayed(scope, spec, tuple(done), seen)
        if not goes_on():
            break
    all_invariants()
    known = REGISTRY[LIVELOCK]
    seen = Violation(LIVELOCK, str(known.severity), known.claim, f"{LIVELOCK} - cycle", len(way) + len(cycle) - 1)
    run = Run(layout=scope.layout, actions=(*way, *cycle))
    rounds = (len(done) - len(way)) // len(cycle)
    doubt = f"states come again, and no invariant of progress saw it in {rounds} rounds"
    return Shown(seen, _words(run.actions), False, run, doubt=doubt)


def _words(way: tuple[Action, ...]) -> tuple[str, ...]:
    return tuple([kind_of(action) for action in way])


def _memory() -> int:
    """The most bytes that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
