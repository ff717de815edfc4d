"""The event log of the model: what its pool, managers and coordinator did, in order, with request and group.

As with a real server, methods of one server's objects are wrapped, so that the model itself speaks of the rules only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvcheck.model.cache import Cache, Local
from kvcheck.model.coordinator import Agreed, Blocks, Coordinator
from kvcheck.model.managers import Manager, Need
from kvcheck.model.observation import (
    NOBODY,
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
    Take,
    Touch,
)
from kvcheck.model.pool import NULL, Key, Pool
from kvcheck.model.request import Request

NO_GROUP = -1


class Recorder:
    """Hooks into one cache. ``log`` is what happened since it was last taken. ``notice`` is told of each request that
    comes up, before what happens to it is logged."""

    def __init__(self, cache: Cache, notice: Callable[[Request], None]) -> None:
        self._notice = notice
        self.log: list[Event] = []
        self.keys_changed = True
        self._label = NOBODY
        self._remaining: list[Estimate] = []
        self._group = NO_GROUP
        self._hook_cache(cache)
        self._hook_coordinator(cache.coordinator)
        for index, manager in enumerate(cache.managers):
            self._hook_manager(index, manager)
        self._hook_pool(cache.pool)

    def take(self) -> tuple[Event, ...]:
        """The log since the last call."""
        log = tuple(self.log)
        self.log.clear()
        return log

    def _for(self, label: str, group: int, method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Call a method; what the pool does meanwhile is booked to this request and group."""
        outer = self._label, self._group
        self._label, self._group = label, group
        try:
            return method(*arguments, **keywords)
        finally:
            self._label, self._group = outer

    # ---- cache and coordinator -----------------------------------------------------------------------------------

    def _hook_cache(self, cache: Cache) -> None:
        allocate, lookup, lookup_for_connector = cache.allocate, cache.lookup, cache.lookup_for_connector

        def allocated(
            request: Request,
            new: int,
            local: Local,
            external: int = 0,
            lookahead: int = 0,
            delayed: bool = False,
            **rest: Any,
        ) -> Blocks | None:
            label = request.label
            self._notice(request)
            self._tell_remaining()
            self.log.append(Begin(label, request.computed, local.length, external, new, lookahead, delayed))
            blocks: Blocks | None = self._for(
                label, NO_GROUP, allocate, request, new, local, external, lookahead, delayed, **rest
            )
            self.log.append(End(label, blocks is not None))
            return blocks

        def looked_up(request: Request) -> Local:
            self._notice(request)
            return self._for(request.label, NO_GROUP, lookup, request)  # type: ignore[no-any-return]

        def looked_up_for_connector(request: Request) -> Local:
            self._notice(request)
            return self._for(request.label, NO_GROUP, lookup_for_connector, request)  # type: ignore[no-any-return]

        cache.allocate = allocated  # type: ignore[method-assign, assignment]
        cache.lookup = looked_up  # type: ignore[method-assign]
        cache.lookup_for_connector = looked_up_for_connector  # type: ignore[method-assign]

    def _hook_coordinator(self, coordinator: Coordinator) -> None:
        agree, each, register = coordinator.agree, coordinator.each, coordinator.register

        def agreed(names: list[int], cap: int) -> Agreed:
            found = agree(names, cap)
            lengths = (found.length,) * len(found.blocks)
            # the model tells where the junction is, the log how far it lies behind the hit
            behind = found.junction - found.length if found.junction else 0
            self.log.append(Lookup(self._label, cap, found.length, lengths, _tuples(found.blocks), behind, "agreed"))
            return found

        def looked_up_each(names: list[int], cap: int) -> tuple[Blocks, list[int]]:
            blocks, lengths = each(names, cap)
            self.log.append(Lookup(self._label, cap, max(lengths), tuple(lengths), _tuples(blocks), 0, "each"))
            return blocks, lengths

        def registered(request: Request, tokens: int, state: int) -> None:
            self._notice(request)
            self._for(request.label, self._group, register, request, tokens, state)
            self.log.append(Commit(request.label, tokens, request.known, request.prompt))

        coordinator.agree, coordinator.each = agreed, looked_up_each  # type: ignore[method-assign]
        coordinator.register = registered  # type: ignore[method-assign]

    def _tell_remaining(self) -> None:
        """What others in flight still need: the server sums it up over a set, so that there is no order in it."""
        by_request = sorted(self._remaining, key=lambda one: (one.label, one.group))
        self.log += by_request
        self._remaining.clear()

    # ---- one group's manager -------------------------------------------------------------------------------------

    def _hook_manager(self, index: int, manager: Manager) -> None:
        estimate = manager.estimate

        def estimated(label: str, hits: Sequence[int], need: Need) -> int:
            blocks = estimate(label, hits, need)
            told = self.log if label == self._label else self._remaining
            told.append(Estimate(label, index, blocks, need.whole))
            return blocks

        manager.estimate = estimated  # type: ignore[method-assign]
        for name in ("adopt", "load", "grow", "give_up", "register", "free"):
            setattr(manager, name, self._within(index, getattr(manager, name)))

    def _within(self, index: int, method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(who: Any, *arguments: Any, **keywords: Any) -> Any:
            label = who.label if isinstance(who, Request) else who
            return self._for(label, index, method, who, *arguments, **keywords)

        return wrapped

    # ---- pool ----------------------------------------------------------------------------------------------------

    def _hook_pool(self, pool: Pool) -> None:
        take, touch, release, reset = pool.take, pool.touch, pool.release, pool.reset
        insert, remove = pool.add_key, pool.take_keys

        def taken(count: int) -> list[int]:
            blocks = take(count)
            if blocks:
                self.log.append(Take(self._label, self._group, tuple(blocks)))
            return blocks

        def touched(blocks: Iterable[int]) -> None:
            held = [block for block in blocks if block != NULL]
            if held:
                self.log.append(Touch(self._label, self._group, tuple(held), pool.evictable(held)))
            touch(held)

        def released(blocks: Iterable[int]) -> None:
            held = [block for block in blocks if block != NULL]
            if held:
                self.log.append(Release(self._label, self._group, tuple(held)))
            release(held)

        def was_reset() -> bool:
            done = reset()
            if done:
                self.keys_changed = True
                self.log.append(Clear())
            return done

        def inserted(block: int, key: Key) -> None:
            insert(block, key)
            self.keys_changed = True
            self.log.append(Register(self._label, key[0], block, key[2], key[1]))

        def removed(block: int) -> list[Key]:
            keys = remove(block)
            self.keys_changed |= bool(keys)
            self.log.extend([Drop(group, block, length, name) for group, name, length in keys])
            return keys

        pool.take, pool.touch, pool.release, pool.reset = taken, touched, released, was_reset  # type: ignore[method-assign]
        pool.add_key, pool.take_keys = inserted, removed  # type: ignore[method-assign]


def _tuples(blocks: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple([tuple(table) for table in blocks])
