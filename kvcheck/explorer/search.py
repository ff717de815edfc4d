"""Breadth-first search over canonical states: every state of a scope once, each by a shortest way."""

from __future__ import annotations

import gc
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

import msgspec

from kvcheck.invariants.registry import Violation

State = TypeVar("State")
Move = TypeVar("Move")

FINGERPRINT_BITS = sys.hash_info.hash_bits
"""Of Python's own hash of bytes, a keyed SipHash: 64 on all but small machines."""
NOWHERE = -1


class World(Protocol[State, Move]):
    """What is explored: something in a state, which moves can change."""

    def save(self) -> State:
        """The state that it is in."""

    def load(self, state: State) -> None:
        """Be in that state again."""

    def moves(self) -> Iterable[Move]:
        """All that can happen in this state, in a fixed order."""

    def kind_of(self, move: Move) -> str:
        """Which kind of move it is."""

    def apply(self, move: Move) -> list[Violation]:
        """Let it happen; what that breaks."""

    def check(self) -> list[Violation]:
        """What is wrong with the state itself. Asked once for each."""

    def canonical(self) -> bytes:
        """The same for two states that differ in names only."""

    def own_move(self) -> Move | None:
        """What happens next if the world outside keeps still; None: there is no work, or it waits for the outside."""


class Found(msgspec.Struct, Generic[Move], frozen=True):
    """A violation, with the moves of a shortest way to it."""

    violation: Violation
    way: tuple[Move, ...]


class Explored(msgspec.Struct, Generic[Move]):
    """How far a search got. ``complete``: there is no state within the scope that it has not seen. ``left``: states
    that were seen and not looked into.

    ``depth``: moves to the farthest state. ``collision``: how likely it is that two states had the same fingerprint, so
    that one was taken for the other. By kind of move: ``enabled``, the states in which it could happen; ``taken``, how
    often it did; ``new``, how often it led to a new state. ``found``: all that is broken at the smallest depth at which
    something is. ``cycle``: the shortest way to a state that the server's own moves lead back to though there is work,
    and these moves.
    """

    complete: bool
    left: int
    states: int
    transitions: int
    depth: int
    seconds: float
    collision: float
    enabled: Counter[str]
    taken: Counter[str]
    new: Counter[str]
    found: list[Found[Move]]
    cycle: tuple[tuple[Move, ...], tuple[Move, ...]] | None


class Search(Generic[State, Move]):
    """One search. Of each state it remembers a fingerprint, the state it was found from, the move that led to it, and
    where the world's own move leads."""

    def __init__(self, world: World[State, Move]) -> None:
        self._world = world
        self._ids: dict[int, int] = {}
        self._parents = array("l")
        self._moves: list[Move | None] = []
        self._own = array("l")
        self._own_moves: dict[int, Move] = {}
        self._enabled: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()
        self._new: Counter[str] = Counter()
        self._found: dict[str, Found[Move]] = {}

    def run(self, goes_on: Callable[[], bool]) -> Explored[Move]:
        """Search until all is seen, or something is broken and all of the same depth is found, while it ``goes_on``."""
        began = time.monotonic()
        with _without_garbage_collection():
            left, depth = self._search(goes_on)
        states = len(self._ids)
        return Explored(
            complete=not left and not self._found,
            left=left,
            states=states,
            transitions=self._taken.total(),
            depth=depth,
            seconds=time.monotonic() - began,
            collision=states * (states - 1) / 2 / 2**FINGERPRINT_BITS,
            enabled=self._enabled,
            taken=self._taken,
            new=self._new,
            found=list(self._found.values()),
            cycle=self._cycle(),
        )

    def _search(self, goes_on: Callable[[], bool]) -> tuple[int, int]:
        """How many states were left when it was told to stop, and the depth."""
        self._arrive(NOWHERE, None)
        frontier, depth = [(0, self._world.save())], 0
        while frontier and not self._found:
            following: list[tuple[int, State]] = []
            for place, (number, state) in enumerate(frontier):
                if not goes_on():
                    return len(frontier) - place + len(following), depth + bool(following)
                self._expand(number, state, following)
            depth += bool(following)
            frontier = following
        return len(frontier), depth

    def _expand(self, number: int, state: State, following: list[tuple[int, State]]) -> None:
        """Let everything happen that can happen in one state."""
        world = self._world
        world.load(state)
        own, moves = world.own_move(), list(world.moves())
        kinds = [world.kind_of(move) for move in moves]
        self._enabled.update(set(kinds))
        self._taken.update(kinds)
        for place, move in enumerate(moves):
            if place:
                world.load(state)
            broken = world.apply(move)
            if not broken:
                target, is_new = self._arrive(number, move)
                if is_new:
                    self._new[kinds[place]] += 1
                    broken = world.check()
                    following.append((target, world.save()))
                if own is not None and move == own:
                    self._own[number] = target
                    self._own_moves[number] = move
            for violation in broken:
                self._found.setdefault(violation.signature, Found(violation, (*self._way(number), move)))

    def _arrive(self, parent: int, move: Move | None) -> tuple[int, bool]:
        """The number of the state that the world is in, and whether it is a new one."""
        fingerprint = hash(self._world.canonical())
        known = self._ids.get(fingerprint)
        if known is not None:
            return known, False
        self._ids[fingerprint] = number = len(self._ids)
        self._parents.append(parent)
        self._moves.append(move)
        self._own.append(NOWHERE)
        return number, True

    def _way(self, number: int) -> tuple[Move, ...]:
        """The moves to a state."""
        moves: list[Move] = []
        while (move := self._moves[number]) is not None:
            moves.append(move)
            number = self._parents[number]
        return tuple(reversed(moves))

    def _cycle(self) -> tuple[tuple[Move, ...], tuple[Move, ...]] | None:
        """The first state, in the order in which they were found, that its own moves lead back to."""
        seen_from = array("l", [NOWHERE]) * len(self._own)
        on_cycles = []
        for start in range(len(self._own)):
            number = start
            while number != NOWHERE and seen_from[number] == NOWHERE:
                seen_from[number] = start
                number = self._own[number]
            if number != NOWHERE and seen_from[number] == start:
                on_cycles.append(min(self._around(number)))
        if not on_cycles:
            return None
        first = min(on_cycles)
        return self._way(first), tuple([self._own_moves[number] for number in self._around(first)])

    def _around(self, number: int) -> list[int]:
        """The states of the cycle that a state is on, from there."""
        states = [number]
        while (following := self._own[states[-1]]) != number:
            states.append(following)
        return states


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A search makes millions of tuples and no cycles of references; looking for some takes half of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
