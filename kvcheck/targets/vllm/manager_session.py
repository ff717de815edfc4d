"""One real vLLM cache manager, driven without the server's scheduler: lookup, allocate, register, free.

A small scheduler of our own stands in: first come, first served, chunks that end at every Mamba boundary, the last
request is preempted when memory is short. It reaches states of the cache manager that the real one's order of calls
rules out, so what it finds must be argued from the cache manager's own contract.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from kvcheck.model.actions import Arrive, Extend
from kvcheck.model.arith import round_down
from kvcheck.model.layout import Layout
from kvcheck.model.observation import Processed, Scheduled, StepPlan, Store
from kvcheck.targets.base import StepOutput, UnsupportedLayout
from kvcheck.targets.vllm.api import Api, accepted
from kvcheck.targets.vllm.cache_session import CacheSession


def refusal(layout: Layout) -> str:
    """Why a layout cannot be driven at this level; empty if it can."""
    beyond = layout.asynchronous or layout.connector is not None or layout.drafter is not None
    return "at cache-manager level there are no overlapping steps, connectors or drafters" if beyond else ""


class ManagerSession(CacheSession):
    """Drives one cache manager with synchronous steps."""

    def __init__(self, api: Api, layout: Layout) -> None:
        if why := refusal(layout):
            raise UnsupportedLayout(why)
        super().__init__(api, layout, api.manager(layout))
        self._all: dict[str, Any] = {}
        self._run: list[Any] = []
        self._queue: deque[Any] = deque()
        self._in_flight: deque[StepPlan] = deque()
        self._preempted: list[str] = []
        self._finished: list[str] = []
        self._passes = 0

    def _requests(self) -> dict[str, Any]:
        return self._all

    def _running(self) -> Iterable[Any]:
        return self._run

    def _waiting(self) -> Iterable[Iterable[Any]]:
        return (self._queue,)

    def _holders(self) -> tuple[tuple[tuple[int, int], ...], int]:
        return self._api.holders(self._manager, None)

    # ---- actions -------------------------------------------------------------------------------------------------

    def arrive(self, request: Arrive) -> None:
        """Add a request; sessions are ordinary requests here."""
        made = self._made_request(request)
        self._all[request.label] = made
        self._queue.append(made)

    def extend(self, update: Extend) -> None:
        """There are no sessions at this level."""

    def schedule(self) -> StepPlan:
        """One pass: running requests first, then as many waiting ones as fit."""
        self._passes += 1
        self._recorder.fresh.clear()
        self._manager.new_step_starts()
        budget, planned = self._layout.token_budget, []
        for request in list(self._run):
            if request not in self._run:
                continue
            count = self._chunk(request, request.num_computed_tokens, budget)
            blocks = self._allocated(request, count) if count else None
            if blocks is not None:
                planned.append(self._running_item(request, count, blocks))
                budget -= count
        planned = [item for item in planned if self._all[item.label] in self._run]
        if not self._preempted:
            planned += self._admitted(budget)
        return self._planned(planned)

    def process(self, output: StepOutput) -> Processed:
        """Append what was sampled; end what is at its end."""
        plan = self._in_flight.popleft()
        kept: dict[str, int] = {}
        ended: list[str] = []
        for item in plan.requests:
            request = self._all.get(item.label)
            if request is None or request not in self._run:
                continue
            request.num_in_flight_tokens -= item.count
            for token in output.sampled.get(item.label, ()):
                request.append_output_token_ids(token)
                kept[item.label] = kept.get(item.label, 0) + 1
            if kept.get(item.label) and self._is_over(request):
                ended.append(item.label)
                self._end(request)
        return Processed(kept, tuple(ended))

    def abort(self, label: str) -> None:
        """End a request from outside."""
        self._end(self._all[label])

    def reset(self, running: bool) -> bool:
        """Reset the prefix cache."""
        while running and self._run:
            self._preempt(self._run[-1])
        return bool(self._manager.reset_prefix_cache())

    def pause(self, what: str) -> bool:  # noqa: ARG002
        """There is nothing to pause at this level."""
        return False

    def settle(self) -> None:
        """There are no faults at this level."""

    def take_stores(self) -> tuple[Store, ...]:
        """There are no stores at this level."""
        return ()

    # ---- a pass --------------------------------------------------------------------------------------------------

    def _chunk(self, request: Any, start: int, budget: int) -> int:
        """Tokens to run: never past a Mamba boundary, nor past the prompt's last hash boundary (R8.4)."""
        end = min(request.num_tokens, start + budget, self._layout.max_model_len - 1)
        if self._layout.has_mamba and start < request.num_prompt_tokens:
            grid = next(g.block_size for g in self._layout.groups if not g.is_attention)
            stops = [round_down(start, grid) + grid]
            if self._layout.partial_hits:
                stops.append(round_down(request.num_prompt_tokens - 1, self._layout.hash_block))
            end = min([end, *(stop for stop in stops if stop > start)])
        return max(0, int(end) - start)

    def _allocated(self, request: Any, count: int) -> Any:
        """Blocks for a running request; the last ones are preempted until there are enough."""
        while (blocks := self._manager.allocate_slots(request, count)) is None:
            victim = self._run[-1]
            self._preempt(victim)
            if victim is request:
                return None
        return blocks

    def _admitted(self, budget: int) -> list[Scheduled]:
        planned = []
        while self._queue and len(self._run) < self._layout.max_requests and budget > 0:
            request = self._queue[0]
            blocks, local, junction = self._manager.get_computed_blocks(request)
            request.shared_prefix_boundary = junction
            count = self._chunk(request, local, budget)
            taken = count and self._admit(request, count, local, blocks)
            if not taken:
                break
            self._queue.popleft()
            self._run.append(request)
            request.status = type(request.status)["RUNNING"]
            request.num_computed_tokens = local
            tables = tuple(tuple(table) for table in self._manager.get_block_ids(request.request_id))
            tokens = tuple(request.all_token_ids)
            planned.append(Scheduled(request.request_id, "new", local, count, 0, len(tokens), tables, tokens))
            self._advance(request, count)
            budget -= count
        return planned

    def _admit(self, request: Any, count: int, local: int, blocks: Any) -> Any:
        allocate = self._manager.allocate_slots
        known = type(self._manager).allocate_slots  # the instance's one is hooked and takes anything
        rules = accepted(known, full_sequence_must_fit=self._layout.admit_whole, has_scheduled_reqs=bool(self._run))
        return allocate(request, count, num_new_computed_tokens=local, new_computed_blocks=blocks, **rules)

    def _running_item(self, request: Any, count: int, blocks: Any) -> Scheduled:
        tables = tuple(tuple(table) for table in blocks.get_block_ids())
        start = request.num_computed_tokens
        self._advance(request, count)
        return Scheduled(request.request_id, "running", start, count, 0, request.num_tokens, tables)

    @staticmethod
    def _advance(request: Any, count: int) -> None:
        request.num_computed_tokens += count
        request.num_in_flight_tokens += count

    def _planned(self, items: list[Scheduled]) -> StepPlan:
        copies, retained = self._manager.take_kv_cache_block_copies()
        self._manager.block_pool.free_blocks(retained)
        fresh = self._manager.take_new_block_ids()
        plan = StepPlan(
            seq=self._passes,
            requests=tuple(items),
            preempted=tuple(self._preempted),
            finished=tuple(self._finished),
            copies=tuple((c.src_block_id, c.dst_block_id) for c in copies),
            zero=tuple(fresh) if self._layout.zeroing or self._layout.has_mamba else (),
            fresh=tuple(self._recorder.fresh),
        )
        self._preempted.clear()
        self._finished.clear()
        self._in_flight.append(plan)
        return plan

    # ---- ends ----------------------------------------------------------------------------------------------------

    def _is_over(self, request: Any) -> bool:
        arrival, outputs = self._arrivals[request.request_id], request.num_output_tokens
        stopped = arrival.stop is not None and request.all_token_ids[-1] == arrival.stop
        return bool(stopped or outputs >= arrival.max_tokens or request.num_tokens >= self._layout.max_model_len)

    def _preempt(self, request: Any) -> None:
        self._run.remove(request)
        self._manager.free(request)
        request.num_computed_tokens = request.num_in_flight_tokens = 0
        request.status = type(request.status)["PREEMPTED"]
        self._queue.appendleft(request)
        self._preempted.append(request.request_id)

    def _end(self, request: Any) -> None:
        label = request.request_id
        if request in self._run:
            self._run.remove(request)
        else:
            self._queue.remove(request)
        self._manager.free(request)
        del self._all[label]
        self._finished.append(label)
