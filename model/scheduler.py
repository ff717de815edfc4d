"""The scheduler: which tokens of which requests run in a step, and what becomes of its output (R8)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from kvcheck.model import laws
from kvcheck.model.actions import Arrive, Extend
from kvcheck.model.arith import ceil_div
from kvcheck.model.cache import Cache, Local
from kvcheck.model.chunks import Chunks
from kvcheck.model.coordinator import Blocks
from kvcheck.model.failed_loads import FailedLoads
from kvcheck.model.faults import Faults
from kvcheck.model.layout import Layout
from kvcheck.model.observation import Load, Processed, Scheduled, StepPlan, Tables
from kvcheck.model.pool import NULL, ServerError
from kvcheck.model.queues import ArrivalQueue, PriorityQueue, Queue
from kvcheck.model.request import Request, Status


class Connector(Protocol):
    """What the scheduler asks a connector (R7)."""

    def ask(self, request: Request, local: int) -> tuple[int | None, bool]:
        """Tokens beyond ``local`` that it has (None: ask later), and whether they are loaded asynchronously."""

    def allocated(self, request: Request, tables: Tables, fresh: Sequence[int], external: int) -> None:
        """The request has its blocks; ``fresh`` ones had no key."""

    def finished(self, request: Request, tables: Tables) -> bool:
        """The request is over; whether its blocks are kept for the connector."""

    def take_loads(self) -> tuple[Load, ...]:
        """Loads that began in this pass."""


class Scheduler:
    """One server. ``running`` in the order of admission; ``waiting`` and ``passed_over`` hold everybody else.

    ``prefills``: requests in flight that still need blocks for their prefill (R8.5.2). ``loaded``: loads that are
    over, ``failed``: loads of which something is missing. ``fenced``: blocks whose return awaits a step (R8.2.2);
    ``steps`` and ``processed_steps`` are counted for that only.
    ``idle``: sessions between two turns; they keep their place in the worker.
    """

    def __init__(self, layout: Layout, faults: Faults, connector: Connector) -> None:
        self.layout = layout
        self.faults = faults
        self.connector = connector
        self.cache = Cache(layout, faults)
        self.chunks = Chunks(layout, self.cache.coordinator.partial, faults)
        self.failures = FailedLoads(self)
        self.requests: dict[str, Request] = {}
        self.running: list[Request] = []
        self.waiting = self._queue()
        self.passed_over = self._queue()
        self.prefills: dict[str, Request] = {}
        self.loaded: set[str] = set()
        self.failed: set[str] = set()
        self.aborted_loads: set[str] = set()
        self.fenced: deque[tuple[int, list[int]]] = deque()
        self.in_flight: deque[StepPlan] = deque()
        self.passes = self.steps = self.processed_steps = 0
        self.arrivals = self.idle = 0
        self.paused = "none"
        self.finished: set[str] = set()
        self.preempted: set[str] = set()
        role = layout.connector.role if layout.connector else None
        self._fences = layout.asynchronous and role in ("consumer", "both") and not faults.frees_not_fenced
        self._pins = role in ("producer", "both") and faults.tails_pinned

    def _queue(self) -> Queue:
        return PriorityQueue() if self.layout.policy == "priority" else ArrivalQueue()

    # ---- requests come and go ------------------------------------------------------------------------------------

    def arrive(self, arrive: Arrive) -> Request:
        """A request."""
        self.arrivals += 1
        request = Request(arrive, self.arrivals, self.layout.hash_block, self.faults)
        self.requests[arrive.label] = request
        self.waiting.add(request)
        return request

    def extend(self, extend: Extend) -> None:
        """The next input of a session, or its end. It waits until the turn is over."""
        self.arrivals += 1
        request = self.requests[extend.label]
        if request.status is not Status.IDLE:
            request.inputs.append((extend, self.arrivals))
        elif extend.prompt:
            self._go_on(request, extend, self.arrivals)
        else:
            self.abort(extend.label)

    def abort(self, label: str) -> None:
        """The client goes away. Blocks that an asynchronous load still writes are kept until it reports (R7.11)."""
        request = self.requests[label]
        self._leave(request)
        loading = request.status is Status.LOADING and label not in self.loaded
        self.loaded.discard(label)
        self.failed.discard(label)
        if loading and not self.faults.aborted_load_freed_at_once:
            self.aborted_loads.add(label)
        self._end(request, keep=label in self.aborted_loads)

    def _leave(self, request: Request) -> None:
        if request.status is Status.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
            self.passed_over.remove(request)
            self.idle -= request.status is Status.IDLE

    def _end(self, request: Request, keep: bool = False) -> None:
        """The request is over; its blocks go unless somebody outside needs them."""
        self.prefills.pop(request.label, None)
        request.status = Status.HELD
        if self.layout.connector is not None:
            settled = laws.settled(request.computed, request.in_flight, self.faults)
            self.cache.give_up(request.label, laws.resumes_at(settled, request.known, self.faults))
            keep |= self.connector.finished(request, self._clipped(request))
        self.finished.add(request.label)
        self.failures.depart(request)
        if not keep:
            self._forget(request)

    def _clipped(self, request: Request) -> Tables:
        """The tables up to the computed tokens, as a connector is told them; a Mamba table as it is.

        DCP does not count here: there are more columns than computed tokens need, and the connector is told these too.
        """
        tables = self.cache.coordinator.tables(request.label)
        groups = zip(tables, self.layout.groups, strict=True)
        return tuple([t[: ceil_div(request.computed, g.block_size)] if g.is_attention else t for t, g in groups])

    def _forget(self, request: Request) -> None:
        self._free(request)
        del self.requests[request.label]

    def _free(self, request: Request) -> None:
        """Give back all blocks; fenced, if a step in flight still uses them (R8.2.2)."""
        if not self._fences or request.last_step <= self.processed_steps:
            self.cache.free_request(request.label)
        elif blocks := self.cache.remove_request(request.label):
            self.fenced.append((self.steps, blocks))

    # ---- sessions ------------------------------------------------------------------------------------------------

    def _end_turn(self, request: Request) -> bool:
        """An answer is over. Returns whether the request is; a session waits for its next input, or goes on."""
        if not request.session:
            return True
        if request.inputs and not request.inputs[0][0].prompt:
            return True
        if not self.faults.session_late_output_counted:
            self.disown_in_flight(request)
        ahead = request.computed > request.known - 1
        if not self.faults.session_counts_cut_drafts:
            request.computed = min(request.computed, request.known - 1)
        if ahead and self.layout.has_mamba and not self.faults.session_late_output_counted:
            self.start_anew(request)  # its state has moved on, and there is no way back (R2.9)
        if request.inputs:
            self._go_on(request, *request.inputs.popleft())
            self.waiting.add(request)
        else:
            request.status = Status.IDLE
            self.idle += 1
            self.passed_over.add(request)
        return False

    def _go_on(self, request: Request, extend: Extend, order: int) -> None:
        """A session goes on behind its tokens but the last one, which was sampled and never computed."""
        kept = request.known - 1
        prompt = kept + len(extend.prompt)
        if self.faults.session_counts_cut_drafts:
            kept = min(request.computed, request.known)
            prompt = max(request.prompt, kept) + len(extend.prompt)
        request.go_on(kept, prompt, extend, self.faults)
        request.order = order
        self.idle -= request.status is Status.IDLE
        request.status = Status.WAITING

    def start_anew(self, request: Request) -> None:
        """Give back everything and begin with a lookup again."""
        self._free(request)
        self.prefills.pop(request.label, None)
        request.computed = 0
        if request.status is Status.LOADING:
            self._load_over(request)

    def _load_over(self, request: Request) -> None:
        self.loaded.discard(request.label)
        self.failed.discard(request.label)
        request.status = Status.PREEMPTED if request.preemptions else Status.WAITING

    def disown_in_flight(self, request: Request) -> None:
        """What steps in flight give belongs to a former life of the request, and is dropped (R8.8)."""
        request.stale = request.in_flight
        request.drop = True
        request.placeholders = request.drafts = 0

    # ---- a pass --------------------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """Plan one step: running requests first, then as many waiting ones as fit (R8.5), but none in a pass that
        preempted (R8.5.3)."""
        self.passes += 1
        self.cache.pool.new_pass()
        plan = _Pass(self.layout, 0 if self.paused == "all" else self.layout.token_budget)
        self._plan_running(plan)
        if not plan.preempted and self.paused == "none":
            self._plan_waiting(plan)
        return self._finish_pass(plan)

    def _plan_running(self, plan: _Pass) -> None:
        index = 0
        while index < len(self.running) and plan.room > 0:
            request = self.running[index]
            count = 0 if self._surely_over(request) else self._running_count(request, plan)
            if count == 0:  # nothing to do now; those behind may have
                index += 1
                continue
            blocks, before = self._allocate_running(request, count, plan)
            index -= before
            if blocks is None:
                return
            drafts = self._drafts_in(request, count)
            plan.add(request, "running", count, drafts, tuple(map(tuple, blocks)) if any(blocks) else ())
            plan.prefills |= request.prefilling
            index += 1

    def _surely_over(self, request: Request) -> bool:
        """Whether steps in flight reach the answer's limit even if all their drafts are rejected."""
        certain = request.computed + 2 - request.placeholders
        return request.placeholders > 0 and certain >= request.prompt + request.max_tokens

    def _running_count(self, request: Request, plan: _Pass) -> int:
        count = self.chunks.limited(request.known + request.drafts + request.placeholders - request.computed)
        count = min(count, plan.room, self.layout.max_model_len - request.computed - 1)
        return self.chunks.cut(request, request.computed, count)

    def _drafts_in(self, request: Request, count: int) -> int:
        """How many of the tokens that run are drafts; the next ones are proposed later."""
        beyond = count + request.computed - request.known - request.placeholders
        drafts = max(0, min(request.drafts, beyond))
        request.drafts = 0
        return drafts

    def _allocate_running(self, request: Request, count: int, plan: _Pass) -> tuple[Blocks | None, int]:
        """Blocks for a running request; others are preempted until there are enough (R8.5.4).

        Returns the new blocks (None: it was preempted itself), and how many requests before it are gone.
        """
        before = 0
        while True:
            blocks = self.cache.allocate(request, count, self.cache.nothing, lookahead=self.layout.lookahead)
            if blocks is not None:
                return blocks, before
            if self.running == [request] and self._take_from_waiting(request):
                continue
            victim = self._victim(self.running)
            place = self.running.index(victim)
            before += place < self.running.index(request)
            del self.running[place]
            if plan.drop(victim):
                self._undo_allocation(victim)
            self.preempt(victim)
            plan.preempted = True
            if victim is request:
                return None, before

    def _undo_allocation(self, victim: Request) -> None:
        """The step that the request got blocks for will not run: their keys go (R5.5.1), and they need no zeroing,
        which could come after a load into their next life (R8.2.1)."""
        if not self.faults.preempted_keys_stay:
            self.cache.unpublish(victim.label)
        if not self.faults.preempted_blocks_zeroed:
            self.cache.forget_zeroing(victim.label)

    def _victim(self, candidates: Sequence[Request]) -> Request:
        """The last one of them, or with priorities the lowest (R8.5.4)."""
        if self.layout.policy == "priority":
            return max(candidates, key=lambda r: (r.priority, r.order))
        return candidates[-1]

    def preempt(self, request: Request, drop: bool = False) -> None:
        """The request loses its blocks and starts again from a lookup. What its steps in flight give is kept as its
        next tokens, or dropped (R8.8)."""
        self.failures.depart(request)
        self._free(request)
        self.prefills.pop(request.label, None)
        request.status = Status.PREEMPTED
        request.drop = drop or (request.drop and request.stale > 0)
        request.stale = 0 if self.faults.preempted_output_counted else request.in_flight
        request.computed = request.placeholders = request.drafts = 0
        request.preemptions += 1
        self.waiting.put_back((request,))
        self.preempted.add(request.label)

    # ---- admission -----------------------------------------------------------------------------------------------

    def _plan_waiting(self, plan: _Pass) -> None:
        skipped: list[Request] = []
        while (queue := self._next_queue()) and plan.room > 0:
            if len(self.running) + self.idle >= self.layout.max_requests:
                break
            request = queue.first()
            verdict = self._admit(request, plan)
            if verdict is _STOP:
                break
            queue.pop()
            if verdict is _SKIP:
                skipped.append(request)
        self.passed_over.put_back(skipped)
        if plan.refused and not self.running and not any(r.in_flight for r in self.requests.values()):
            self._take_from_waiting(plan.refused)

    def _next_queue(self) -> Queue | None:
        """Whom to look at next: those that were passed over before come first; with priorities the smaller rank."""
        if self.layout.policy == "priority" and self.waiting and self.passed_over:
            return self.waiting if self.waiting.first() < self.passed_over.first() else self.passed_over
        return self.passed_over or self.waiting or None

    def _take_from_waiting(self, asking: Request) -> bool:
        """Memory is short and no other request runs: the last one that waits with blocks gives them back (R8.6.1)."""
        waiting = (*self.passed_over, *self.waiting)
        holders = [r for r in waiting if r is not asking and self._waits_with_blocks(r)]
        if not holders:
            return False
        self.start_anew(self._victim(holders))
        return True

    def _waits_with_blocks(self, request: Request) -> bool:
        """Whether a request could run and holds blocks: its load is over, or it is a session with input."""
        if request.status is Status.LOADING:
            return request.label in self.loaded and not self.faults.finished_load_not_preempted
        waits = request.status is not Status.IDLE and request.computed > 0
        return waits and not self.faults.waiting_session_not_preempted

    def _admit(self, request: Request, plan: _Pass) -> object:
        """Admit a request, pass it over, or stop admitting."""
        if not self._is_ready(request):
            return _SKIP
        local, external, asynchronous = self.cache.nothing, 0, False
        if request.computed == 0:
            answer = self._hits(request)
            if answer is None:
                return _SKIP
            local, external, asynchronous = answer
        start = request.computed + local.length + external
        count, padding = (0, 0) if asynchronous else self._first_count(request, start, plan)
        if not asynchronous and count == 0:
            return _STOP
        lookahead = 0 if asynchronous else self.layout.lookahead
        blocks = self.cache.allocate(
            request,
            count,
            local,
            external,
            lookahead=lookahead,
            delayed=asynchronous,
            whole=self.layout.admit_whole,
            reserved=self._reserved(request) if asynchronous else 0,
            others_run=bool(self.running),
        )
        if blocks is None:
            plan.refused = request
            return _STOP
        self._tell_connector(request, external)
        if asynchronous:
            self._wait_for_load(request, local.length, start, plan)
            return _SKIP
        self._run(request, start, count, padding, plan)
        return _RUN

    def _is_ready(self, request: Request) -> bool:
        """Whether a request can be admitted: its load is over, it has input, and no output of its former life is
        still to come."""
        if request.status is Status.LOADING:
            if request.label not in self.loaded:
                return False
            self._end_load(request)
        if request.status is Status.IDLE:
            return False
        return request.stale == 0 or request.drop

    def _hits(self, request: Request) -> tuple[Local, int, bool] | None:
        """Local and external hits (R4, R7); None: the connector cannot tell yet."""
        if self.layout.connector is None:
            local = self.cache.lookup(request)
            request.junction = local.junction
            return local, 0, False
        diverging = self.layout.connector.divergent
        local = self.cache.lookup_for_connector(request) if diverging else self.cache.lookup(request)
        request.junction = local.junction
        if request.skip_reading and not self.faults.external_hit_for_whole_prompt:
            return local, 0, False
        told = laws.told_to_connector(local.length, self.layout.scheduler_block)
        tail = local.length - told
        answer, asynchronous = self.connector.ask(request, told)
        if answer is None:
            return None
        external = laws.external_adopted(answer, tail, self.faults)
        if tail and external:
            blocks = self.cache.truncated(local.blocks, told)
            local = local._replace(blocks=blocks, length=laws.local_adopted(local.length, external, tail))
        if laws.falls_back(local.diverged, external, self.faults):
            local = self.cache.lookup(request)
            request.junction = local.junction
        return local, external, asynchronous and external > 0

    def _first_count(self, request: Request, start: int, plan: _Pass) -> tuple[int, int]:
        """Tokens of a request's first chunk, and how many of them are padding to the size of a speculative step."""
        count, padding = request.known - start, 0
        drafts = self.layout.draft_tokens
        if count <= 0:
            raise ServerError("nothing-to-run")
        if drafts and count == 1 and plan.running and not plan.prefills:
            count, padding = 1 + drafts, drafts
            if count > plan.room or start + count > self.layout.max_model_len:
                return 0, 0
        wanted = count
        count = self.chunks.cut(request, start, min(self.chunks.limited(count), plan.room), reserve=False)
        if padding and count < wanted and not self.faults.padded_decode_clipped:
            count, padding = 1, 0
        return (self.chunks.reserve(request, start, count), padding) if count else (0, 0)

    def _reserved(self, request: Request) -> int:
        """Blocks that prefills and loads in flight still need (R8.5.2)."""
        itself = self.faults.failed_load_reserves_for_itself
        return sum(self.cache.missing(r) for r in self.prefills.values() if itself or r is not request)

    def _tell_connector(self, request: Request, external: int) -> None:
        if self.layout.connector is not None and external:
            tables = self.cache.coordinator.tables(request.label)
            keys = self.cache.pool.keys
            fresh = [b for table in tables for b in table if b != NULL and b not in keys]
            self.connector.allocated(request, tables, fresh, external)

    def _wait_for_load(self, request: Request, local: int, total: int, plan: _Pass) -> None:
        """The request holds its blocks and waits; what the load writes must not be zeroed (R7.9)."""
        request.status = Status.LOADING
        request.computed = total
        self.prefills[request.label] = request
        diverging = self.layout.connector is not None and self.layout.connector.divergent
        first = 0 if diverging and not self.faults.zeroed_below_diverged_hit else local
        for manager in self.cache.managers:
            if manager.zeroes:
                blocks = manager.rows[request.label].blocks
                plan.written.update(blocks[first // manager.block : ceil_div(total, manager.block)])

    def _end_load(self, request: Request) -> None:
        """An asynchronous load is over: its blocks are registered, and the last token is computed again (R7.9)."""
        failed = request.label in self.failed
        self._load_over(request)
        if failed:
            self.failures.retry(request)
            return
        self.cache.register(request, request.computed, request.computed)
        request.computed = min(request.computed, request.known - 1)

    def _run(self, request: Request, start: int, count: int, padding: int, plan: _Pass) -> None:
        self.running.append(request)
        resumed = request.status is Status.PREEMPTED and self.layout.worker_generation == 1
        request.status = Status.RUNNING
        request.computed = start
        tables = self.cache.coordinator.tables(request.label)
        plan.add(request, "resumed" if resumed else "new", count, padding, tables)
        if start + count < request.known:
            self.prefills[request.label] = request

    # ---- the end of a pass ---------------------------------------------------------------------------------------

    def _finish_pass(self, plan: _Pass) -> StepPlan:
        if self._pins:
            self.cache.pin_handed_over()
        copies = self.cache.take_copies()
        self._release_copies(copies)
        zero = self.cache.take_zeroed() if self.layout.zeroing or self.layout.has_mamba else []
        loads = self.connector.take_loads()
        taken = self.cache.pool.taken
        fresh = set(taken)
        made = StepPlan(
            seq=self.passes,
            requests=tuple(plan.items.values()),
            preempted=tuple(sorted(self.preempted)),
            finished=tuple(sorted(self.finished)),
            copies=tuple(copies),
            zero=tuple([b for b in zero if b not in plan.written]),
            fresh=tuple(taken),
            awaited=tuple([b for load in loads if load.asynchronous for t in load.tables for b in t if b in fresh]),
            loads=loads,
        )
        if made.requests and self._fences:
            self.steps += 1
        self._advance(made)
        self.preempted.clear()
        self.finished.clear()
        self.in_flight.append(made)
        return made

    def _release_copies(self, copies: Sequence[tuple[int, int]]) -> None:
        """Both ends of a copy are kept to the end of the pass, or until the step that copies was processed (R6.3)."""
        ends = [block for copy in copies for block in copy]
        if not ends or self.faults.copy_ends_not_kept:
            return
        if self._fences:
            self.fenced.append((self.steps + 1, ends[::-1]))
        else:
            self.cache.pool.release(ends)

    def _advance(self, plan: StepPlan) -> None:
        """What is planned counts as computed, before it is (R1.15)."""
        for item in plan.requests:
            request = self.requests[item.label]
            request.computed += item.count
            request.in_flight += item.count
            if self._fences:
                request.last_step = self.steps
            request.prefilling = request.computed < request.known + request.placeholders
            if request.prefilling:
                continue
            self.prefills.pop(item.label, None)
            if self.layout.asynchronous:
                request.placeholders += 1 + item.drafts
                request.drafts = self.layout.draft_tokens

    # ---- the output of a step ------------------------------------------------------------------------------------

    def process(
        self,
        sampled: dict[str, tuple[int, ...]],
        received: Iterable[str] = (),
        sent: Iterable[str] = (),
        invalid: Iterable[int] = (),
    ) -> Processed:
        """Process the output of the oldest step in flight: sampled tokens by request, loads and stores that are over,
        blocks that loads did not fill."""
        plan = self.in_flight.popleft()
        if self._fences and plan.requests:
            self.processed_steps += 1
            self._open_fences()
        kept: dict[str, int] = {}
        ended: list[str] = []
        failed = self.failures.handle(set(invalid), plan)
        for item in plan.requests:
            self._process_one(item, sampled.get(item.label, ()), failed, kept, ended)
        if self.layout.connector is not None and self.layout.connector.failure == "fail":
            for label in sorted(failed):
                self.abort(label)
                kept[label] = 0
                ended.append(label)
        self._transfers_over(received, sent)
        return Processed(kept, tuple(ended))

    def _open_fences(self) -> None:
        while self.fenced and self.fenced[0][0] <= self.processed_steps:
            self.cache.pool.release(reversed(self.fenced.popleft()[1]))

    def _process_one(
        self, item: Scheduled, sampled: tuple[int, ...], failed: Sequence[str], kept: dict[str, int], ended: list[str]
    ) -> None:
        request = self.requests.get(item.label)
        if request is None:
            return
        request.in_flight -= item.count
        stale = request.stale > 0
        if stale:
            request.stale -= item.count
        if item.label in failed or request.status is Status.HELD:
            return
        if stale and request.drop:
            request.drop = not self.faults.reset_drops_one_output
            return
        if item.drafts and sampled and not stale:
            self._take_back(request, item.drafts + 1 - len(sampled))
        if not sampled:
            return
        ran = request.status is Status.RUNNING
        taken = self._append(request, sampled)
        if self.layout.asynchronous:
            self._settle_output(request, taken, stale, ran)
        kept[item.label] = taken
        if request.is_over(self.layout.max_model_len):
            ended.append(item.label)
            self._stop(request)

    def _take_back(self, request: Request, rejected: int) -> None:
        """Rejected drafts are not computed (R1.16)."""
        if request.computed > 0 and not self.faults.rejected_drafts_stay:
            request.computed -= rejected
        if request.placeholders > 0:
            request.placeholders -= rejected

    def _append(self, request: Request, sampled: tuple[int, ...]) -> int:
        """Append sampled tokens up to the one that ends the answer; returns how many."""
        for count, token in enumerate(sampled, 1):
            request.append(token)
            if request.is_over(self.layout.max_model_len):
                return count
        return len(sampled)

    def _settle_output(self, request: Request, taken: int, stale: bool, ran: bool) -> None:
        """The output that was expected is there; what is final now is registered (R5)."""
        if not stale:
            request.placeholders -= taken
            if request.placeholders < 0:
                raise ServerError("output-not-expected")
        if ran:
            final = request.computed - request.placeholders
            self.cache.register(request, final, laws.state_at_output(final, self.faults))

    def _stop(self, request: Request) -> None:
        """An answer is over, of a request that runs or was preempted meanwhile."""
        runs = request.status is Status.RUNNING
        if runs or not self.faults.stopped_session_lost:
            self._leave(request)
        if self._end_turn(request):
            request.ended_well = True
            self._end(request)
        if not runs and self.faults.stopped_session_lost:
            self.waiting.remove(request)
            self.passed_over.remove(request)

    def _transfers_over(self, received: Iterable[str], sent: Iterable[str]) -> None:
        """Loads and stores that are over; one that nobody waits for is no news (R7.11)."""
        for label in received:
            request = self.requests.get(label)
            if request is not None and request.status is Status.LOADING:
                self.loaded.add(label)
            elif request is not None and self._awaits_load(request):
                self.aborted_loads.discard(label)
                if not self.faults.aborted_load_never_freed:
                    self._forget(request)
            elif self.faults.completion_reported_twice:
                raise ServerError("completion-not-expected")
        for label in sent:
            if label in self.requests:
                self._forget(self.requests[label])
            elif self.faults.completion_reported_twice:
                raise ServerError("completion-not-expected")

    def _awaits_load(self, request: Request) -> bool:
        """Whether a request that has ended is kept for its load, not for a store."""
        if self.faults.completion_reported_twice:
            return request.status is Status.HELD
        return request.label in self.aborted_loads

    def propose(self, proposed: dict[str, int]) -> None:
        """Drafts for the next step, by request; a prefill that is not over gets none."""
        for label, count in proposed.items():
            request = self.requests.get(label)
            if request is not None and request.status is not Status.HELD:
                request.drafts = 0 if request.prefilling else count

    # ---- the rest ------------------------------------------------------------------------------------------------

    def reset(self, running: bool) -> bool:
        """All keys go; ``running``: requests that run are preempted for it, and what is in flight is dropped (R8.8)."""
        while running and self.running:
            self.preempt(self.running.pop(), drop=True)
        return self.cache.pool.reset()


_RUN, _SKIP, _STOP = object(), object(), object()


Kind = Literal["new", "resumed", "running"]


class _Pass:
    """What one pass has planned so far. ``running``: requests that ran before; ``prefills``: a prefill is among them.
    ``written``: blocks that an asynchronous load will write. ``refused``: a waiting one for which memory was short."""

    def __init__(self, layout: Layout, budget: int) -> None:
        self.items: dict[str, Scheduled] = {}
        self.preempted = self.running = self.prefills = False
        self.refused: Request | None = None
        self.written: set[int] = set()
        self._tokens = budget
        self._inputs = layout.token_budget
        self._slots = layout.draft_slots

    @property
    def room(self) -> int:
        """Tokens that a request may run at most; drafters need places beside them."""
        return min(self._tokens, self._inputs - self._slots)

    def add(self, request: Request, kind: Kind, count: int, drafts: int, tables: Tables) -> None:
        """A request runs ``count`` tokens."""
        whole = kind != "running"
        self.running |= not whole
        known = request.known if kind == "new" else request.known + request.placeholders
        tokens = tuple(request.tokens) if whole else None
        item = Scheduled(request.label, kind, request.computed, count, drafts, known, tables, tokens)
        self.items[request.label] = item
        self._tokens -= count
        self._inputs -= count + self._slots

    def drop(self, request: Request) -> bool:
        """Take a request out of the plan again; whether it was in it."""
        item = self.items.pop(request.label, None)
        if item is None:
            return False
        self._tokens += item.count
        self._inputs += item.count + self._slots
        return True
