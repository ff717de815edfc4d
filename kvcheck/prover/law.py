"""The registry of laws: each is one function that says it, with an id, a claim, and the faults that it refutes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcheck.model.actions import Run
from kvcheck.model.faults import FAULTS, Faults
from kvcheck.model.layout import Layout
from kvcheck.prover.sizes import NONE

if TYPE_CHECKING:
    from kvcheck.prover.statement import Statement

Numbers = dict[str, Any]
"""A counterexample: the variables of a statement by name, as ints and bools."""
Says = Callable[["Statement", Faults], None]
Replays = Callable[[Numbers], Iterator[Run]]


@dataclass(frozen=True)
class Law:
    """``scope``: which numbers are symbolic and which literal, besides those that the encoding decides.
    ``sizes``: for which sizes of blocks it is proved, or for more.
    ``refutes``: the faults that make it wrong. ``replays``: from a counterexample to runs that may break one of the
    invariants that it ``shows`` as, of which only the beginnings are told.
    ``layouts``: those that it is said for, if whole layouts are literal; a counterexample tells which, by ``layout``.
    ``instance``: another law, whose counterexample is replayed for a law about things without numbers."""

    id: str
    claim: str
    rules: tuple[str, ...]
    scope: str
    sizes: str
    refutes: tuple[str, ...]
    says: Says
    replays: Replays | None = None
    shows: tuple[str, ...] = ()
    layouts: tuple[Layout, ...] = ()
    instance: str = ""

    def said_for(self, sizes: str) -> str:
        """For which numbers it holds, if it does for these sizes of blocks."""
        return "; ".join(filter(None, (self.scope, sizes)))

    def covers(self, faults: Sequence[str]) -> bool:
        """Whether it refutes one of these faults."""
        return not set(self.refutes).isdisjoint(faults)


LAWS: dict[str, Law] = {}
TOPICS = (
    "agreement",
    "registration",
    "states",
    "capability",
    "divergence",
    "chunks",
    "windows",
    "estimates",
    "pool",
    "lookahead",
)
"""The files with laws."""


def all_laws() -> list[Law]:
    """All laws, topic by topic. Needs no prover."""
    for topic in TOPICS:
        importlib.import_module(f"kvcheck.prover.statements.{topic}")
    return sorted(LAWS.values(), key=lambda one: TOPICS.index(one.id.partition(".")[0]))


def law(
    identifier: str,
    claim: str,
    rules: str,
    scope: str,
    sizes: str = NONE,
    refutes: str = "",
    replays: Replays | None = None,
    shows: str = "",
    layouts: tuple[Layout, ...] = (),
    instance: str = "",
) -> Callable[[Says], Says]:
    """Register the function that says a law."""

    def register(says: Says) -> Says:
        faults = tuple(refutes.split())
        assert identifier not in LAWS
        assert set(faults) <= set(FAULTS), faults
        LAWS[identifier] = Law(
            identifier,
            claim,
            tuple(rules.split()),
            scope,
            sizes,
            faults,
            says,
            replays,
            tuple(shows.split()),
            layouts,
            instance,
        )
        return says

    return register
