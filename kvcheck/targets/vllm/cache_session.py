"""What every session with a real vLLM cache manager shares: names, event log, view, eviction from outside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import count
from typing import Any

from kvcheck.model.actions import Arrive
from kvcheck.model.layout import Layout
from kvcheck.model.observation import CacheView, Event, RequestView, Tables
from kvcheck.targets.places import PlacedLog
from kvcheck.targets.vllm.api import Api
from kvcheck.targets.vllm.names import GROUP_BYTES, KeyNames
from kvcheck.targets.vllm.recorder import Recorder

_STATUS = {
    "WAITING": "waiting",
    "WAITING_FOR_REMOTE_KVS": "loading",
    "WAITING_FOR_STREAMING_REQ": "idle",
    "RUNNING": "running",
    "PREEMPTED": "preempted",
}


Keys = tuple[tuple[int, int, int, int], ...]
"""Group, block, prefix length and name of each key."""


class CacheSession(ABC):
    """Observes one cache manager. Subclasses drive it, and say which requests there are."""

    def __init__(self, api: Api, layout: Layout, manager: Any) -> None:
        self._api = api
        self._layout = layout
        self._manager = manager
        self.promises = api.promises(layout)
        self._names = KeyNames(layout.hash_block, self.promises.hash_lookahead, api.external_hash)
        self._recorder = Recorder(manager, self._names)
        for name in ("get_computed_blocks", "get_computed_blocks_for_connector"):
            if hasattr(manager, name):
                setattr(manager, name, self._recorder.looking_up(getattr(manager, name)))
        self._arrivals: dict[str, Arrive] = {}
        self._times = count(1)
        self._books: tuple[Keys, Keys] = ((), ())

    @abstractmethod
    def _requests(self) -> dict[str, Any]:
        """The server's requests by label."""

    @abstractmethod
    def _running(self) -> Iterable[Any]:
        """Those that run."""

    @abstractmethod
    def _waiting(self) -> Iterable[Iterable[Any]]:
        """The queues of those that do not."""

    @abstractmethod
    def _holders(self) -> tuple[tuple[tuple[int, int], ...], int]:
        """References outside the tables, by block, and how many blocks await a step in flight."""

    def _made_request(self, arrive: Arrive) -> Any:
        """The server's request object for an arrival."""
        self._arrivals[arrive.label] = arrive
        self._names.arrive(arrive)
        request = self._api.request(arrive, self._layout, next(self._times))
        self._names.learn(arrive.label, request)
        self._learn_with_tokens(request)
        return request

    def _learn_with_tokens(self, request: Any) -> None:
        """Name each hash when its last token comes: a session may discard that token and keep the hash."""
        update = request.update_block_hashes

        def updated() -> None:
            update()
            self._recorder.learn(request.request_id, request)

        request.update_block_hashes = updated

    def evict(self, group: int, label: str, prefix: int) -> bool:
        """Evict the cached blocks with this key."""
        hashes, index = self._names.hashes(label), prefix // self._layout.hash_block - 1
        if prefix % self._layout.hash_block or not 0 <= index < len(hashes):
            return False
        raw = hashes[index] + group.to_bytes(GROUP_BYTES, "big")
        blocks = {block for key, ids in self._api.key_map(self._manager.block_pool) if key == raw for block in ids}
        if blocks:
            self._manager.evict_blocks(blocks)
        return bool(blocks)

    def place_events(self) -> PlacedLog:
        """From now on, note of each event where in the server it comes from."""
        self._recorder.log = log = PlacedLog(self._recorder.log)
        return log

    def take_log(self) -> tuple[Event, ...]:
        """Events since the last call."""
        return self._recorder.take()

    def view(self) -> CacheView:
        """The bookkeeping as it is."""
        requests = self._requests()
        for label, request in requests.items():
            self._recorder.learn(label, request)
        pool = self._manager.block_pool
        holders, deferred = self._holders()
        if self._recorder.keys_changed:  # nothing but the hooked map changes them, and most actions do not
            self._recorder.keys_changed = False
            self._books = self._keys(pool), self._block_keys(pool)
        free = pool.free_block_queue
        return CacheView(
            refs=(0, *[block.ref_cnt for block in pool.blocks[1:]]),
            free=tuple([block.block_id for block in free.get_all_free_blocks()]),
            free_count=free.num_free_blocks,
            keys=self._books[0],
            block_keys=self._books[1],
            tables=self._tables(),
            holders=holders,
            requests={label: self._request_view(r) for label, r in requests.items()},
            running=tuple([r.request_id for r in self._running()]),
            waiting=tuple([r.request_id for queue in self._waiting() for r in queue]),
            deferred=deferred,
        )

    def _keys(self, pool: Any) -> Keys:
        name = self._names.key
        found = []
        for raw, blocks in self._api.key_map(pool):
            group, length, key = name(raw)
            found.extend([(group, block, length, key) for block in blocks])
        return tuple(found)

    def _block_keys(self, pool: Any) -> Keys:
        name = self._names.key
        found = []
        for block in pool.blocks:
            if (raw := block.block_hash) is not None:
                group, length, key = name(raw)
                found.append((group, block.block_id, length, key))
        for block_id, raws in pool.cached_block_hashes_by_block.items():
            for raw in raws:
                group, length, key = name(raw)
                found.append((group, block_id, length, key))
        return tuple(found)

    def _tables(self) -> dict[str, Tables]:
        singles = self._manager.coordinator.single_type_managers
        labels = dict.fromkeys(label for single in singles for label in single.req_to_blocks)
        return {
            label: tuple(tuple([block.block_id for block in single.req_to_blocks.get(label, ())]) for single in singles)
            for label in labels
        }

    @staticmethod
    def _request_view(request: Any) -> RequestView:
        return RequestView(
            "held" if request.is_finished() else _STATUS[request.status.name],  # type: ignore[arg-type]
            request.num_prompt_tokens,
            request.num_tokens,
            request.num_computed_tokens,
            request.num_in_flight_tokens,
            request.num_output_placeholders,
        )
