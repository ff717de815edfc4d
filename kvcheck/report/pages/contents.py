"""What blocks hold, in words: whose tokens, which of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from kvcheck.model.content import EMPTY, GARBAGE, POISON, UNSETTLED
from kvcheck.model.shadow import Shadow

UNKNOWN = -5
"""The owner of content that nobody's tokens lead to."""
SPECIAL: dict[int, tuple[int, str]] = {
    EMPTY: (-1, "never written"),
    POISON: (-2, "not written since handed out"),
    UNSETTLED: (-3, "of a rejected draft"),
    GARBAGE: (-4, "what a failed load left"),
}
"""Owner and words for cells that hold nobody's tokens."""


class Cell(NamedTuple):
    """``owner``: number of the request that had these tokens first, or one below 0. ``position``: in its tokens."""

    owner: int
    position: int
    text: str


class Content(NamedTuple):
    """What a block holds. ``owner``: of its last cell that holds somebody's tokens, else of its first."""

    owner: int
    text: str


class Contents:
    """Names what a shadow worker's blocks hold; equal contents get equal numbers, their places in ``all``.

    A prefix that several requests share is called by the one that had it first. ``labels``: in order of arrival.
    """

    def __init__(self, shadow: Shadow) -> None:
        self.labels: list[str] = []
        self.all: list[Content] = []
        self._shadow = shadow
        self._numbers: dict[Content, int] = {}
        self._owners: dict[str, int] = {}
        self._names: dict[int, tuple[int, int]] = {}
        self._known: dict[str, tuple[int, int]] = {}

    def learn(self) -> None:
        """Take note of all tokens that exist by now."""
        for label, prefixes in self._shadow.prefixes.items():
            known, last = self._known.get(label, (0, 0))
            length, owner = len(prefixes.tokens), self._number(label)
            same = 0 < known <= length and prefixes.id_of(known) == last  # a session may go on with other tokens
            begin = known if same else 0
            for position, identity in enumerate(prefixes.ids(length)[begin:].tolist(), begin):
                self._names.setdefault(identity, (owner, position))
            self._known[label] = (length, prefixes.id_of(length) if length else 0)

    def _number(self, label: str) -> int:
        """The place of a label in ``labels``, where it is put if it is new."""
        if label not in self._owners:
            self._owners[label] = len(self.labels)
            self.labels.append(label)
        return self._owners[label]

    def of(self, block: int) -> int:
        """The number of what this block holds now."""
        content = self._content(block)
        if content not in self._numbers:
            self._numbers[content] = len(self.all)
            self.all.append(content)
        return self._numbers[content]

    def _content(self, block: int) -> Content:
        cells: list[int] = self._shadow.cells[block].tolist()
        group = self._group(cells)
        if group is None:
            owner, word = SPECIAL.get(cells[0], (UNKNOWN, "not known"))
            return Content(owner, word)
        if not self._shadow.layout.groups[group].is_attention:
            owner, position, _ = self._cell(cells[0], group)
            return Content(owner, f"group {group}: the state of {self.labels[owner]} after {position + 1} tokens")
        named = [self._cell(cell, group) for cell in cells[: self._shadow.sizes[group]]]
        owner = next(cell.owner for cell in reversed(named) if cell.owner >= 0)
        return Content(owner, f"group {group}: {', '.join(_stretches(named))}")

    def _group(self, cells: list[int]) -> int | None:
        """The group whose layers wrote the first cell that they wrote; None if there is none."""
        written = next((cell for cell in cells if cell not in SPECIAL), None)
        if written is None:
            return None
        groups = range(len(self._shadow.layout.groups))
        return next((group for group in groups if self._shadow.identity(written, group) in self._names), None)

    def _cell(self, cell: int, group: int) -> Cell:
        if cell in SPECIAL:
            owner, text = SPECIAL[cell]
            return Cell(owner, -1, text)
        owner, position = self._names.get(self._shadow.identity(cell, group), (UNKNOWN, -1))
        return Cell(owner, position, self.labels[owner] if owner >= 0 else "not known")


def _stretches(cells: list[Cell]) -> Iterator[str]:
    """Cells that follow each other in one request's tokens, or hold nobody's, as one piece of text each."""
    for _, stretch in groupby(enumerate(cells), lambda place: _stretch_of(*place)):
        members = [cell for _, cell in stretch]
        first, last = members[0], members[-1]
        if first.owner < 0:
            yield f"{len(members)} {first.text}"
        else:
            span = f"{first.position}" if first is last else f"{first.position}..{last.position}"
            yield f"{first.text} {span}"


def _stretch_of(place: int, cell: Cell) -> tuple[int, int]:
    """The same for cells of one stretch."""
    return cell.owner, cell.position - place if cell.owner >= 0 else cell.position
