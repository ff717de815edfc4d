"""A Hypothesis state machine over the same actions, for those who already test with Hypothesis.

    from kvcheck.machine import machine_for
    from kvcheck.targets.loading import load_target

    TestKVCache = machine_for(load_target("vllm==0.28.0")).TestCase

It is judged by the same invariants as every other engine. What fails is shrunk by Hypothesis; the exception carries
the run, which replays on any target.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvcheck.engines.execution import Execution
from kvcheck.engines.random_layouts import ALL_FEATURES, Features, random_layout
from kvcheck.engines.random_runs import RunGenerator, settle_actions
from kvcheck.engines.source import HypothesisSource
from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.moment import Moment
from kvcheck.invariants.registry import Judge, Violation
from kvcheck.model.actions import Action, Run, Schedule
from kvcheck.model.layout import Layout
from kvcheck.targets.base import Target, UnsupportedLayout

MOST_PASSES = 8
"""Passes that one rule runs: a state machine draws its rules evenly, and requests need many passes to get on."""


class ViolationFound(AssertionError):
    """A run broke something: the run up to there, and what it broke."""

    def __init__(self, run: Run, violations: tuple[Violation, ...]) -> None:
        first = violations[0]
        super().__init__(f"{first.signature}: {first.message} (after {len(run.actions)} actions)")
        self.run = run
        self.violations = violations


def _has_requests(machine: KVCacheMachine) -> bool:
    view = machine.execution.view
    return view is not None and bool(view.requests)


class KVCacheMachine(RuleBasedStateMachine):
    """One server under random actions; ``machine_for`` makes the classes to run. ``actions``: those of this run."""

    target: ClassVar[Target]
    features: ClassVar[Features] = ALL_FEATURES
    fixed_layout: ClassVar[Layout | None] = None

    execution: Execution
    generator: RunGenerator
    judge: Judge

    def __init__(self) -> None:
        super().__init__()
        self.actions: list[Action] = []
        self.layout: Layout | None = self.fixed_layout
        self.over = True

    @property
    def run(self) -> Run:
        """The run so far.

        Raises:
            ValueError: it has no layout yet.
        """
        if self.layout is None:
            raise ValueError("the layout has not been drawn yet")
        return Run(layout=self.layout, actions=tuple(self.actions))

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """The server starts; layouts that the target does not have are drawn again."""
        source = HypothesisSource(data.draw)
        layout = self.fixed_layout or random_layout(source, self.features)
        try:
            session = self.target.start(layout)
        except UnsupportedLayout:
            reject()
        self.layout = layout
        self.execution = Execution(session, layout)
        self.judge = Judge(Ledger(layout, session.promises, self.execution.shadow))
        self.generator = RunGenerator(source, layout, self.features)
        self.over = False

    # ---- steps ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.execution.in_flight) < self.execution.layout.steps_in_flight)
    @rule()
    def schedule(self) -> None:
        """One scheduling pass."""
        self._apply(Schedule())

    @precondition(lambda self: self.execution.in_flight)
    @rule()
    def complete(self) -> None:
        """The oldest step in flight runs."""
        self._apply(self.generator.complete(self.execution))

    @precondition(_has_requests)
    @rule(passes=st.integers(1, MOST_PASSES))
    def step(self, passes: int) -> None:
        """Some passes, each followed by the oldest step in flight."""
        for _ in range(passes):
            if len(self.execution.in_flight) < self.execution.layout.steps_in_flight:
                self._apply(Schedule())
            self._apply(self.generator.complete(self.execution))

    # ---- everything else -----------------------------------------------------------------------------------------

    @rule()
    def arrive(self) -> None:
        """A request arrives."""
        self._apply(self.generator.arrive(self.execution))

    @precondition(lambda self: self.generator.sessions and _has_requests(self))
    @rule()
    def extend(self) -> None:
        """A session gets more input, or ends."""
        self._apply(self.generator.extend(self.execution))

    @precondition(lambda self: self.execution.shadow.loads or self.execution.stores)
    @rule()
    def transfer(self) -> None:
        """A load or a store is over."""
        self._apply(self.generator.transfer(self.execution))

    @precondition(_has_requests)
    @rule()
    def abort(self) -> None:
        """A client goes away."""
        self._apply(self.generator.abort(self.execution))

    @precondition(lambda self: self.features.evictions and self.execution.view and self.execution.view.keys)
    @rule()
    def evict(self) -> None:
        """A cached prefix is evicted from one group."""
        self._apply(self.generator.evict(self.execution))

    @precondition(lambda self: self.features.resets)
    @rule()
    def reset(self) -> None:
        """The prefix cache is reset."""
        self._apply(self.generator.reset(self.execution))

    @precondition(lambda self: self.features.pauses)
    @rule()
    def pause(self) -> None:
        """Scheduling is paused, or goes on."""
        self._apply(self.generator.unpause() if self.generator.paused else self.generator.pause())

    def teardown(self) -> None:
        """The faults stop, and everything must come to its end."""
        if self.over:
            return
        for action in settle_actions(self.execution):
            self._apply(action)

    def _apply(self, action: Action | None) -> None:
        """Let an action happen and judge it; None: there was nothing to do."""
        if action is None or self.over:
            return
        self.actions.append(action)
        moment = self.execution.apply(action)
        violations = self.judge.feed(moment)
        if violations:
            self.over = True
            raise ViolationFound(self.run, tuple(violations))
        self.passed_by(moment)

    def passed_by(self, moment: Moment) -> None:
        """A moment that breaks nothing; for those who count what comes up."""


def machine_for(
    target: Target, features: Features = ALL_FEATURES, layout: Layout | None = None
) -> type[KVCacheMachine]:
    """A state machine for this target, on random layouts or on the one given; run its ``TestCase`` with pytest."""
    content: dict[str, Any] = {"target": target, "features": features, "fixed_layout": layout}
    return type("KVCacheMachine", (KVCacheMachine,), content)
