"""The event log of a real server: what its pool, managers and coordinator did, in order, with request and group.

The recorder replaces methods on *instances* of one server, so that nothing of the release's classes changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvcheck.model.observation import (
    NOBODY,
    Announce,
    Begin,
    Clear,
    Commit,
    Drop,
    End,
    Estimate,
    Event,
    Lookup,
    Register,
    Release,
    Retold,
    Take,
    Touch,
)
from kvcheck.targets.vllm.names import KeyNames
from kvcheck.targets.vllm.pool_hooks import hook_keys, hook_pool

NO_GROUP = -1


class Recorder:
    """Hooks into one cache manager. ``log`` is what happened since it was last taken."""

    def __init__(self, manager: Any, names: KeyNames) -> None:
        self._manager = manager
        self._names = names
        self.log: list[Event] = []
        self.fresh: list[int] = []
        self.keys_changed = False
        self._label = NOBODY
        self._remaining: list[Estimate] = []
        self._group = NO_GROUP
        self._hook_manager(manager)
        self._hook_coordinator(manager.coordinator)
        for index, single in enumerate(manager.coordinator.single_type_managers):
            self._hook_single(index, single)
        hook_pool(manager.block_pool, self)
        hook_keys(manager.block_pool, self)

    def take(self) -> tuple[Event, ...]:
        """The log since the last call."""
        log = tuple(self.log)
        self.log.clear()
        return log

    def learn(self, label: str, request: Any) -> None:
        """Name the request's hashes, and log if its tokens have changed."""
        if self._names.learn(label, request):
            self.log.append(Retold(label, tuple(request.all_token_ids)))

    # ---- cache manager and coordinator ---------------------------------------------------------------------------

    def _hook_manager(self, manager: Any) -> None:
        allocate = manager.allocate_slots

        def allocate_slots(request: Any, num_new_tokens: int, *args: Any, **kwargs: Any) -> Any:
            label = request.request_id
            self.learn(label, request)
            local = args[0] if args else kwargs.get("num_new_computed_tokens", 0)
            self._tell_remaining()
            self.log.append(
                Begin(
                    label,
                    request.num_computed_tokens,
                    local,
                    kwargs.get("num_external_computed_tokens", 0),
                    num_new_tokens,
                    kwargs.get("num_lookahead_tokens", 0),
                    bool(kwargs.get("delay_cache_blocks", False)),
                )
            )
            outer, self._label = self._label, label
            try:
                blocks = allocate(request, num_new_tokens, *args, **kwargs)
            finally:
                self._label = outer
            self.log.append(End(label, blocks is not None))
            return blocks

        manager.allocate_slots = allocate_slots
        take_events = manager.take_events

        def events() -> Any:
            taken = take_events()
            for event in taken:
                self._announce(event)
            return taken

        manager.take_events = events

    def _announce(self, event: Any) -> None:
        kind = type(event).__name__
        if kind == "AllBlocksCleared":
            self.log.append(Announce("cleared", NO_GROUP, ()))
        elif kind in ("BlockStored", "BlockRemoved"):
            keys = tuple(self._names.outside(value) for value in event.block_hashes)
            self.log.append(Announce("stored" if kind == "BlockStored" else "removed", event.group_idx, keys))

    def _hook_coordinator(self, coordinator: Any) -> None:
        agreed, commit = coordinator.find_longest_cache_hit, coordinator.cache_blocks
        each = getattr(coordinator, "find_longest_cache_hit_per_group", None)

        def find(block_hashes: Any, max_cache_hit_length: int, *args: Any, **kwargs: Any) -> Any:
            blocks, length, junction = found = agreed(block_hashes, max_cache_hit_length, *args, **kwargs)
            self._lookup(max_cache_hit_length, length, (length,) * len(blocks), blocks, junction, "agreed")
            return found

        def find_each(block_hashes: Any, max_cache_hit_length: int, *args: Any, **kwargs: Any) -> Any:
            assert each is not None
            blocks, lengths = found = each(block_hashes, max_cache_hit_length, *args, **kwargs)
            self._lookup(max_cache_hit_length, max(lengths), tuple(lengths), blocks, 0, "each")
            return found

        def cache_blocks(request: Any, num_computed_tokens: int, *args: Any, **kwargs: Any) -> None:
            self.learn(request.request_id, request)
            outer, self._label = self._label, request.request_id
            try:
                commit(request, num_computed_tokens, *args, **kwargs)
            finally:
                self._label = outer
            self.log.append(
                Commit(request.request_id, num_computed_tokens, request.num_tokens, request.num_prompt_tokens)
            )

        coordinator.find_longest_cache_hit = find
        coordinator.cache_blocks = cache_blocks
        if each is not None:
            coordinator.find_longest_cache_hit_per_group = find_each

    def _lookup(self, cap: int, length: int, lengths: tuple[int, ...], blocks: Any, junction: int, how: Any) -> None:
        ids = tuple(tuple(block.block_id for block in group) for group in blocks)
        self.log.append(Lookup(self._label, cap, length, lengths, ids, junction, how))

    def looking_up(self, lookup: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a lookup of the scheduler, so that the log says for whom it is."""

        def wrapped(request: Any, *args: Any, **kwargs: Any) -> Any:
            self.learn(request.request_id, request)
            outer, self._label = self._label, request.request_id
            try:
                return lookup(request, *args, **kwargs)
            finally:
                self._label = outer

        return wrapped

    def _tell_remaining(self) -> None:
        """What others in flight still need: the server sums it up over a set, so that there is no order in it."""
        by_request = sorted(self._remaining, key=lambda one: (one.label, one.group))
        self.log += by_request
        self._remaining.clear()

    # ---- one group's manager -------------------------------------------------------------------------------------

    def _hook_single(self, index: int, single: Any) -> None:
        needs = single.get_num_blocks_to_allocate

        def estimate(request_id: str, *args: Any, **kwargs: Any) -> int:
            blocks: int = needs(request_id, *args, **kwargs)
            admission = bool(kwargs.get("apply_admission_cap", False))
            told = self.log if request_id == self._label else self._remaining
            told.append(Estimate(request_id, index, blocks, admission))
            return blocks

        single.get_num_blocks_to_allocate = estimate
        for name in (
            "add_local_computed_blocks",
            "allocate_external_computed_blocks",
            "allocate_new_computed_blocks",
            "allocate_new_blocks",
            "remove_skipped_blocks",
            "free",
            "cache_blocks",
        ):
            if hasattr(single, name):
                setattr(single, name, self._within(index, getattr(single, name)))

    def _within(self, index: int, method: Callable[..., Any]) -> Callable[..., Any]:
        """The same method; what the pool does meanwhile is booked to this group and its request."""

        def wrapped(who: Any, *args: Any, **kwargs: Any) -> Any:
            outer = self._label, self._group
            self._label, self._group = getattr(who, "request_id", who), index
            try:
                return method(who, *args, **kwargs)
            finally:
                self._label, self._group = outer

        return wrapped

    # ---- pool ----------------------------------------------------------------------------------------------------

    def took(self, blocks: list[int]) -> None:
        """Blocks came from the free queue."""
        self.log.append(Take(self._label, self._group, tuple(blocks)))
        self.fresh.extend(blocks)

    def touched(self, blocks: list[int], revived: int) -> None:
        """References were taken."""
        self.log.append(Touch(self._label, self._group, tuple(blocks), revived))

    def released(self, blocks: list[int]) -> None:
        """References were given back."""
        self.log.append(Release(self._label, self._group, tuple(blocks)))

    def cleared(self) -> None:
        """All keys are gone."""
        self.log.append(Clear())
        self.keys_changed = True

    def registered(self, key: bytes, block: int) -> None:
        """A key was published."""
        self.keys_changed = True
        group, length, name = self._names.key(key)
        self.log.append(Register(self._label, group, block, length, name))

    def withdrawn(self, key: bytes, block: int) -> None:
        """A key was withdrawn."""
        self.keys_changed = True
        group, length, name = self._names.key(key)
        self.log.append(Drop(group, block, length, name))
