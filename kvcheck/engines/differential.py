"""The differential engine: the same run on two targets, everything that they show compared.

Actions are drawn in view of the left target, so a run goes where that server takes it. The invariants are not asked:
two servers that agree may both be wrong.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import msgspec

from kvcheck.engines.execution import Execution
from kvcheck.engines.random_layouts import Features, random_layout
from kvcheck.engines.random_runs import RunGenerator, settle_actions
from kvcheck.engines.search import LENGTHS
from kvcheck.engines.source import RandomSource
from kvcheck.model.actions import Action, Run
from kvcheck.model.layout import Layout
from kvcheck.model.observation import Failure
from kvcheck.targets.base import Session, UnsupportedLayout
from kvcheck.targets.failures import HarnessError
from kvcheck.targets.paired import DIFFERENCE, PairedTarget


class Compared(msgspec.Struct, frozen=True):
    """One run on two targets. ``actions``: compared ones, no-ops not counted. ``crashed``: both servers died of the
    same, or are corrupt alike. ``difference``: the first one, if any."""

    run: Run
    actions: int
    crashed: bool = False
    difference: Failure | None = None
    undetermined: str = ""


def compare_one(target: PairedTarget, seed: int, features: Features) -> Compared:
    """A random run of a seed, as the bulk search makes it, up to the first difference or a crash of both."""
    source = RandomSource(random.Random(seed))
    for _ in range(100):
        layout = random_layout(source, features)
        try:
            session = target.start(layout)
        except UnsupportedLayout:
            continue
        return _compare(session, layout, source, features)
    raise UnsupportedLayout("the targets have none of a hundred random layouts in common")


def _compare(session: Session, layout: Layout, source: RandomSource, features: Features) -> Compared:
    execution = Execution(session, layout)
    generator = RunGenerator(source, layout, features)

    def drawn() -> Iterator[Action]:
        for _ in range(source.integer(*source.choose(LENGTHS))):
            yield generator.next(execution)
        yield from settle_actions(execution)

    return _through(execution, drawn())


def _through(execution: Execution, actions: Iterable[Action]) -> Compared:
    """All actions up to the first difference, or up to what leaves nothing to compare."""
    done: list[Action] = []
    count = 0
    undetermined = ""
    try:
        for action in actions:
            done.append(action)
            count += not execution.apply(action).observation.skipped
            if execution.dead or _is_corrupt(execution):
                break
    except HarnessError as error:
        undetermined = f"harness: {error}"
    run = Run(layout=execution.layout, actions=tuple(done))
    failure = execution.last.failure if execution.last else None
    if failure is not None and failure.type == DIFFERENCE:
        return Compared(run, count - 1, difference=failure)
    return Compared(run, count, crashed=failure is not None or _is_corrupt(execution), undetermined=undetermined)


def _is_corrupt(execution: Execution) -> bool:
    """Whether both pools have lost count, or a session has outgrown the longest request (R10.44), both alike: what
    they do from here on is not defined."""
    view, longest = execution.view, execution.layout.max_model_len
    if view is None:
        return False
    return view.free_count != len(view.free) or any(r.known > longest for r in view.requests.values())


def compare_run(target: PairedTarget, run: Run) -> Compared:
    """A given run on two targets.

    Raises:
        UnsupportedLayout: one of them has no such layout.
    """
    return _through(Execution(target.start(run.layout), run.layout), run.actions)
