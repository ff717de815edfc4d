"""One group at a time: what a lookup finds, what an allocation takes, what is given up, what is worth a key."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from helpers import chunked, full, layout_of, mamba, replace, window

from kvcheck.model.actions import Arrive
from kvcheck.model.coordinator import Coordinator
from kvcheck.model.faults import NO_FAULTS, faults_on
from kvcheck.model.layout import Drafter, Group, Layout
from kvcheck.model.managers import MANAGERS, MambaManager, Manager, Need
from kvcheck.model.pool import NULL, Pool, ServerError
from kvcheck.model.request import Request

MTP = Drafter(method="mtp", tokens=2, modules=2)


def manager_of(group: Group, other: Group | None = None, **settings: Any) -> Manager:
    """The manager of a group beside another one: h is the greatest divisor of both blocks."""
    layout = layout_of(*filter(None, (group, other)), **settings)
    return MANAGERS[group.kind](0, layout, Pool(layout.num_blocks, 2, False, NO_FAULTS), NO_FAULTS)


def named(manager: Manager, tokens: int) -> list[int]:
    """Names of the prefixes of so many tokens: the length itself."""
    h = manager.hash_block
    return list(range(h, tokens + 1, h))


def cached(manager: Manager, lengths: Iterable[int]) -> dict[int, int]:
    """Free blocks with keys for prefixes of these lengths; block by length."""
    lengths = list(lengths)
    blocks = manager.pool.take(len(lengths))
    for block, length in zip(blocks, lengths, strict=True):
        manager.pool.register(block, (0, length, length))
    manager.pool.release(blocks)
    manager.pool.new_pass()
    return dict(zip(lengths, blocks, strict=True))


def hit(manager: Manager, limit: int, unit: int = 0, drops: bool = False) -> tuple[list[int], int]:
    """What a lookup in a request of 40 tokens finds."""
    (blocks,), length = manager.find([0], named(manager, 40), limit, unit or manager.block, drops, manager.block)
    return blocks, length


def request(manager: Manager, prompt: int, label: str = "a", first: int = 1) -> Request:
    tokens = (first, *range(1000, 1000 + prompt - 1))
    return Request(Arrive(label=label, prompt=tokens), 1, manager.hash_block, NO_FAULTS)


# ---- lookup ----------------------------------------------------------------------------------------------------------


def test_full_attention_ends_at_the_first_miss() -> None:
    manager = manager_of(full(4))
    cached(manager, [4, 8, 16])
    assert hit(manager, 20) == ([1, 2], 8)
    assert hit(manager, 7) == ([1], 4)
    assert hit(manager, 3) == ([], 0)


def test_full_attention_goes_on_inside_the_block_that_is_missing() -> None:
    manager = manager_of(full(8), mamba(2))
    cached(manager, [8, 10, 14])
    assert hit(manager, 20, unit=2) == ([1, 3], 14)
    assert hit(manager, 13, unit=2) == ([1, 2], 10)
    assert hit(manager, 9, unit=2) == ([1], 8)
    assert hit(manager, 20, unit=8) == ([1], 8)


@pytest.mark.parametrize(
    ("unit", "limit", "blocks", "length"),
    [(8, 20, [1], 8), (2, 20, [1, 2], 14), (2, 16, [1, 2], 14), (2, 9, [1], 6), (8, 8, [], 0), (2, 6, [3], 4)],
)
def test_full_attention_drops_a_unit(unit: int, limit: int, blocks: list[int], length: int) -> None:
    manager = manager_of(full(8), mamba(2))
    cached(manager, [8, 16, 6])
    assert hit(manager, limit, unit, drops=True) == (blocks, length)


def test_a_window_needs_its_last_blocks_without_a_gap() -> None:
    manager = manager_of(window(2, 4))  # the next token sees three tokens before it: two blocks
    cached(manager, [4, 6, 10, 14, 16])
    assert hit(manager, 20) == ([0] * 6 + [4, 5], 16)
    assert hit(manager, 15) == ([0, 1, 2], 6)
    assert hit(manager, 5) == ([], 0)


def test_a_window_at_the_start_of_the_prompt_needs_what_there_is() -> None:
    manager = manager_of(window(2, 10))
    cached(manager, [2, 4])
    assert hit(manager, 20) == ([1, 2], 4)
    assert hit(manager, 3) == ([1], 2)


@pytest.mark.parametrize(("lengths", "length"), [([4, 6, 8], 6), ([6, 8], 0), ([4, 6], 0), ([2, 4], 2), ([2], 0)])
def test_a_window_that_drops_needs_one_block_more(lengths: list[int], length: int) -> None:
    manager = manager_of(window(2, 4))
    found = cached(manager, lengths)
    blocks = [found.get(end, NULL) for end in range(2, length + 1, 2)]
    assert hit(manager, 20, drops=True) == (blocks, length)


def test_a_window_ends_at_multiples_of_the_unit_and_never_inside_a_block() -> None:
    manager = manager_of(window(2, 4))
    cached(manager, [2, 4, 6])
    assert hit(manager, 20, unit=4) == ([1, 2], 4)
    assert hit(manager, 20, unit=4, drops=True) == ([1, 2], 4)
    with pytest.raises(ServerError, match="fine-grained-window"):
        hit(manager, 20, unit=1)


def test_a_chunk_needs_its_own_blocks_only_and_none_at_its_start() -> None:
    manager = manager_of(chunked(2, 8))
    cached(manager, [10, 12])
    assert hit(manager, 15) == ([0] * 4 + [1, 2], 12)
    assert hit(manager, 11) == ([0] * 4 + [1], 10)
    assert hit(manager, 8) == ([0] * 4, 8)
    assert hit(manager, 7) == ([], 0)


def test_mamba_needs_the_one_state_and_never_drops() -> None:
    manager = manager_of(mamba(8), full(2))
    cached(manager, [8, 22])
    assert hit(manager, 30, unit=2) == ([0, 0, 2], 22)
    assert hit(manager, 21, unit=2, drops=True) == ([1], 8)
    assert hit(manager, 30, unit=8) == ([1], 8)
    assert hit(manager, 7, unit=2) == ([], 0)


# ---- allocation ------------------------------------------------------------------------------------------------------

KINDS = {
    "full": (full(4), mamba(2)),
    "full alone": (full(4), None),
    "window": (window(2, 5), full(2)),
    "chunked": (chunked(2, 4), full(2)),
    "mamba": (mamba(4), full(2)),
    "mamba with drafts": (mamba(4, drafts=2), full(2)),
}


class Trial:
    """Random requests of a few prompts, in one group; every allocation is compared with its estimate."""

    def __init__(self, manager: Manager, seed: int) -> None:
        self.manager = manager
        self.draw = random.Random(seed)
        self.unit = manager.hash_block if manager.fine_grained else manager.block
        self.computed: dict[str, int] = {}
        self.requests: dict[str, Request] = {}
        self.seen = dict.fromkeys(("hit", "inside", "load", "copy", "refused", "exact"), 0)

    def allocate(self, who: Request, hits: list[int], local: int, external: int, new: int) -> bool:
        manager, pool = self.manager, self.manager.pool
        total = self.computed.get(who.label, 0) + local + external
        resume = min(total, who.known - 1) if external else total
        manager.give_up(who.label, total)
        need = Need(total + new + manager.layout.lookahead, total + new, resume, total - external, external, False)
        promised, before = manager.estimate(who.label, hits, need), pool.free_count
        if promised > before:
            self.seen["refused"] += 1
            return False
        if external or hits:
            manager.adopt(who.label, hits, resume, local)
        if external:
            manager.load(who.label, total)
        manager.grow(who.label, need.tokens, need.main)
        taken = before - pool.free_count
        assert taken <= promised
        for copy in manager.copies:
            pool.release(copy)
        events = {"hit": hits, "inside": local % manager.block, "load": external, "copy": manager.copies}
        self.seen.update({name: self.seen[name] + bool(what) for name, what in events.items()})
        self.seen["exact"] += taken == promised
        manager.copies.clear()
        self.computed[who.label] = total + new
        manager.register(who, min(total + new, who.known), total + new, None)
        return True

    def arrive(self, label: str) -> None:
        draw, manager = self.draw, self.manager
        who = request(manager, draw.choice((1, 5, 6, 7, 14, 16, 19, 24)), label, first=draw.randrange(2))
        (hits,), local = manager.find([0], who.names, who.known - 1, self.unit, False, manager.block)
        external = 0
        if draw.random() < 0.3:  # it replaces a tail
            local -= local % manager.layout.scheduler_block
            hits = hits[: local // manager.block]
            most = who.known - local - (manager.group.kind == "mamba")
            external = draw.randrange(1, most + 1) if most > 0 else 0
        if self.allocate(who, hits, local, external, self.chunk(who, local + external)):
            self.requests[label] = who

    def go_on(self, label: str) -> None:
        who = self.requests[label]
        if who.known == self.computed[label]:
            who.append(7)
        if who.known < who.prompt + 4 and self.allocate(who, [], 0, 0, self.chunk(who, self.computed[label])):
            return
        self.manager.free(label)
        del self.requests[label], self.computed[label]

    def chunk(self, who: Request, start: int) -> int:
        """The rest, or less, or up to the tail of the prompt; nothing behind a load of everything."""
        tail = who.prompt - who.prompt % self.manager.hash_block
        ends = [who.known, *range(start + 1, who.known), *[tail] * 5 * (tail > start)]
        return self.draw.choice(ends) - start

    def run(self, steps: int) -> None:
        for number in range(steps):
            self.manager.pool.new_pass()
            if len(self.requests) < 3 and self.draw.random() < 0.5:
                self.arrive(str(number))
            elif self.requests:
                self.go_on(self.draw.choice(list(self.requests)))


@pytest.mark.parametrize("kind", KINDS)
def test_an_estimate_is_never_below_what_an_allocation_takes(kind: str) -> None:
    group, other = KINDS[kind]
    drafter = MTP if group.speculative_blocks else None
    seen: Counter[str] = Counter()
    for blocks in (6, 7, 8, 10, 14):
        manager = manager_of(group, other, num_blocks=blocks, max_model_len=40, drafter=drafter)
        trial = Trial(manager, seed=blocks)
        trial.run(2000)
        seen.update(trial.seen)
    never = {"inside", "copy"} if manager.hash_block == manager.block or not manager.fine_grained else set()
    assert {name for name, count in seen.items() if count < 10} == never


def test_an_estimate_counts_hit_blocks_that_leave_the_queue_and_the_copy_of_a_tail() -> None:
    manager = manager_of(full(4), mamba(2))
    cached(manager, [4, 6])
    hits, length = hit(manager, 9, unit=2)
    need = Need(10, 10, length, length, 0, False)
    assert (hits, length) == ([1, 2], 6)
    assert manager.estimate("a", hits, need) == 4  # blocks 1 and 2, a new one, and the copy of 2
    manager.pool.touch([1])
    assert manager.estimate("a", hits, need) == 3
    manager.adopt("a", hits, 6, 6)
    assert manager.grow("a", 10, 10) == [3, 4]
    assert (manager.row("a").blocks, manager.copies) == ([1, 3, 4], [(2, 3)])
    assert [manager.pool.refs[block] for block in (1, 2, 3, 4)] == [2, 1, 2, 1]


def test_hit_blocks_that_lie_below_a_loads_window_are_not_counted() -> None:
    manager = manager_of(window(2, 4))
    cached(manager, [12, 14, 16])
    hits, _ = hit(manager, 16)
    needs = [Need(end, end, end, 16, end - 16, False) for end in (18, 20)]
    assert [manager.estimate("a", hits, need) for need in needs] == [2, 2]
    manager.pool.touch(hits)
    assert [manager.estimate("a", hits, need) for need in needs] == [1, 2]


@pytest.mark.parametrize(
    ("main", "resume", "blocks"), [(8, 8, 1), (9, 8, 2), (10, 10, 1), (12, 10, 1), (13, 10, 2), (40, 10, 2)]
)
def test_a_mamba_group_counts_the_hit_or_the_loaded_state_and_the_running_one(
    main: int, resume: int, blocks: int
) -> None:
    manager = manager_of(mamba(4), full(2))
    cached(manager, [8])
    assert manager.estimate("a", hit(manager, 9)[0], Need(main, main, resume, 8, resume - 8, False)) == blocks


def test_what_this_pass_writes_can_be_read_in_it_but_neither_copied_nor_resumed_from() -> None:
    attention, states = manager_of(full(4), mamba(2)), manager_of(mamba(4), full(2))
    for manager in (attention, states):
        for block, length in zip(manager.pool.take(2), (4, 6), strict=True):
            manager.pool.register(block, (0, length, length))
    assert attention.estimate("b", [1], Need(8, 8, 4, 4, 0, False)) == 1
    assert attention.estimate("b", [1, 2], Need(8, 8, 6, 6, 0, False)) > attention.pool.blocks
    assert states.estimate("b", [1], Need(8, 8, 4, 4, 0, False)) > states.pool.blocks


def test_admission_counts_of_a_whole_sequence_what_a_window_holds_at_once() -> None:
    manager = manager_of(window(2, 4), full(2), token_budget=4)
    need = Need(30, 30, 0, 0, 0, True)
    assert manager.most_blocks == 5  # three tokens of window and four of a step: four blocks, one of them cut in two
    assert manager.estimate("a", [], need) == 5
    assert manager.estimate("a", [], need._replace(whole=False)) == 15


# ---- giving up -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "settled", "table"),
    [
        (full(2), 10, [1, 2, 3, 4, 5]),
        (window(2, 4), 6, [0, 2, 3, 4, 5]),
        (window(2, 4), 10, [0, 0, 0, 4, 5]),
        (chunked(2, 4), 7, [0, 0, 3, 4, 5]),
        (chunked(2, 4), 8, [0, 0, 0, 0, 5]),
    ],
)
def test_what_no_later_token_reads_is_given_up_from_the_last_block_to_the_first(
    group: Group, settled: int, table: list[int]
) -> None:
    manager = manager_of(group)
    manager.grow("a", 10, 10)
    manager.give_up("a", settled)
    assert manager.row("a").blocks == table
    given = table.count(NULL)
    assert list(manager.pool.free)[:given] == list(range(given, 0, -1))
    manager.free("a")
    assert list(manager.pool.free)[:5] == [*range(5, given, -1), *range(given, 0, -1)]


def test_a_window_gives_up_less_for_a_drafter_that_prefills_again() -> None:
    manager = manager_of(window(2, 4), drafter=MTP)
    manager.grow("a", 10, 10)
    manager.give_up("a", 9)
    assert manager.row("a").blocks == [0, 0, 3, 4, 5]
    manager.give_up("a", 10)
    assert manager.row("a").blocks == [0, 0, 0, 4, 5]


def test_a_mamba_request_holds_the_state_before_the_running_one_until_that_is_settled() -> None:
    manager = manager_of(mamba(4), full(2))
    tables = []
    for tokens in (4, 8, 12):
        manager.give_up("a", tokens - 4)
        manager.grow("a", tokens, tokens)
        tables.append(list(manager.row("a").blocks))
    assert tables == [[1], [1, 2], [0, 2, 1]]
    manager.give_up("a", 8)
    assert manager.row("a").blocks == [0, 2, 1]
    manager.give_up("a", 9)
    assert manager.row("a").blocks == [0, 0, 1]


@pytest.mark.parametrize(("drafts", "table"), [(0, [0, 0, 0, 2]), (2, [0, 0, 0, 2, 3, 4])])
def test_a_state_that_a_long_chunk_left_far_behind_is_given_up_too(drafts: int, table: list[int]) -> None:
    manager = manager_of(mamba(4, drafts), full(2))
    manager.grow("a", 4, 4)
    manager.grow("a", 16, 16)
    manager.give_up("a", 4)
    assert manager.row("a").blocks == [1, *table[1:]]
    manager.give_up("a", 16)
    assert manager.row("a").blocks == table


def test_a_hit_state_is_given_up_like_one_of_the_requests_own() -> None:
    manager = manager_of(mamba(4), full(2))
    cached(manager, [8])
    manager.adopt("a", hit(manager, 8)[0], 8, 8)
    manager.grow("a", 24, 24)
    manager.give_up("a", 24)
    assert manager.row("a").blocks == [0, 0, 0, 0, 0, 2]


# ---- tables of Mamba groups ------------------------------------------------------------------------------------------


def test_speculative_blocks_follow_the_running_state_and_are_carried_along() -> None:
    manager = manager_of(mamba(4, drafts=2), full(2), num_blocks=20, drafter=MTP)
    grown = {tokens: (manager.grow("a", tokens, tokens), list(manager.row("a").blocks)) for tokens in (4, 5, 8, 9, 21)}
    assert grown == {
        4: ([1, 2, 3], [1, 2, 3]),
        5: ([4], [1, 2, 3, 4]),
        8: ([], [1, 2, 3, 4]),
        9: ([5], [1, 2, 3, 4, 5]),
        21: ([4, 5, 6], [1, 2, 3, 0, 0, 4, 5, 6]),
    }


def test_a_first_chunk_has_no_block_for_the_columns_that_it_passes_over() -> None:
    manager = manager_of(mamba(4, drafts=1), full(2), drafter=replace(MTP, tokens=1))
    assert manager.grow("a", 10, 10) == [0, 0, 1, 2]
    assert manager.row("a").blocks == [0, 0, 1, 2]


def test_a_load_takes_a_block_for_the_state_behind_it_only() -> None:
    manager = manager_of(mamba(4), full(2))
    cached(manager, [4])
    manager.adopt("a", [1], 10, 4)
    manager.load("a", 10)
    assert manager.row("a").blocks == [0, 0, 2]
    assert list(manager.pool.keys) == [1]


def producer_of_a_tail() -> tuple[MambaManager, Request]:
    """A request of six tokens whose state after them, inside its second block, has a key."""
    manager = manager_of(mamba(4), full(2))
    assert isinstance(manager, MambaManager)
    who = request(manager, 6)
    manager.grow("a", 4, 4)
    manager.register(who, 4, 4, None)
    manager.grow("a", 6, 6)
    manager.register(who, 6, 6, None)
    return manager, who


def test_the_producer_of_a_tail_keeps_its_block_and_the_keys_move_to_a_copy() -> None:
    manager, who = producer_of_a_tail()
    name = who.names[2]
    assert manager.pool.keys[2] == [(0, name, 6)]
    assert manager.row("a").tail == (1, 2)
    assert manager.estimate("a", [], Need(7, 7, 6, 6, 0, False)) == 2
    assert manager.grow("a", 7, 7) == []
    assert (manager.row("a").blocks, manager.row("a").tail, manager.copies) == ([1, 2], None, [(2, 3)])
    assert manager.pool.keys == {1: [(0, who.names[1], 4)], 3: [(0, name, 6)]}
    assert [manager.pool.refs[block] for block in (2, 3)] == [2, 1]
    assert manager.handed_over == [("a", 3)]


def test_a_tail_is_registered_only_by_the_state_after_exactly_its_tokens_and_once() -> None:
    manager, who = producer_of_a_tail()
    manager.grow("a", 7, 7)
    manager.register(who, 7, 7, None)
    assert 2 not in manager.pool.keys
    who.append(1)
    who.append(2)
    manager.register(who, 8, 8, None)
    assert manager.pool.keys[2] == [(0, who.names[3], 8)]


def test_who_hits_a_tail_gets_a_copy_in_its_place() -> None:
    manager, _ = producer_of_a_tail()
    manager.pool.new_pass()
    manager.adopt("b", [0, 2], 6, 6)
    assert manager.grow("b", 7, 7) == [3]
    assert (manager.row("b").blocks, manager.copies) == ([0, 3], [(2, 3)])
    assert (manager.row("a").blocks, manager.pool.refs[2]) == ([1, 2], 2)


# ---- retention -------------------------------------------------------------------------------------------------------

LONG = {"max_model_len": 60, "num_blocks": 60}


@pytest.mark.parametrize(
    ("group", "retention", "kept"),
    [
        (full(2), 0, range(2, 31, 2)),
        (chunked(2, 8), 0, range(2, 31, 2)),
        (window(2, 4), None, [6, 8, 14, 16, 22, 24, 30]),
        (window(2, 4), 0, [22, 24]),
        (window(2, 4), 16, [14, 16, 22, 24, 30]),
        (window(2, 8), None, range(2, 31, 2)),
        (mamba(4), None, range(4, 29, 4)),
        (mamba(4), 0, [24]),
        (mamba(4), 16, [16, 24]),
    ],
)
def test_what_retention_keeps_of_a_prompt_of_30_tokens(
    group: Group, retention: int | None, kept: Iterable[int]
) -> None:
    manager = manager_of(group, full(8), **LONG)
    assert registered(manager, retention) == list(kept)


def test_a_drafters_window_keeps_the_block_behind_the_boundary_too() -> None:
    managers = [manager_of(window(2, 4), full(8), drafter=MTP, **LONG) for _ in range(3)]
    kept = [registered(manager, interval) for manager, interval in zip(managers, (0, 16, None), strict=True)]
    assert kept == [[14, 16, 18, 22, 24, 26], [14, 16, 18, 22, 24, 26, 30], [6, 8, 10, 14, 16, 18, 22, 24, 26, 30]]


@pytest.mark.parametrize(("group", "kept"), [(window(2, 4), [6, 8, 22, 24]), (mamba(4), [8, 24])])
def test_a_junction_is_kept_rounded_down_under_every_interval(group: Group, kept: list[int]) -> None:
    assert registered(manager_of(group, full(8), **LONG), 0, junction=10) == kept


def test_a_tail_is_kept_under_every_interval() -> None:
    assert registered(manager_of(full(8), mamba(2), **LONG), 0) == [8, 16, 24, 30]


def registered(manager: Manager, retention: int | None, junction: int = 0) -> list[int]:
    """The lengths for which a request of 30 tokens has keys after a prefill whose chunks end with each block."""
    who = request(manager, 30)
    who.junction = junction
    for tokens in (*range(manager.block, 30, manager.block), 30):
        manager.grow("a", tokens, tokens)
        manager.register(who, tokens, -1, retention)
    return sorted(length for keys in manager.pool.keys.values() for _, _, length in keys)


# ---- all groups together ---------------------------------------------------------------------------------------------

EAGLE = Drafter(method="eagle3", tokens=1)
TOGETHER = {
    "partial": layout_of(full(2), mamba(4)),
    "windows": layout_of(full(2), window(2, 4), window(4, 6)),
    "three kinds": layout_of(full(4), window(2, 4), mamba(4)),
    "one marked": layout_of(full(2), window(2, 4, eagle=True), mamba(4, 1), drafter=EAGLE),
    "states marked": layout_of(full(2), mamba(4, 1), drafter=EAGLE),
    "windows marked": layout_of(full(2), window(2, 4), window(4, 6), drafter=EAGLE),
    "full marked": layout_of(full(2), full(4), window(2, 4), drafter=EAGLE),
}


def longest_together(managers: list[Manager], names: list[int], cap: int, unit: int) -> int:
    """The longest hit that each group serves on its own; what full attention serves, it serves shorter too (R2.3)."""

    def serves(manager: Manager, length: int) -> bool:
        drops = manager.eagle and manager.group.is_attention
        limit = cap if manager.group.keeps_whole_prefix else min(length + drops * manager.block, cap)
        return manager.find([manager.index], names, limit, unit, drops, manager.block)[1] >= length

    return max(length for length in range(0, cap + 1, unit) if all(serves(manager, length) for manager in managers))


def disagreements(layout: Layout, *faults: str) -> int:
    """In how many of many random caches the agreed hit is another one, or adopts blocks behind it."""
    draw, wrong, on = random.Random(1), 0, faults_on(faults)
    agreed = set()
    for _ in range(600):
        coordinator = Coordinator(layout, Pool(60, len(layout.groups), False, on), on)
        managers, h, cap = coordinator.managers, layout.hash_block, draw.randrange(1, 24)
        for manager in managers:
            step = h if manager.fine_grained and coordinator.partial else manager.block
            for length in range(step, 25, step):
                if draw.random() < 0.8:
                    manager.pool.register(*manager.pool.take(1), (manager.index, length, length))
        names = named(managers[0], 24)
        found = coordinator.agree(names, cap)
        assert not found.junction or found.junction > found.length
        wrong += found.length != longest_together(managers, names, cap, coordinator.granularity) or any(
            len(found.blocks[m.index]) * m.block >= found.length + m.block for m in managers
        )
        agreed.add(found.length)
    assert len(agreed) > 3
    return wrong


@pytest.mark.parametrize("name", TOGETHER)
def test_the_agreed_hit_is_the_longest_that_every_group_serves(name: str) -> None:
    assert disagreements(TOGETHER[name]) == 0


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("single-pass-lookup", "windows"),
        ("drop-not-verified-again", "windows marked"),
        ("mamba-looks-further", "states marked"),
        ("only-first-full-attention-trimmed", "full marked"),
    ],
)
def test_a_faulty_lookup_agrees_on_something_else(fault: str, name: str) -> None:
    assert disagreements(TOGETHER[name], fault) > 0
