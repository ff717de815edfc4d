"""The bulk search: a seeded walk over random layouts and actions, judged moment by moment."""

from __future__ import annotations

import random
from typing import Protocol

import msgspec

from kvcheck.engines.execution import Execution
from kvcheck.engines.judging import Watch
from kvcheck.engines.random_layouts import Features, random_layout
from kvcheck.engines.random_runs import RunGenerator, is_settled, settle_actions
from kvcheck.engines.source import RandomSource, Source
from kvcheck.engines.thinned_runs import ThinnedGenerator
from kvcheck.invariants.registry import Violation
from kvcheck.model.actions import Action, Level, Run
from kvcheck.model.layout import Layout
from kvcheck.targets.base import Session, Target, UnsupportedLayout
from kvcheck.targets.failures import HarnessError

LENGTHS = ((8, 30), (20, 110))
"""Random actions of a run before it settles, at least and at most: short runs, of which there are more a second, and
long ones."""
THINNED_PERCENT = 30
"""Of the runs on several groups, those that do nothing but ask for one text again."""


class Generator(Protocol):
    """Draws the actions of one run."""

    def next(self, execution: Execution) -> Action:
        """The next action of the run."""


class SearchResult(msgspec.Struct):
    """What one random run gave. ``possible``: the witnesses that its layout allows."""

    run: Run
    violations: tuple[Violation, ...]
    witnesses: dict[str, int]
    possible: tuple[str, ...]
    actions_by_kind: dict[str, int]
    actions: int
    skipped: int
    undetermined: str = ""


MANAGER_FEATURES = Features(
    connector=False, drafter=False, asynchronous=False, sessions=False, priorities=False, pauses=False, stores=False
)
"""What a cache manager without its scheduler can be driven with."""


def search_one(
    target: Target, seed: int, features: Features, layout: Layout | None = None, level: Level = "scheduler"
) -> SearchResult:
    """One random run of a seed: random actions, then the faults stop and everything must finish.

    The run ends at the first moment after which the rest means nothing.

    Raises:
        UnsupportedLayout: the given layout is not for this target. Random layouts that are not are drawn again.
    """
    source = RandomSource(random.Random(seed))
    session, chosen = (
        _started(target, source, features, level) if layout is None else (target.start(layout, level), layout)
    )
    return walked(session, Run(layout=chosen, actions=(), level=level), source, _generator(source, chosen, features))


def _generator(source: Source, layout: Layout, features: Features) -> Generator:
    thins = features.evictions and layout.caching and len(layout.groups) > 1
    if thins and source.chance(THINNED_PERCENT):
        return ThinnedGenerator(source, layout)
    return RunGenerator(source, layout, features)


def walked(session: Session, begun: Run, source: Source, generator: Generator) -> SearchResult:
    """What random actions and the end after them come to, on a server that has just started. ``begun``: the run, still
    without actions."""
    watch = Watch(session, Execution(session, begun.layout, begun.level))
    actions: list[Action] = []
    undetermined = ""
    try:
        _walk(watch, source, generator, actions)
        if not watch.broken and not is_settled(watch.execution):
            undetermined = "not-settled: the faults had stopped, and the server had work left when the run was given up"
    except HarnessError as error:
        undetermined = f"harness: {error}"
    result = watch.result(undetermined)
    return SearchResult(
        run=msgspec.structs.replace(begun, actions=tuple(actions)),
        violations=result.violations,
        witnesses=result.witnesses,
        possible=result.possible,
        actions_by_kind=result.actions_by_kind,
        actions=result.actions,
        skipped=result.skipped,
        undetermined=undetermined,
    )


def _started(target: Target, source: Source, features: Features, level: Level) -> tuple[Session, Layout]:
    """A server with the first random layout that the target can express."""
    for _ in range(100):
        layout = random_layout(source, features)
        try:
            return target.start(layout, level), layout
        except UnsupportedLayout:
            continue
    raise UnsupportedLayout("the target supports none of a hundred random layouts")


def _walk(watch: Watch, source: Source, generator: Generator, actions: list[Action]) -> None:
    for _ in range(source.integer(*source.choose(LENGTHS))):
        if _broken(watch, generator.next(watch.execution), actions):
            return
    for action in settle_actions(watch.execution):
        if _broken(watch, action, actions):
            return


def _broken(watch: Watch, action: Action, actions: list[Action]) -> bool:
    actions.append(action)
    watch.apply(action)
    return watch.broken
