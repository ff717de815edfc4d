"""The pool as something to explore: its key merges exactly what differs in names."""

from __future__ import annotations

from itertools import permutations

import pytest

from kvcheck.explorer.pool import PoolLayout, PoolMove, PoolState, PoolWorld
from kvcheck.explorer.search import Search
from kvcheck.model.faults import NO_FAULTS, faults_on

Plain = tuple[object, ...]


def all_states(layout: PoolLayout) -> list[PoolState]:
    """Every state, names and all, found without any key."""
    world = PoolWorld(layout, NO_FAULTS)
    first = world.save()
    seen, waiting = {plain(first): first}, [first]
    while waiting:
        state = waiting.pop()
        world.load(state)
        for move in list(world.moves()):
            world.load(state)
            assert world.apply(move) == []
            assert world.check() == []
            reached = world.save()
            if plain(reached) not in seen:
                seen[plain(reached)] = reached
                waiting.append(reached)
    return list(seen.values())


def plain(state: PoolState) -> Plain:
    """What tells states apart; the order in which keys came is no part of it."""
    return state.free, tuple(sorted(state.holders)), state.tables, state.published


def renamed(state: PoolState, blocks: tuple[int, ...], requests: tuple[int, ...]) -> Plain:
    return (
        tuple(blocks[b] for b in state.free),
        tuple(sorted((name, tuple(blocks[b] for b in held)) for name, held in state.holders)),
        tuple(tuple(blocks[b] for b in state.tables[request]) for request in requests),
        tuple(state.published[request] for request in requests),
    )


@pytest.mark.parametrize(("blocks", "columns"), [(3, 1), (3, 2), (4, 2)])
def test_two_states_have_the_same_key_only_if_a_renaming_makes_them_equal(blocks: int, columns: int) -> None:
    layout = PoolLayout(blocks=blocks, requests=2, columns=columns)
    world, classes = PoolWorld(layout, NO_FAULTS), {}
    states = all_states(layout)
    for state in states:
        orbit = min(
            repr(renamed(state, (0, *p), requests))
            for p in permutations(range(1, blocks))
            for requests in permutations(range(2))
        )
        world.load(state)
        classes.setdefault(orbit, set()).add(world.canonical())
    assert {len(keys) for keys in classes.values()} == {1}
    assert len({key for keys in classes.values() for key in keys}) == len(classes)
    found = Search[PoolState, PoolMove](PoolWorld(layout, NO_FAULTS)).run(lambda: True)
    assert (found.complete, found.states) == (True, len(classes))
    without = Search[PoolState, PoolMove](PoolWorld(layout, NO_FAULTS, symmetric=False)).run(lambda: True)
    assert without.states == len(states)


@pytest.mark.parametrize(
    ("fault", "signature", "moves"),
    [
        ("unregistered-blocks-age", "ownership.reuse-order pool", 2),
        ("reset-keeps-keys", "system.reset pool", 4),
        ("removal-with-copy-left", "registration.events pool", 7),
    ],
)
def test_what_the_pool_does_wrong_is_found_by_a_shortest_way(fault: str, signature: str, moves: int) -> None:
    world = PoolWorld(PoolLayout(blocks=5, requests=2, columns=2), faults_on([fault]))
    found = Search[PoolState, PoolMove](world).run(lambda: True).found
    assert (found[0].violation.signature, len(found[0].way)) == (signature, moves)


@pytest.mark.parametrize(
    ("spoil", "signature"),
    [
        (lambda world: world.pool.refs.__setitem__(1, 2), "ownership.references pool"),
        (lambda world: world.pool.free.pop(3), "ownership.free-queue pool"),
        (lambda world: world.pool.keys.pop(1), "registration.map pool"),
    ],
)
def test_a_state_that_is_wrong_in_itself_is_told(spoil: object, signature: str) -> None:
    world = PoolWorld(PoolLayout(blocks=5, requests=2, columns=2), NO_FAULTS)
    for kind in ("take", "publish"):
        world.apply(PoolMove(kind, 0))
    assert world.check() == []
    spoil(world)  # type: ignore[operator]
    assert [violation.signature for violation in world.check()] == [signature]
