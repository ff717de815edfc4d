"""The pool: in which order blocks are handed out, and which keys lead where."""

from __future__ import annotations

import pytest

from kvcheck.model.faults import Faults
from kvcheck.model.observation import Announce
from kvcheck.model.pool import Key, Pool, ServerError


def pool_of(blocks: int, events: bool = False, **faults: bool) -> Pool:
    return Pool(blocks, 2, events, Faults(**faults))


def keyed(pool: Pool, *keys: Key) -> list[int]:
    """Blocks that are held and have one of these keys each."""
    blocks = pool.take(len(keys))
    for block, key in zip(blocks, keys, strict=True):
        assert pool.register(block, key)
    return blocks


ONE, TWO, THREE = (0, 101, 2), (0, 102, 4), (0, 103, 6)


def test_blocks_are_handed_out_from_the_front_of_one_queue() -> None:
    pool = pool_of(6)
    assert pool.take(2) == [1, 2]
    pool.release([1, 2])
    assert list(pool.free) == [1, 2, 3, 4, 5]
    assert pool.take(0) == []
    assert pool.take(3) == [1, 2, 3]
    assert (pool.refs, pool.free_count) == ([0, 1, 1, 1, 0, 0], 2)


def test_one_call_frees_blocks_without_key_to_the_front_and_those_with_one_to_the_back() -> None:
    pool = pool_of(8)
    first, second = keyed(pool, ONE, TWO)
    pool.take(2)
    pool.release([4, second, 3, first])  # the tail of the request comes first
    assert list(pool.free) == [4, 3, 5, 6, 7, second, first]


def test_a_block_is_free_once_nobody_holds_it() -> None:
    pool = pool_of(4)
    (block,) = keyed(pool, ONE)
    pool.touch([block, 0])
    pool.release([block, 0])
    assert (pool.refs, list(pool.free)) == ([0, 1, 0, 0], [2, 3])
    pool.release([block])
    assert (pool.evictable([block, 0, 2]), list(pool.free)) == (2, [2, 3, 1])
    pool.touch([block])
    assert (pool.evictable([block]), list(pool.free), pool.free_count) == (0, [2, 3], 2)


def test_what_is_taken_loses_its_keys_and_what_is_free_keeps_them() -> None:
    pool = pool_of(3)
    blocks = keyed(pool, ONE, TWO)
    pool.release(reversed(blocks))
    assert pool.find([0], 101) == [1]
    assert pool.take(1) == [2]
    assert (pool.find([0], 101), pool.find([0], 102)) == ([1], None)
    assert pool.keys == {1: [ONE]}


def test_a_pool_that_has_too_few_blocks_dies_and_takes_none() -> None:
    pool = pool_of(4)
    pool.take(1)
    with pytest.raises(ServerError) as died:
        pool.take(3)
    assert died.value.kind == "pool-exhausted"
    assert list(pool.free) == [2, 3]


def test_of_several_blocks_with_one_key_the_oldest_is_found() -> None:
    pool = pool_of(5)
    old, new = keyed(pool, ONE, ONE)
    assert pool.find([0], 101) == [old]
    pool.withdraw(old)
    assert pool.find([0], 101) == [new]
    assert pool.register(old, ONE)
    assert pool.find([0], 101) == [new]


def test_groups_that_are_looked_up_together_all_need_the_key() -> None:
    pool = pool_of(5)
    keyed(pool, ONE, TWO, (1, 101, 2))
    assert (pool.find([0, 1], 101), pool.find([1, 0], 101)) == ([1, 3], [3, 1])
    assert (pool.find([0, 1], 102), pool.find([0], 102)) == (None, [2])


def test_a_key_is_published_once_a_block() -> None:
    pool = pool_of(3)
    (block,) = keyed(pool, ONE)
    assert not pool.register(block, ONE)
    assert (pool.keys, pool.holders[0]) == ({block: [ONE]}, {101: [block]})


def test_a_key_for_more_tokens_promotes_its_block_and_one_for_fewer_comes_beside_it() -> None:
    pool = pool_of(3)
    (block,) = keyed(pool, TWO)
    assert pool.register(block, ONE)
    assert pool.keys[block] == [TWO, ONE]
    assert pool.register(block, THREE)
    assert pool.keys[block] == [THREE]
    assert (pool.find([0], 101), pool.find([0], 102), pool.find([0], 103)) == (None, None, [block])


def test_keys_move_to_another_block() -> None:
    pool = pool_of(4)
    source, target = pool.take(2)
    pool.register(source, TWO)
    pool.register(source, ONE)
    pool.move_keys(source, target)
    assert pool.keys == {target: [TWO, ONE]}
    assert (pool.find([0], 101), pool.find([0], 102)) == ([target], [target])


def test_only_what_was_published_in_this_pass_is_unpublished() -> None:
    pool = pool_of(4)
    before, now = pool.take(2)
    pool.register(before, ONE)
    pool.new_pass()
    assert (pool.published, pool.taken) == (set(), [])
    pool.register(now, TWO)
    for block in (before, now):
        pool.unpublish(block)
    assert pool.keys == {before: [ONE]}


def test_mirrors_are_told_of_a_removal_when_the_last_block_with_the_key_goes() -> None:
    pool = pool_of(5, events=True)
    old, new, other = keyed(pool, ONE, ONE, TWO)
    pool.announce_stored(0, [ONE, TWO])
    pool.announce_stored(0, [])
    pool.withdraw(old)
    pool.withdraw(other)
    pool.withdraw(new)
    removed = [Announce("removed", 0, ((4, 102),)), Announce("removed", 0, ((2, 101),))]
    assert pool.events == [Announce("stored", 0, ((2, 101), (4, 102))), *removed]


def test_the_faulty_pool_announces_the_removal_of_a_key_that_is_still_there() -> None:
    pool = pool_of(3, events=True, removal_with_copy_left=True)
    old, _new = keyed(pool, ONE, ONE)
    pool.withdraw(old)
    assert pool.events == [Announce("removed", 0, ((2, 101),))]


def test_a_reset_takes_all_keys_and_is_declined_while_somebody_holds_a_block() -> None:
    pool = pool_of(3, events=True)
    (block,) = keyed(pool, ONE)
    assert not pool.reset()
    assert pool.find([0], 101) == [block]
    assert pool.events == []
    pool.release([block])
    assert pool.reset()
    assert (pool.keys, pool.holders) == ({}, [{}, {}])
    assert pool.events == [Announce("cleared", -1, ())]


def test_faults_change_what_a_reset_takes_and_who_waits_behind_cached_blocks() -> None:
    pool = pool_of(5, reset_keeps_keys=True, unregistered_blocks_age=True)
    (block,) = keyed(pool, ONE)
    pool.take(1)
    pool.release([2, block])
    assert list(pool.free) == [3, 4, 2, block]
    assert pool.reset()
    assert pool.find([0], 101) == [block]
