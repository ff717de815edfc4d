"""Breadth-first search on toy worlds whose states can be counted by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from kvcheck.explorer.search import Explored, Search
from kvcheck.invariants.registry import Violation


class Toy:
    """A number that moves change. ``edges``: by number, the moves and where they lead; ``own``: by number, the move
    that happens by itself; ``bad``: numbers that a move breaks something by reaching; ``wrong``: that are wrong."""

    def __init__(
        self,
        edges: dict[int, dict[str, int]],
        own: dict[int, str] | None = None,
        bad: tuple[int, ...] = (),
        wrong: tuple[int, ...] = (),
        name: Callable[[int], int] = lambda state: state,
    ) -> None:
        self.edges, self.own, self.bad, self.wrong, self.name = edges, own or {}, bad, wrong, name
        self.state = 0

    def save(self) -> int:
        return self.state

    def load(self, state: int) -> None:
        self.state = state

    def moves(self) -> Iterable[str]:
        return self.edges.get(self.state, {})

    def kind_of(self, move: str) -> str:
        return move[0]

    def apply(self, move: str) -> list[Violation]:
        self.state = self.edges[self.state][move]
        return [broken(f"bad {self.state}")] if self.state in self.bad else []

    def check(self) -> list[Violation]:
        return [broken(f"wrong {self.state}")] if self.state in self.wrong else []

    def canonical(self) -> bytes:
        return str(self.name(self.state)).encode()

    def own_move(self) -> str | None:
        return self.own.get(self.state)


def broken(signature: str) -> Violation:
    return Violation("toy", "stall", signature, signature, 0)


def searched(world: Toy, states: int = 1000) -> Explored[str]:
    left = iter(range(states))
    return Search[int, str](world).run(lambda: next(left, None) is not None)


DIAMOND = {0: {"a": 1, "b": 2}, 1: {"a": 3}, 2: {"b": 3, "c": 0}, 3: {}}


def test_every_state_is_seen_once_by_a_shortest_way() -> None:
    explored = searched(Toy(DIAMOND))
    assert (explored.complete, explored.states, explored.transitions, explored.depth) == (True, 4, 5, 2)
    assert dict(explored.enabled) == {"a": 2, "b": 2, "c": 1}
    assert dict(explored.taken) == {"a": 2, "b": 2, "c": 1}
    assert dict(explored.new) == {"a": 2, "b": 1}
    assert (explored.found, explored.cycle) == ([], None)


def test_states_with_the_same_key_are_one() -> None:
    explored = searched(Toy(DIAMOND, name=lambda state: {2: 1}.get(state, state)))
    assert (explored.states, explored.transitions) == (3, 3)


def test_a_move_of_one_kind_is_enabled_once_in_a_state() -> None:
    explored = searched(Toy({0: {"a1": 1, "a2": 2}}))
    assert (dict(explored.enabled), dict(explored.taken)) == ({"a": 1}, {"a": 2})


@pytest.mark.parametrize("how", ["bad", "wrong"])
def test_a_violation_comes_with_a_shortest_way_and_ends_the_search_at_its_depth(how: str) -> None:
    edges = {0: {"a": 1, "b": 2}, 1: {"c": 3}, 2: {"d": 4, "e": 5}, 3: {"f": 6}, 4: {"g": 7}}
    explored = searched(Toy(edges, **{how: (3, 5, 6)}))  # type: ignore[arg-type]
    assert [(f.violation.signature, f.way) for f in explored.found] == [
        (f"{how} 3", ("a", "c")),
        (f"{how} 5", ("b", "e")),
    ]
    assert not explored.complete


def test_a_search_that_is_cut_says_so() -> None:
    endless = Toy({n: {"a": n + 1} for n in range(100)})
    explored = searched(endless, states=10)
    assert (explored.complete, explored.states) == (False, 11)
    assert 0 < explored.collision < 1e-16


def test_own_moves_that_lead_back_are_a_cycle_found_by_a_shortest_way() -> None:
    edges = {0: {"x": 1, "y": 2}, 1: {"x": 3}, 2: {"y": 3}, 3: {"a": 4, "x": 5}, 4: {"b": 3}, 5: {}}
    explored = searched(Toy(edges, own={0: "x", 1: "x", 3: "a", 4: "b"}))
    assert explored.cycle == (("x", "x"), ("a", "b"))
    assert explored.complete


def test_moves_of_the_outside_that_lead_back_are_no_cycle() -> None:
    edges = {0: {"x": 1}, 1: {"x": 0, "a": 2}, 2: {}}
    assert searched(Toy(edges, own={1: "a"})).cycle is None


def test_a_move_that_changes_nothing_is_a_cycle_of_one() -> None:
    assert searched(Toy({0: {"a": 0}}, own={0: "a"})).cycle == ((), ("a",))
