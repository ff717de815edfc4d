"""The scripted connector: what it answers is in the arrivals, so that a run says all (R7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvcheck.model.actions import Answer, Arrive
from kvcheck.model.layout import Layout
from kvcheck.model.observation import Load, Store, Tables

_NO_ANSWER = Answer()


class ScriptState(NamedTuple):
    """Arrivals, questions ``asked`` so far, the last answers, loads under way, whether it has settled."""

    arrivals: tuple[Arrive, ...]
    asked: tuple[tuple[str, int], ...]
    answers: tuple[tuple[str, tuple[int, Answer]], ...]
    loading: frozenset[str]
    settled: bool


class Script:
    """The scheduler's side of one connector. The k-th question for a request gets its k-th answer; the last repeats.

    ``by_request``: a failed load is told by request, so that a load before a step, whose request never waited, always
    arrives whole.
    """

    def __init__(self, layout: Layout, by_request: bool) -> None:
        self._layout = layout
        self._by_request = by_request
        self._arrivals: dict[str, Arrive] = {}
        self._asked: dict[str, int] = {}
        self._answers: dict[str, tuple[int, Answer]] = {}
        self._loads: list[Load] = []
        self._stores: list[Store] = []
        self._loading: set[str] = set()
        self._settled = False

    def arrive(self, request: Arrive) -> None:
        """A request exists."""
        self._arrivals[request.label] = request

    def settle(self) -> None:
        """From now on it answers at once and loads arrive whole."""
        self._settled = True

    def ask(self, label: str, known: int, local: int) -> tuple[int | None, bool]:
        """Tokens beyond the ``local`` ones that it has of ``known`` ones, and whether it loads them asynchronously."""
        answers = self._arrivals[label].answers
        count = self._asked.get(label, 0)
        self._asked[label] = count + 1
        answer = answers[min(count, len(answers) - 1)] if answers else _NO_ANSWER
        self._answers[label] = local, answer
        if answer.holds is None and not self._settled:
            return None, False
        external = max(0, min(answer.holds or 0, known) - local)
        if external and local + external == known and self._keeps_last(known, answer):
            external -= 1
        return external, self._is_asynchronous(answer) and external > 0

    def _is_asynchronous(self, answer: Answer) -> bool:
        return answer.asynchronous or self.divergent

    @property
    def divergent(self) -> bool:
        """Whether it declares support for local hits of unequal length."""
        return self._layout.connector is not None and self._layout.connector.divergent

    def _keeps_last(self, known: int, answer: Answer) -> bool:
        """Whether the last token must be computed here.

        In the step of the load it always is; a recurrent layer would run it on a state that is already past it; and a
        request of one token would count none as computed and be asked about again.
        """
        return not self._is_asynchronous(answer) or self._layout.has_mamba or known == 1

    def allocated(self, label: str, tables: Tables, fresh: Sequence[int], external: int) -> None:
        """The request has its blocks; external tokens will be loaded into them. ``fresh`` blocks had no key."""
        local, answer = self._answers[label]
        asynchronous = self._is_asynchronous(answer)
        whole = self._settled or (self._by_request and not asynchronous)
        arrives = None if whole else answer.arrives
        if arrives is not None and arrives >= external:
            arrives = None
        if asynchronous:
            self._loading.add(label)
        self._loads.append(Load(label, local, external, asynchronous, tables, tuple(fresh), arrives))

    def over(self, labels: Iterable[str]) -> None:
        """These loads are over."""
        self._loading.difference_update(labels)

    def finished(self, label: str, ended_well: bool, written: int, tables: Tables) -> bool:
        """The request is over, its first ``written`` tokens are computed; whether its blocks are kept for a store."""
        connector = self._layout.connector
        produces = connector is not None and connector.role != "consumer"
        keeps = self._arrivals[label].store and produces and any(tables) and label not in self._loading
        if not keeps or not ended_well:
            return False
        self._stores.append(Store(label, written, tables))
        return True

    def take_loads(self) -> tuple[Load, ...]:
        """Loads that began since the last call."""
        loads = tuple(self._loads)
        self._loads.clear()
        return loads

    def snapshot(self) -> ScriptState:
        """The state between two actions."""
        return ScriptState(
            tuple(self._arrivals.values()),
            tuple(self._asked.items()),
            tuple(self._answers.items()),
            frozenset(self._loading),
            self._settled,
        )

    def restore(self, state: ScriptState) -> None:
        """Put a state back."""
        arrivals, asked, answers, loading, self._settled = state
        self._arrivals = {request.label: request for request in arrivals}
        self._asked, self._answers, self._loading = dict(asked), dict(answers), set(loading)
        self._loads.clear()
        self._stores.clear()

    def take_stores(self) -> tuple[Store, ...]:
        """Stores that began since the last call."""
        stores = tuple(self._stores)
        self._stores.clear()
        return stores
