"""What is proved of contracts and of a small server is what the model's own code does, on random states."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from kvcheck.model import laws
from kvcheck.model.cache import Cache
from kvcheck.model.coordinator import Blocks as Columns
from kvcheck.model.coordinator import Coordinator, LookupGroup
from kvcheck.model.faults import NO_FAULTS, Faults
from kvcheck.model.layout import Layout
from kvcheck.model.managers import MambaManager, Need
from kvcheck.model.pool import Pool
from kvcheck.prover.lookups import LAYOUTS
from kvcheck.prover.runs import CONNECTOR, EAGLE, group, layout
from kvcheck.prover.statements import estimates, pool

ROUNDS = 400


# ---- agreement.fixpoint: the loop ------------------------------------------------------------------------------------


class Cached:
    """A pool in which some prefixes are cached, at random."""

    def __init__(self, rng: random.Random, density: float) -> None:
        self._rng, self._density = rng, density
        self.known: dict[tuple[int, int], bool] = {}

    def find(self, groups: Sequence[int], name: int) -> list[int] | None:
        there = self.known.setdefault((groups[0], name), self._rng.random() < self._density)
        return [1] * len(groups) if there else None


class Watched(Coordinator):
    """A coordinator that tells of each lookup in its loop: group, candidate, whether it dropped, and its result."""

    def _verify(
        self, group: LookupGroup, names: list[int], candidate: int, cap: int, drops: bool
    ) -> tuple[Columns, int]:
        found, got = super()._verify(group, names, candidate, cap, drops)
        self.calls.append((self.lookup_groups.index(group), candidate, drops, got))
        return found, got

    calls: list[tuple[int, int, bool, int]]


def rounds_of(coordinator: Watched, cap: int, faults: Faults) -> int:
    """Where the loop of ``agreement.fixpoint`` ends, given what the lookups returned; every call must be its next."""
    calls, groups = iter(coordinator.calls), coordinator.lookup_groups
    length, own, verified = cap, {}, [False] * len(groups)
    while True:
        candidate = length
        for index, one in enumerate(groups):
            if one.whole_prefix and index in own:
                assert candidate <= own[index]
                continue
            dropped = one.manager.eagle and not verified[index]
            drops = dropped and not one.is_mamba
            called, asked, dropped_there, got = next(calls)
            assert (called, asked, dropped_there) == (index, candidate, drops)
            assert got <= candidate
            verified = [laws.drop_stands(was, got < candidate, dropped, faults) for was in verified]
            verified[index] = verified[index] or laws.drop_verified(dropped, faults)
            own[index] = candidate = got
        if candidate >= length or (len(groups) == 2 and groups[0].whole_prefix):
            assert next(calls, None) is None
            return candidate
        length = candidate


@pytest.mark.parametrize("of", LAYOUTS)
def test_the_loop_over_the_groups_is_the_one_that_is_proved(of: Layout) -> None:
    rng = random.Random(1)
    several = 0
    for _ in range(ROUNDS):
        coordinator = Watched(of, Cached(rng, rng.choice((0.6, 0.8, 0.95))), NO_FAULTS)  # type: ignore[arg-type]
        coordinator.calls = []
        longest = rng.randint(1, 40)
        agreed = coordinator.agree(list(range(1, longest + 1)), longest)
        assert rounds_of(coordinator, longest, NO_FAULTS) == agreed.length
        several += len(coordinator.calls) > len(coordinator.lookup_groups)
    assert several > 0 or len(coordinator.lookup_groups) == 2


# ---- pool.ownership: the small server --------------------------------------------------------------------------------


class Server:
    """The model's pool, and what the managers do with it to one block."""

    def __init__(self, blocks: int, requests: int) -> None:
        self.pool = Pool(blocks + 1, 1, False, NO_FAULTS)
        self.held: list[set[int]] = [set() for _ in range(requests)]
        self.ends: Counter[int] = Counter()
        self.names = 0

    def next_free(self) -> int:
        return next(iter(self.pool.free))

    def take(self, it: pool.Subject) -> None:
        self.held[it.request].update(self.pool.take(1))

    def share(self, it: pool.Subject) -> None:
        self.pool.touch([it.block + 1])
        self.held[it.request].add(it.block + 1)

    def hit_inside(self, it: pool.Subject) -> None:
        self.pool.touch([it.block + 1])
        (copy,) = self.pool.take(1)
        self.pool.hold(copy)
        self.held[it.request].add(copy)
        self.ends.update([it.block + 1, copy])

    def register(self, it: pool.Subject) -> None:
        self.names += 1
        self.pool.register(it.block + 1, (0, self.names, self.names))

    fill = register

    def write(self, it: pool.Subject) -> None:
        """Nothing that the pool sees."""

    def move(self, it: pool.Subject) -> None:
        (copy,) = self.pool.take(1)
        self.pool.move_keys(it.block + 1, copy)
        self.pool.hold(it.block + 1)
        self.ends.update([it.block + 1, copy])

    def give_up(self, it: pool.Subject) -> None:
        self.pool.release([it.block + 1])
        self.held[it.request].remove(it.block + 1)

    def end_pass(self, _it: pool.Subject) -> None:
        self.pool.release(self.ends.elements())
        self.ends.clear()

    def seen(self, state: pool.Blocks) -> dict[str, tuple[Any, ...]]:
        """What the small server has fields for."""
        blocks = range(1, len(state.refs) + 1)
        return {
            "refs": tuple(self.pool.refs[b] for b in blocks),
            "free": tuple(b in self.pool.free for b in blocks),
            "keyed": tuple(b in self.pool.keys for b in blocks),
            "ends": tuple(self.ends[b] for b in blocks),
            "held": tuple(tuple(b in held for b in blocks) for held in self.held),
        }


