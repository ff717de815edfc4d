"""A server that was put back into a state goes on as the one that was left there."""

from __future__ import annotations

import random

import pytest

from kvcheck.explorer.scope import ServerScope, names, scope_of
from kvcheck.explorer.server import Server
from kvcheck.model.faults import NO_FAULTS

SERVERS = [name for name in names() if isinstance(scope_of(name), ServerScope)]


@pytest.mark.parametrize("name", SERVERS)
def test_a_walk_is_the_same_whether_states_are_kept_and_put_back_or_not(name: str) -> None:
    """Between any two moves of the second server others happen, which are undone by putting the state back."""
    scope = scope_of(name)
    assert isinstance(scope, ServerScope)
    rng = random.Random(name)
    for _ in range(20):
        straight, disturbed = Server(scope, NO_FAULTS), Server(scope, NO_FAULTS)
        straight.canonical()
        disturbed.canonical()
        for _ in range(25):
            moves = list(straight.moves())
            assert moves == list(disturbed.moves())
            kept = disturbed.save()
            for other in rng.sample(moves, min(2, len(moves))):
                disturbed.apply(other)
                disturbed.canonical()
                disturbed.load(kept)
            move = rng.choice(moves)
            assert straight.own_move() == disturbed.own_move()
            assert straight.apply(move) == disturbed.apply(move) == []
            assert straight.canonical() == disturbed.canonical()


def following(server: Server) -> list[tuple[str, bytes, list[str]]]:
    """What all moves lead to: kind, key, what is broken."""
    kept, seen = server.save(), []
    for move in list(server.moves()):
        server.load(kept)
        broken = [violation.signature for violation in server.apply(move)]
        seen.append((server.kind_of(move), server.canonical(), broken))
    server.load(kept)
    return sorted(seen)


@pytest.mark.parametrize("name", SERVERS)
def test_two_ways_to_one_key_have_the_same_future(name: str) -> None:
    """Otherwise the key would leave something out, and the search miss what only one of them leads to."""
    scope = scope_of(name)
    assert isinstance(scope, ServerScope)
    rng, futures, again = random.Random(name), {}, 0
    for _ in range(60):
        server = Server(scope, NO_FAULTS)
        for _ in range(20):
            key = server.canonical()
            future = following(server)
            again += key in futures
            assert futures.setdefault(key, future) == future
            moves = list(server.moves())
            if not moves:
                break
            server.apply(rng.choice(moves))
    assert again > 100
