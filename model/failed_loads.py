"""What becomes of requests whose external tokens did not arrive (R7.10)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvcheck.model.arith import ceil_div, floor_div
from kvcheck.model.observation import StepPlan, Tables
from kvcheck.model.pool import NULL, ServerError
from kvcheck.model.request import Request, Status

if TYPE_CHECKING:
    from kvcheck.model.scheduler import Scheduler


class FailedLoads:
    """Finds the requests that a failed load concerns, and sets them back.

    A load before a step is registered when it is planned and fails when the step is processed. By then others may have
    hit its blocks, and its request may be gone. ``departed``: requests that left with steps in flight: the pass after
    which they did, the label, and the blocks that they held.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._layout = scheduler.layout
        self._faults = scheduler.faults
        self.departed: list[tuple[int, str, Tables]] = []
        self._keeps_all = all(g.keeps_whole_prefix for g in self._layout.groups)

    def depart(self, request: Request) -> None:
        """A request gives its blocks back while steps of it are in flight."""
        if request.in_flight and self._layout.connector is not None and not self._faults.failed_load_keeps_keys:
            tables = self._scheduler.cache.coordinator.tables(request.label)
            self.departed.append((self._scheduler.passes, request.label, tables))

    def handle(self, invalid: set[int], plan: StepPlan) -> list[str]:
        """Set back whoever relies on one of these blocks. Returns the requests whose output of this step is void."""
        self.departed = [item for item in self.departed if item[0] >= plan.seq]
        if not invalid:
            return []
        scheduler = self._scheduler
        loading = [r for r in scheduler.passed_over if r.status is Status.LOADING]
        affected: dict[str, Request] = {}
        if self._faults.failed_load_several_groups and len(self._layout.groups) > 1 and (loading or scheduler.running):
            raise ServerError("failed-load-several-groups")
        requests = (*loading, *scheduler.running)
        if self._faults.failed_load_shared_block:
            self._one_by_one(invalid, requests, {item.label: item.count for item in plan.requests}, affected)
        else:
            waiting = [
                r for r in scheduler.requests.values() if r.status in (Status.WAITING, Status.IDLE) and r.computed
            ]
            self._spread(invalid, (*requests, *waiting), affected)
        if not self._faults.failed_load_keeps_keys:
            self._withdraw(invalid)
        self._follow(loading, affected)
        return list(affected)

    def _spread(self, invalid: set[int], requests: Iterable[Request], affected: dict[str, Request]) -> None:
        """Whatever was computed behind a missing block is missing too, for whoever shares it."""
        requests = list(requests)
        known = -1
        while known != len(invalid):
            known = len(invalid)
            self._add_copies(invalid)
            for _, label, tables in self.departed:
                if self._first_bad(tables, invalid, self._layout.max_model_len) is not None:
                    self._add_behind(tables, invalid)
                    self._drop_output(label)
            for request in requests:
                tables = self._scheduler.cache.coordinator.tables(request.label)
                start = self._first_bad(tables, invalid, request.computed)
                if start is not None:
                    affected[request.label] = request
                    self._add_behind(tables, invalid)
        for request in affected.values():
            self._set_back(request, invalid)

    def _add_copies(self, invalid: set[int]) -> None:
        """A step that was planned before the load failed copies what is missing."""
        for plan in self._scheduler.in_flight:
            invalid.update(target for source, target in plan.copies if source in invalid)

    def _drop_output(self, label: str) -> None:
        """A request that was preempted meanwhile: its output in flight rests on the missing block."""
        request = self._scheduler.requests.get(label)
        if request is not None and request.stale > 0:
            request.drop = True

    def _first_bad(self, tables: Tables, invalid: set[int], computed: int) -> int | None:
        """How many first tokens do not rest on a missing block; None if none is missing."""
        firsts = [
            column * manager.block
            for manager, table in zip(self._scheduler.cache.managers, tables, strict=True)
            for column, block in enumerate(table)
            if block in invalid and column * manager.block < computed
        ]
        return min(firsts, default=None)

    def _add_behind(self, tables: Tables, invalid: set[int]) -> None:
        start = self._first_bad(tables, invalid, self._layout.max_model_len)
        if start is None:
            return
        for manager, table in zip(self._scheduler.cache.managers, tables, strict=True):
            first = start // manager.block
            invalid.update(block for block in table[first:] if block != NULL)

    def _one_by_one(
        self, invalid: set[int], requests: Iterable[Request], counts: dict[str, int], affected: dict[str, Request]
    ) -> None:
        """A missing block counts for the first request that has it; the others lose the step that runs, no more."""
        seen: set[int] = set()
        for request in requests:
            tables = self._scheduler.cache.coordinator.tables(request.label)
            before = request.computed - counts.get(request.label, 0)
            managers = self._scheduler.cache.managers
            held = {
                block
                for manager, table in zip(managers, tables, strict=True)
                for block in table[: ceil_div(before, manager.block)]
            }
            if not held & invalid:
                continue
            affected[request.label] = request
            own = held & invalid - seen
            seen |= held & invalid
            if own:
                self._add_behind(tables, own)
                self._set_back(request, own)
            else:
                request.computed = before
                self._disown(request)
        invalid |= seen

    def _set_back(self, request: Request, invalid: set[int]) -> None:
        """Back to the last boundary at which every group is valid: where nothing is ever given up, that is the first
        missing block; otherwise the request begins anew (R7.10)."""
        scheduler = self._scheduler
        tables = scheduler.cache.coordinator.tables(request.label)
        start = self._first_bad(tables, invalid, request.computed) or 0
        in_place = self._keeps_all or self._faults.failed_load_half_way_back
        if request.status is Status.LOADING:
            request.computed = start if in_place else 0
            return
        if request.status is not Status.RUNNING:  # its load is over, or its turn, and it has its blocks still
            scheduler.start_anew(request)
            return
        if not self._recomputes:  # it ends, whatever else is done with what is missing
            self._withdraw(block for table in tables for block in table if block in invalid)
        if in_place:
            request.computed = start
            if not self._faults.failed_load_keeps_keys:
                for manager in scheduler.cache.managers:
                    row = manager.rows[request.label]
                    row.registered = min(row.registered, start // manager.block)
            self._disown(request)
        elif self._recomputes:
            scheduler.running.remove(request)
            scheduler.preempt(request, drop=True)

    def _disown(self, request: Request) -> None:
        if not self._faults.failed_load_step_in_flight:
            self._scheduler.disown_in_flight(request)

    def _withdraw(self, blocks: Iterable[int]) -> None:
        """Nobody finds what is missing before it has been computed again (R7.10.1)."""
        for block in sorted(set(blocks)):
            self._scheduler.cache.pool.withdraw(block)

    def _follow(self, loading: Iterable[Request], affected: dict[str, Request]) -> None:
        """Asynchronous loads go on when they have been reported; until then the request waits."""
        for request in loading:
            if request.label in affected and self._recomputes:
                self._scheduler.failed.add(request.label)
                del affected[request.label]

    @property
    def _recomputes(self) -> bool:
        return self._layout.connector is not None and self._layout.connector.failure == "recompute"

    def retry(self, request: Request) -> None:
        """A failed load has been reported: what is valid is registered, and all other blocks go (R7.10). Kept, they
        would have to be zeroed by a step that nothing orders with what comes after an abort (R8.2.1)."""
        scheduler = self._scheduler
        if not request.computed:
            scheduler.cache.free_request(request.label)
            if not self._faults.failed_load_reserves_for_itself:
                scheduler.prefills.pop(request.label, None)
            return
        scheduler.cache.register(request, request.computed, request.computed)
        if not self._faults.failed_load_half_way_back:
            scheduler.cache.cut_back(request.label, request.computed)
            return
        for manager in scheduler.cache.managers:
            if manager.zeroes:
                blocks = manager.rows[request.label].blocks
                manager.to_zero += blocks[floor_div(request.computed, manager.block) :]
