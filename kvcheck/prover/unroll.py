"""Code that asks for yes or no, run once for every way in which it can be answered.

So the model's own lookups are proved for any set of cached blocks: not a copy of them is looked at, but they.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
Ask = Callable[[Hashable], bool]


class _Way:
    """One way through: the first answers are prescribed, all others are yes. Each thing is answered once."""

    def __init__(self, prescribed: Sequence[bool]) -> None:
        self._prescribed = prescribed
        self.answers: dict[Hashable, bool] = {}

    def ask(self, question: Hashable) -> bool:
        """The answer on this way."""
        if question not in self.answers:
            place = len(self.answers)
            self.answers[question] = self._prescribed[place] if place < len(self._prescribed) else True
        return self.answers[question]


def paths(run: Callable[[Ask], T]) -> Iterator[tuple[dict[Hashable, bool], T]]:
    """All ways through ``run``: the answers that it got, and its result. It must be deterministic and end."""
    prescribed: list[bool] = []
    while True:
        way = _Way(prescribed)
        result = run(way.ask)
        yield way.answers, result
        prescribed = list(way.answers.values())
        while prescribed and not prescribed[-1]:
            prescribed.pop()
        if not prescribed:
            return
        prescribed[-1] = False
