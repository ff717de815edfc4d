"""One real vLLM server at scheduler level: its scheduler, with cache manager, coordinator and pool inside."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from kvcheck.model.actions import Arrive, Extend
from kvcheck.model.layout import Layout
from kvcheck.model.observation import Asked, Processed, Scheduled, StepPlan, Store, Tables
from kvcheck.model.script import Script
from kvcheck.targets.base import StepOutput
from kvcheck.targets.vllm.api import Api
from kvcheck.targets.vllm.cache_session import CacheSession


class SchedulerSession(CacheSession):
    """Drives one scheduler. Everything the scheduler raises comes out as it is.

    ``scheduler`` is the server's own, for whoever records it.
    """

    def __init__(self, api: Api, layout: Layout) -> None:
        self._scheduler = self.scheduler = api.scheduler(layout, self)
        super().__init__(api, layout, self._scheduler.kv_cache_manager)
        self._script = Script(layout, self.promises.failed_by_request)
        self._in_flight: deque[tuple[Any, StepPlan]] = deque()
        self._passes = 0
        self._finish_in_order()

    def _finish_in_order(self) -> None:
        """Requests that the server ends together, as a set, are ended one by one: the same in every process."""
        finish = self._scheduler.finish_requests

        def in_order(labels: Any, status: Any) -> Any:
            if not isinstance(labels, set):
                return finish(labels, status)
            return [ended for label in sorted(labels) for ended in finish(label, status) or ()]

        self._scheduler.finish_requests = in_order

    def _requests(self) -> dict[str, Any]:
        requests: dict[str, Any] = self._scheduler.requests
        return requests

    def _running(self) -> Iterable[Any]:
        running: list[Any] = self._scheduler.running
        return running

    def _waiting(self) -> Iterable[Iterable[Any]]:
        return self._api.waiting(self._scheduler)

    def _holders(self) -> tuple[tuple[tuple[int, int], ...], int]:
        return self._api.holders(self._manager, self._scheduler)

    # ---- actions -------------------------------------------------------------------------------------------------

    def arrive(self, request: Arrive) -> None:
        """Add a request."""
        self._script.arrive(request)
        self._scheduler.add_request(self._made_request(request))

    def extend(self, update: Extend) -> None:
        """Give a session its next input, or end it."""
        first = self._arrivals[update.label]
        self._scheduler.add_request(self._api.update(first, update, self._layout, next(self._times)))

    def schedule(self) -> StepPlan:
        """One scheduling pass."""
        self._passes += 1
        self._recorder.fresh.clear()
        output = self._scheduler.schedule()
        plan = self._plan(output)
        self._in_flight.append((output, plan))
        return plan

    def process(self, output: StepOutput) -> Processed:
        """Process the output of the oldest step in flight."""
        planned, plan = self._in_flight.popleft()
        self._script.over((*output.received, *output.failed))
        result = self._scheduler.update_from_output(planned, self._api.runner_output(planned, output, self._layout))
        kept: dict[str, int] = {}
        ended: list[str] = []
        for outputs in result.values():
            for one in outputs.outputs:
                kept[one.request_id] = len(one.new_token_ids)
                if one.finish_reason is not None:
                    ended.append(one.request_id)
        if self._layout.draft_tokens and not self._layout.asynchronous:
            self._propose(plan, output)
        return Processed(kept, tuple(ended))

    def _propose(self, plan: StepPlan, output: StepOutput) -> None:
        labels = [r.label for r in plan.requests if r.label in self._scheduler.requests]
        drafts = [[0] * output.proposed.get(label, 0) for label in labels]
        self._scheduler.update_draft_token_ids(self._api.draft_token_ids(labels, drafts))

    def abort(self, label: str) -> None:
        """End a request from outside."""
        self._scheduler.finish_requests(label, self._api.aborted)

    def reset(self, running: bool) -> bool:
        """Reset the prefix cache; a scheduler that says that it cannot has declined."""
        try:
            return bool(self._scheduler.reset_prefix_cache(reset_running_requests=running))
        except RuntimeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                inner = error.__traceback__.tb_next
                while inner.tb_next is not None:
                    inner = inner.tb_next
                if inner.tb_frame.f_code.co_name == "reset_prefix_cache":
                    return False
            raise

    def pause(self, what: str) -> bool:
        """Pause scheduling or go on."""
        return self._api.pause(self._scheduler, what)

    def settle(self) -> None:
        """From now on the connector answers at once and loads arrive whole."""
        self._script.settle()

    # ---- the scripted connector calls these ----------------------------------------------------------------------

    @property
    def divergent(self) -> bool:
        """Whether the connector declares support for local hits of unequal length."""
        return self._layout.connector is not None and self._layout.connector.divergent

    requires_delivery = False

    def matched(self, request: Any, num_local_tokens: int) -> tuple[int | None, bool]:
        """How many tokens beyond the local ones the connector has, and whether it loads them asynchronously."""
        label = request.request_id
        external, asynchronous = self._script.ask(label, request.num_tokens, num_local_tokens)
        self._recorder.log.append(Asked(label, num_local_tokens, external, asynchronous))
        return external, asynchronous

    def allocated(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The request has its blocks; external tokens will be loaded into them."""
        if num_external_tokens:
            fresh = [b.block_id for group in blocks.blocks for b in group if b.block_hash is None and not b.is_null]
            tables = tuple(tuple(b.block_id for b in group) for group in blocks.blocks)
            self._script.allocated(request.request_id, tables, fresh, num_external_tokens)

    def finished(self, request: Any, block_ids: Any) -> bool:
        """The request is over; whether its blocks are kept until the connector has read them."""
        ended_well = request.status.name in ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED")
        settled = min(request.num_computed_tokens - request.num_in_flight_tokens, request.num_tokens - 1)
        ended_well = ended_well and request.num_computed_tokens > 0
        return self._script.finished(request.request_id, ended_well, max(0, settled), _tables(block_ids))

    def build_meta(self, scheduler_output: Any) -> object:  # noqa: ARG002
        """What a step tells the worker's side: nothing, the plan says it."""
        return None

    def events(self) -> tuple[Any, ...]:
        """KV events of the connector's own: none."""
        return ()

    # ---- observation ---------------------------------------------------------------------------------------------

    def take_stores(self) -> tuple[Store, ...]:
        """Stores that began since the last call."""
        return self._script.take_stores()

    def _plan(self, output: Any) -> StepPlan:
        requests = [self._new(data, output) for data in output.scheduled_new_reqs]
        cached = output.scheduled_cached_reqs
        resumed = set(cached.resumed_req_ids)
        requests += [self._cached(i, label, label in resumed, cached, output) for i, label in enumerate(cached.req_ids)]
        by_label = {item.label: item for item in requests}
        taken = set(self._recorder.fresh)
        loads = self._script.take_loads()
        awaited = [b for load in loads if load.asynchronous for table in load.tables for b in table if b in taken]
        return StepPlan(
            seq=self._passes,
            requests=tuple(by_label[label] for label in output.num_scheduled_tokens),
            preempted=tuple(sorted(output.preempted_req_ids or ())),
            finished=tuple(sorted(output.finished_req_ids)),
            copies=tuple((c.src_block_id, c.dst_block_id) for c in output.kv_cache_block_copies or ()),
            zero=tuple(output.new_block_ids_to_zero or ()),
            fresh=tuple(self._recorder.fresh),
            awaited=tuple(awaited),
            loads=loads,
        )

    def _new(self, data: Any, output: Any) -> Scheduled:
        label = data.req_id
        tokens = tuple(self._scheduler.requests[label].all_token_ids)
        drafts = len(output.scheduled_spec_decode_tokens.get(label, ()))
        count = output.num_scheduled_tokens[label]
        return Scheduled(
            label, "new", data.num_computed_tokens, count, drafts, len(tokens), _tables(data.block_ids), tokens
        )

    def _cached(self, index: int, label: str, resumed: bool, cached: Any, output: Any) -> Scheduled:
        request = self._scheduler.requests[label]
        blocks = cached.new_block_ids[index]
        return Scheduled(
            label,
            "resumed" if resumed else "running",
            cached.num_computed_tokens[index],
            output.num_scheduled_tokens[label],
            len(output.scheduled_spec_decode_tokens.get(label, ())),
            request.num_prompt_tokens + cached.num_output_tokens[index],
            () if blocks is None else _tables(blocks),
            tuple(request.all_token_ids) if resumed else None,
        )


def _tables(blocks: Iterable[Iterable[int]]) -> Tables:
    return tuple(tuple(group) for group in blocks)
