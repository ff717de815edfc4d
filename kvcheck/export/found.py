"""A violation at its moment: what an export is about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvcheck.engines.execution import Execution
from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.moment import Moment
from kvcheck.invariants.registry import Finding, Invariant, Judge, Violation, all_invariants
from kvcheck.model.actions import Action
from kvcheck.model.layout import Layout
from kvcheck.model.observation import Observation, Trace
from kvcheck.targets.recorded import RecordedSession


class Found:
    """A recording, judged again up to the moment that broke a claim.

    ``actions``: what happened up to there, without what had no subject. ``ledger``: as it was before the moment.
    ``answers``: tokens that were sampled, by request and position.
    """

    def __init__(self, trace: Trace, violation: Violation) -> None:
        self.trace = trace
        self.violation = violation
        session = RecordedSession(trace)
        execution = Execution(session, trace.run.layout, trace.run.level)
        self.ledger = Ledger(execution.layout, session.promises, execution.shadow)
        self.answers: dict[str, dict[int, int]] = {}
        judge = Judge(self.ledger)
        for action in trace.run.actions[: violation.index]:
            session.advance()
            judge.feed(execution.apply(action))
            self._note_answers(execution)
        session.advance()
        self.moment: Moment = execution.apply(trace.run.actions[violation.index])
        self._note_answers(execution)

    @property
    def layout(self) -> Layout:
        """What the server was configured with."""
        return self.trace.run.layout

    @property
    def invariant(self) -> Invariant:
        """The claim that was broken."""
        return next(one for one in all_invariants() if one.id == self.violation.invariant)

    @property
    def detail(self) -> str:
        """The distinction within the invariant that its signature names; empty if there is none."""
        words = self.violation.signature.split()[1:-2]
        return " ".join(words)

    @property
    def actions(self) -> list[tuple[Action, Observation]]:
        """The actions that had a subject, up to the one that broke the claim."""
        pairs = zip(self.trace.run.actions, self.trace.observations, strict=False)
        return [pair for pair in list(pairs)[: self.violation.index + 1] if not pair[1].skipped]

    def broken(self) -> Iterator[tuple[Any, Finding]]:
        """Each event (or the moment) that breaks the claim, with the ledger as it is at that instant."""
        ledger, invariant = self.ledger, self.invariant
        ledger.begin(self.moment)
        for event in self.moment.observation.log:
            if invariant.event is not None and isinstance(event, invariant.event):
                for finding in invariant.check(event, ledger):
                    yield event, finding
            ledger.apply(event)
        ledger.end(self.moment)
        if invariant.event is None:
            for finding in invariant.check(self.moment, ledger):
                yield self.moment, finding

    def _note_answers(self, execution: Execution) -> None:
        """What was sampled last, and for ordinary requests what sampling will give."""
        drafts = self.layout.draft_tokens
        for label, row in execution.shadow.rows.items():
            tokens, there = row.prefixes.token_list(row.known), self.answers.setdefault(label, {})
            for position in range(max(0, row.known - 1 - drafts), row.known):
                there.setdefault(position, tokens[position])
