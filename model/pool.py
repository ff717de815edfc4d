"""The block pool: who holds which block, in which order free ones are handed out, which keys lead where (R1)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from kvcheck.model.faults import Faults
from kvcheck.model.observation import NULL_BLOCK, Announce

NULL = NULL_BLOCK
"""The null block (R1.3)."""

Key = tuple[int, int, int]
"""Group, name of the prefix, its length in tokens (R1.10)."""


class ServerError(Exception):
    """The server dies of this. ``kind`` names what it could not do; the model without faults never raises it."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class Pool:
    """Blocks 1 to ``blocks - 1``, shared by all groups (R1.2).

    ``refs``: references by block (R1.12). ``free``: blocks without any, the next to be handed out first (R1.13).
    ``holders``: by group and name, the blocks that have this key, the oldest first (R1.11). ``keys``: by block, the
    longest one in the first place. ``published``: keys of this pass, whose content no step has written yet (R5.5).
    ``taken``: blocks handed out in this pass.
    """

    def __init__(self, blocks: int, groups: int, events: bool, faults: Faults) -> None:
        self.blocks = blocks
        self.faults = faults
        self.refs = [0] * blocks
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, blocks))
        self.free_count = blocks - 1
        self.holders: list[dict[int, list[int]]] = [{} for _ in range(groups)]
        self.keys: dict[int, list[Key]] = {}
        self.published: set[tuple[int, int]] = set()
        self.taken: list[int] = []
        self.events: list[Announce] | None = [] if events else None

    def new_pass(self) -> None:
        """A pass of the scheduler begins: what was published before is written by then."""
        self.published.clear()
        self.taken.clear()

    # ---- references ----------------------------------------------------------------------------------------------

    def take(self, count: int) -> list[int]:
        """The next ``count`` free blocks, with one reference each; they lose their keys (R1.13).

        Raises:
            ServerError: there are fewer.
        """
        if count > self.free_count:
            raise ServerError("pool-exhausted")
        self.free_count -= count
        blocks = []
        for _ in range(count):
            block, _none = self.free.popitem(last=False)
            self.withdraw(block)
            self.refs[block] = 1
            blocks.append(block)
        self.taken += blocks
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        """Take a reference on each (R1.12)."""
        for block in blocks:
            if block == NULL:
                continue
            if not self.refs[block]:
                del self.free[block]
                self.free_count -= 1
            self.refs[block] += 1

    def hold(self, block: int) -> None:
        """Take a reference more on a block that somebody holds: it is an end of a copy (R6.3)."""
        self.refs[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Give back a reference on each. Free ones without a key are reused first, the others last (R1.14)."""
        without_key: list[int] = []
        with_key: list[int] = []
        for block in blocks:
            if block == NULL:
                continue
            self.refs[block] -= 1
            if not self.refs[block]:
                keyed = block in self.keys or self.faults.unregistered_blocks_age
                (with_key if keyed else without_key).append(block)
        for block in reversed(without_key):
            self.free[block] = None
            self.free.move_to_end(block, last=False)
        for block in with_key:
            self.free[block] = None
        self.free_count += len(without_key) + len(with_key)

    def evictable(self, blocks: Iterable[int]) -> int:
        """How many of these blocks a touch would take out of the free queue (R8.1)."""
        return sum(1 for block in blocks if block != NULL and not self.refs[block])

    # ---- keys ----------------------------------------------------------------------------------------------------

    def find(self, groups: Sequence[int], name: int) -> list[int] | None:
        """The oldest block with this key in each of the groups; None if one of them has none."""
        found = []
        for group in groups:
            blocks = self.holders[group].get(name)
            if not blocks:
                return None
            found.append(blocks[0])
        return found

    def register(self, block: int, key: Key) -> bool:
        """Publish a key, if the block does not have it yet. Shorter ones go if this one says more (R1.11, promotion).

        Returns whether it is new.
        """
        held = self.keys.get(block)
        if held is not None:
            if key in held:
                return False
            if held[0][2] < key[2]:
                self.withdraw(block)
        self.add_key(block, key)
        return True

    def withdraw(self, block: int) -> None:
        """All keys of a block go (R1.13), and are announced as removed."""
        for key in self.take_keys(block):
            if self.events is not None and (self.faults.removal_with_copy_left or not self.holders[key[0]].get(key[1])):
                self.events.append(Announce("removed", key[0], ((key[2], key[1]),)))

    def published_now(self, block: int) -> bool:
        """Whether a key of a block was published in this pass: its step has still to write the content (R5.5)."""
        return any((group, name) in self.published for group, name, _ in self.keys.get(block, ()))

    def unpublish(self, block: int) -> None:
        """A block that was to be written in this pass is not: it loses its keys (R5.5.1)."""
        if self.published_now(block):
            self.withdraw(block)

    def move_keys(self, source: int, target: int) -> None:
        """What ``source`` is registered for is ``target`` from now on (R6.5)."""
        for key in self.take_keys(source):
            self.add_key(target, key)

    def announce_stored(self, group: int, keys: Sequence[Key]) -> None:
        """Tell mirrors of new keys."""
        if self.events is not None and keys:
            self.events.append(Announce("stored", group, tuple((length, name) for _, name, length in keys)))

    def reset(self) -> bool:
        """All keys go; declined while anybody holds a block."""
        if self.free_count != self.blocks - 1:
            return False
        if not self.faults.reset_keeps_keys:
            for holders in self.holders:
                holders.clear()
            self.keys.clear()
        if self.events is not None:
            self.events.append(Announce("cleared", -1, ()))
        return True

    def add_key(self, block: int, key: Key) -> None:
        """A block gets a key."""
        self.keys.setdefault(block, []).append(key)
        self.holders[key[0]].setdefault(key[1], []).append(block)
        self.published.add(key[:2])

    def take_keys(self, block: int) -> list[Key]:
        """A block loses its keys, which are returned."""
        keys = self.keys.pop(block, [])
        for group, name, _ in keys:
            holders = self.holders[group][name]
            holders.remove(block)
            if not holders:
                del self.holders[group][name]
        return keys
