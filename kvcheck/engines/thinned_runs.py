"""Random runs that ask for one text again and again, each time with a few of its cached keys gone.

What the groups have of the text differs most then, so these runs try the lookup far more often than others do.
"""

from __future__ import annotations

from kvcheck.engines.execution import Execution
from kvcheck.engines.random_drafts import Acceptance
from kvcheck.engines.random_prompts import STREAMS, Lengths
from kvcheck.engines.source import Source
from kvcheck.model.actions import Abort, Action, Arrive, Evict, Schedule
from kvcheck.model.layout import Layout

MOST_EVICTED = 4
"""Keys that are evicted before the text is asked for again, at most: with more there is nothing left to hit."""


class ThinnedGenerator:
    """Draws the actions of one run: one request after the other, each to its first token; some go away before."""

    def __init__(self, source: Source, layout: Layout) -> None:
        self._source = source
        self._lengths = Lengths(source, layout)
        self._accepts = Acceptance(source, layout)
        self._text = source.choose(STREAMS)
        self._abort_percent = source.choose((0, 20, 40, 60))
        self._due: list[Evict] = []
        self._thinned = 0

    def next(self, execution: Execution) -> Action:
        """The next action of the run."""
        if execution.in_flight:
            return self._accepts.complete(execution)
        for label, request in execution.view.requests.items() if execution.view else ():
            gives_up = request.computed and self._source.chance(self._abort_percent)
            return Abort(label=label) if gives_up else Schedule()
        arrived = len(execution.arrivals)
        if arrived > self._thinned:
            self._thinned = arrived
            self._due = self._some(_cached(execution))
        return self._due.pop() if self._due else self._asked_again(arrived)

    def _some(self, keys: list[Evict]) -> list[Evict]:
        return [self._source.choose(keys) for _ in range(self._source.integer(0, MOST_EVICTED))] if keys else []

    def _asked_again(self, arrived: int) -> Arrive:
        """A request for half of the longest prompt or more."""
        longest = self._lengths.longest
        length = self._lengths.between(max(1, longest // 2), longest)
        return Arrive(label=f"r{arrived}", prompt=self._text[:length], max_tokens=1)


def _cached(execution: Execution) -> list[Evict]:
    """How to evict each key of the last request's text that is there; keys may cover tokens after them too (R12.18)."""
    label = next(reversed(execution.arrivals))
    prefixes, ahead = execution.shadow.prefixes[label], execution.session.promises.hash_lookahead
    return [
        Evict(group=group, label=label, prefix=length)
        for group, _, length, key in (execution.view.keys if execution.view else ())
        if length + ahead <= len(prefixes.tokens) and prefixes.id_of(length + ahead) == key
    ]
