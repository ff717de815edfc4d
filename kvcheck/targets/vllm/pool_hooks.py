"""Hooks into one block pool: whoever watches it is told what it does, block by block and in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol


class PoolWatcher(Protocol):
    """What a pool's watcher is told of blocks."""

    def took(self, blocks: list[int]) -> None:
        """These came from the front of the free queue."""

    def touched(self, blocks: list[int], revived: int) -> None:
        """References were taken on these; ``revived`` of them were free before."""

    def released(self, blocks: list[int]) -> None:
        """References on these were given back, in this order."""

    def cleared(self) -> None:
        """All keys were withdrawn."""


class KeyWatcher(Protocol):
    """What a pool's watcher is told of keys: each is a block hash with the group's index behind it."""

    def registered(self, key: bytes, block: int) -> None:
        """A key was published for the block."""

    def withdrawn(self, key: bytes, block: int) -> None:
        """A key was withdrawn from the block."""


def hook_pool(pool: Any, watcher: PoolWatcher) -> None:
    """Replace the methods of this one pool, so that the watcher is told of each; of keys only ``hook_keys`` tells."""
    take, touch, release, reset = pool.get_new_blocks, pool.touch, pool.free_blocks, pool.reset_prefix_cache

    def get_new_blocks(num_blocks: int) -> Any:
        blocks = take(num_blocks)
        if blocks:
            watcher.took([block.block_id for block in blocks])
        return blocks

    def touched(blocks: Iterable[Any]) -> None:
        held = [block for block in blocks if not block.is_null]
        if held:
            watcher.touched([block.block_id for block in held], sum(block.ref_cnt == 0 for block in held))
        touch(blocks)

    def free_blocks(ordered_blocks: Iterable[Any]) -> None:
        blocks = list(ordered_blocks)
        ids = [block.block_id for block in blocks if not block.is_null]
        if ids:
            watcher.released(ids)
        release(blocks)

    def reset_prefix_cache() -> bool:
        done: bool = reset()
        if done:
            watcher.cleared()
        return done

    pool.get_new_blocks, pool.touch, pool.free_blocks = get_new_blocks, touched, free_blocks
    pool.reset_prefix_cache = reset_prefix_cache


def hook_keys(pool: Any, watcher: KeyWatcher) -> None:
    """Tell the watcher of each key of this one pool. A reset gives the pool a new map of keys."""
    reset = pool.reset_prefix_cache

    def reset_prefix_cache() -> bool:
        done: bool = reset()
        if done:
            _hook_map(pool.cached_block_hash_to_block, watcher)
        return done

    pool.reset_prefix_cache = reset_prefix_cache
    _hook_map(pool.cached_block_hash_to_block, watcher)


def _hook_map(key_map: Any, watcher: KeyWatcher) -> None:
    insert, pop = key_map.insert, key_map.pop

    def inserted(key: Any, block: Any) -> None:
        insert(key, block)
        watcher.registered(key, block.block_id)

    def popped(key: Any, block_id: int) -> Any:
        block = pop(key, block_id)
        if block is not None:
            watcher.withdrawn(key, block_id)
        return block

    key_map.insert, key_map.pop = inserted, popped