def test_what_happens_in_the_small_server_is_what_happens_in_the_models_pool() -> None:
    rng = random.Random(1)
    happened: Counter[str] = Counter()
    for _ in range(40):
        server, state = Server(pool.BLOCKS, pool.REQUESTS), pool.empty()
        for _ in range(60):
            happening = rng.choice(pool.HAPPENINGS)
            free = server.next_free() - 1 if server.pool.free else 0
            block = free if happening is pool.take else rng.randrange(pool.BLOCKS)
            it = pool.Subject(rng.randrange(pool.REQUESTS), block, free)
            server_takes_another = not (happening is pool.hit_inside and block == free)
            if not pool.possible(happening, state, it) or not server_takes_another:
                continue
            touched_first = happening is pool.hit_inside and state.free[block]
            getattr(server, happening.__name__)(it)
            if touched_first:  # the block that was hit left the queue first
                copy = max(server.held[it.request] & set(server.pool.taken[-1:]), default=free + 1)
                it = it._replace(other=copy - 1)
            state = happening(state, it, NO_FAULTS)
            happened[happening.__name__] += 1
            assert {name: getattr(state, name) for name in server.seen(state)} == server.seen(state)
            assert pool.owned(state)
            assert pool.named(state)
    assert set(happened) == {happening.__name__ for happening in pool.HAPPENINGS}


# ---- estimates: what an allocation takes -----------------------------------------------------------------------------


def allocations(of: Layout, rng: random.Random) -> list[tuple[Any, Need, int, int, bool, int]]:
    """Allocations for requests that begin with some hit and load and go on: the manager, what it is for, columns and
    whether a copy is owed before it grows, and blocks taken."""
    seen = []
    for _ in range(60):
        cache = Cache(of, NO_FAULTS)
        (manager,) = [m for m in cache.managers if m.index == len(of.groups) - 1]
        hit = rng.randint(0, 3)
        hits = cache.pool.take(hit)
        inside = hit > 0 and manager.has_tails and rng.random() < 0.5
        local = max(0, hit * manager.block - (of.hash_block if inside else 0))
        if isinstance(manager, MambaManager):
            hits = [0] * (hit - 1) + hits[-1:]
        external = rng.randint(1, 6) if not inside and of.connector and rng.random() < 0.7 else 0
        total = local + external
        main = total + rng.randint(1, 6)
        resume = laws.resumes_at(total, main, NO_FAULTS)
        need = Need(main + 1, main, resume, local, external, False)
        before = cache.pool.free_count
        if hits or external:
            manager.adopt("a", hits, resume, local)
            row = len(manager.row("a").blocks)
            if external:
                manager.load("a", total)
        else:
            row = 0
        copied = manager.row("a").tail is not None
        manager.grow("a", need.tokens, main)
        seen.append((manager, need, row, total if external else 0, copied, before - cache.pool.free_count))
        row_now = manager.row("a")
        owes = rng.random() < 0.5 and isinstance(manager, MambaManager)
        if owes:
            column = laws.state_column(main, manager.block)
            row_now.tail = column, row_now.blocks[column]
        more = main + rng.randint(1, 6)
        before, row = cache.pool.free_count, len(row_now.blocks)
        manager.grow("a", more + 1, more)
        need = Need(more + 1, more, main, main, 0, False)
        seen.append((manager, need, row, 0, owes, before - cache.pool.free_count))
    return seen


@pytest.mark.parametrize("drafter", [None, EAGLE])
def test_an_allocation_takes_what_the_statements_say(drafter: Any) -> None:
    rng = random.Random(1)
    for block in (1, 2, 3, 4):
        attention = layout(group("mamba", block), group("full", block), match_unit=1, connector=CONNECTOR)
        for manager, need, row, total, copied, taken in allocations(attention, rng):
            assert taken == estimates.attention_taken(row, copied, total, need.tokens, manager.block)
        states = layout(group("full", 1), group("mamba", block), drafter=drafter, connector=CONNECTOR)
        grown: set[bool] = set()
        for position, (manager, need, row, total, copied, taken) in enumerate(allocations(states, rng)):
            running = position % 2 == 1
            loaded = max(0, -(-total // block) - row)
            expected = estimates.states_taken(row + loaded, copied, running, need.main, block, manager.speculative)
            assert taken == loaded + expected
            grown.add(running)
        assert grown == {False, True}
