"""The recorder inside a running server: hooks on one scheduler, which write down what is done to it and what it does.

It must cost next to nothing and must never harm the server. So it asks the bookkeeping nothing, takes what the
scheduler has made anyway, and leaves the rest for when there is time: the identities of tokens, and the writing. At its
first mistake it ends itself.

Judging is for later: a server that is made from the layout is given the same once more, with this same recorder on it,
and must write the same lines (``kvcheck.engines.retracing``); then everything else about it is known too.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import kvcheck
from kvcheck.model.layout import Layout
from kvcheck.model.observation import Failure, Tables
from kvcheck.targets.failures import HarnessError, failure_of
from kvcheck.targets.recording import (
    Aborted,
    AnyLine,
    Arrived,
    Closed,
    Drafted,
    Ended,
    Opened,
    Outside,
    Paused,
    Planned,
    Raised,
    Reset,
    Sampled,
    Told,
)
from kvcheck.targets.vllm import live_layout
from kvcheck.targets.vllm.identities import Identities
from kvcheck.targets.vllm.pool_hooks import hook_pool

Sink = Callable[[AnyLine], None]
"""Where lines go. Whatever it raises ends the recording, not the server."""

_PAUSES = {"UNPAUSED": "none", "PAUSED_NEW": "new", "PAUSED_ALL": "all"}
Ending = tuple[Any, str, bool, list[int]]
"""A request that is over, its status, whether its blocks are held, and its tokens behind the prompt."""

_WHY = {
    "FINISHED_STOPPED": "stop", "FINISHED_REPETITION": "stop", "FINISHED_LENGTH_CAPPED": "length",
}  # fmt: skip

log = logging.getLogger("kvcheck.record")


class _Known:
    """A request that is not over: its number, the server's object, and the state of its prompt's identities."""

    __slots__ = ("number", "request", "state")

    def __init__(self, number: int, request: Any, state: int) -> None:
        self.number, self.request, self.state = number, request, state


class Pace(Protocol):
    """When the work that can wait is done."""

    def later(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do this after all that was to be done before it."""

    def catch_up(self) -> None:
        """Do all that is still to be done now."""

    def stop(self) -> None:
        """There will be nothing more to do."""


class AtOnce:
    """Nothing waits."""

    def later(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do this now."""
        work(*arguments)

    def catch_up(self) -> None:
        """There is nothing left."""

    def stop(self) -> None:
        """There is nothing that goes on."""


class LiveRecorder:
    """Records one scheduler from its first request on, unless ``opened`` says why it cannot.

    What is known of requests (their numbers, the state of their identities) belongs to the work that can wait, so that
    it is always as far as the line that is being written.
    """

    def __init__(self, scheduler: Any, sink: Sink, version: str = "", pace: Pace | None = None) -> None:
        self._scheduler = scheduler
        self._sink = sink
        self._pace = pace or AtOnce()
        self._identities = Identities()
        self._on = False
        self._inside = False
        self._count = 0
        self._numbers: dict[str, int] = {}
        self._known: dict[str, _Known] = {}
        self._adapters: dict[str, int] = {}
        self._in_flight: deque[Any] = deque()
        self._ran: list[str] = []
        self._went_on: list[str] = []
        self._log: list[tuple[str, Sequence[Any]]] = []
        self._ended: list[Ending] = []
        self.opened = self._open(version)
        sink(self.opened)
        self._on = self.opened.layout is not None
        if not self._on:
            self._pace.stop()

    def _open(self, version: str) -> Opened:
        layout: Layout | None = None
        settings: dict[str, live_layout.Setting] = {}
        outside: tuple[str, ...] = ()
        try:
            layout, settings = live_layout.layout_of(self._scheduler), live_layout.settings_of(self._scheduler)
            self._hook(self._scheduler)
        except live_layout.Outside as why:
            outside = (str(why),)
        except Exception as error:  # noqa: BLE001  a scheduler that lacks what those of the releases have
            layout, outside = None, (f"its scheduler is not known here ({type(error).__name__}: {error})",)
        return Opened(kvcheck=kvcheck.__version__, vllm=version, layout=layout, settings=settings, outside=outside)

    # ---- hooks ---------------------------------------------------------------------------------------------------

    def _hook(self, scheduler: Any) -> None:
        """All methods are looked up before one is replaced: a scheduler that lacks one is left as it is."""
        pool, connector = scheduler.kv_cache_manager.block_pool, scheduler.connector
        made = [
            (pool, "evict_blocks", self._evicting(pool.evict_blocks)),
            (scheduler, "schedule", self._passing(scheduler.schedule)),
            (scheduler, "add_request", self._entering(scheduler.add_request, self._arrives)),
            (scheduler, "update_from_output", self._entering(scheduler.update_from_output, self._sampled)),
            (scheduler, "update_draft_token_ids", self._entering(scheduler.update_draft_token_ids, self._drafted)),
            (scheduler, "finish_requests", self._entering(scheduler.finish_requests, self._aborted)),
            (scheduler, "set_pause_state", self._entering(scheduler.set_pause_state, self._paused)),
            (scheduler, "reset_prefix_cache", self._entering(scheduler.reset_prefix_cache, self._reset, RuntimeError)),
            (scheduler, "_free_request", self._ending(scheduler._free_request)),
            (scheduler, "shutdown", self._closing(scheduler.shutdown)),
        ]
        if connector is not None:
            asking = self._asking(connector.get_num_new_matched_tokens)
            made.append((connector, "get_num_new_matched_tokens", asking))
        hook_pool(pool, self)
        for owner, name, hook in made:
            setattr(owner, name, hook)

    def _passing(self, schedule: Callable[..., Any]) -> Callable[..., Any]:
        """A scheduling pass."""

        def passing(*args: Any, **kwargs: Any) -> Any:
            if not self._on:
                return schedule(*args, **kwargs)
            if any(args) or any(kwargs.values()):
                self.outside("prefills that are held back for other engines")
            self._inside = True
            try:
                output = schedule(*args, **kwargs)
            except Exception as error:
                self._raised(error, "schedule")
                raise
            finally:
                self._inside = False
            self._safely(self._planned, output)
            return output

        return passing

    def _entering(
        self, method: Callable[..., Any], before: Callable[..., None], declining: Any = ()
    ) -> Callable[..., Any]:
        """A call from outside. What the server calls of itself is none. ``declining``: what it raises to say no."""

        def entering(*args: Any, **kwargs: Any) -> Any:
            if not self._on or self._inside:
                return method(*args, **kwargs)
            self._safely(before, *args, **kwargs)
            self._inside = True
            try:
                result = method(*args, **kwargs)
            except declining:
                self._safely(self._told, False)
                raise
            except Exception as error:
                self._raised(error, "input")
                raise
            finally:
                self._inside = False
            self._safely(self._told, result)
            return result

        return entering

    def _ending(self, free: Callable[..., Any]) -> Callable[..., Any]:
        """A request is over."""

        def ending(request: Any, *args: Any, **kwargs: Any) -> Any:
            result = free(request, *args, **kwargs)
            self._safely(self._end, request)
            return result

        return ending

    def _evicting(self, evict: Callable[..., Any]) -> Callable[..., Any]:
        """Blocks lose their keys though nobody takes them."""

        def evicting(*args: Any, **kwargs: Any) -> Any:
            if not self._inside:
                self._elsewhere()
            return evict(*args, **kwargs)

        return evicting

    def _asking(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        """The connector is asked."""

        def asking(request: Any, num_computed_tokens: int) -> Any:
            external, asynchronous = answer = ask(request, num_computed_tokens)
            self._safely(self._asked, request.request_id, num_computed_tokens, external, asynchronous)
            return answer

        return asking

    def _closing(self, shutdown: Callable[..., Any]) -> Callable[..., Any]:
        """The server ends."""

        def closing(*args: Any, **kwargs: Any) -> Any:
            self.close()
            return shutdown(*args, **kwargs)

        return closing

    def _safely(self, note: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Write something down; a mistake of ours, or a full disk, ends the recording and nothing else."""
        if not self._on:
            return
        try:
            note(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  the server must go on
            self._stop()
            log.warning("the recording has ended: %s: %s", type(error).__name__, error)

    def _later(self, note: Callable[..., None], *args: Any) -> None:
        self._pace.later(self._safely, note, *args)

    # ---- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Nothing more is recorded."""
        self._later(self._close)
        self._pace.catch_up()

    def outside(self, why: str) -> None:
        """Something is the case that no action can say: nothing after it could be judged, so the recording ends."""
        self._later(self._sink, Outside(why=why))
        self.close()

    def _close(self) -> None:
        alive = list(self._known.values())
        self._sink(Closed(alive=[self._end_of(one, "alive", False, _answer(one.request)) for one in alive]))
        self._stop()

    def _stop(self) -> None:
        self._on = False
        self._pace.stop()

    def _raised(self, error: Exception, during: Any) -> None:
        self._safely(self._raise, error, during)
        self.close()

    def _raise(self, error: Exception, during: Any) -> None:
        try:
            failure = failure_of(error)
        except HarnessError:
            failure = Failure(type(error).__name__, "", "", 0, "")
        failure = Failure(failure.type, failure.function, failure.file, failure.line, "", failure.stack)
        self._later(self._write_outcome, Raised, {"during": during, "failure": failure}, *self._happened())

    def _happened(self) -> tuple[Any, list[Ending]]:
        """What the pool did and who ended since it was asked last."""
        happened = self._log, self._ended
        self._log, self._ended = [], []
        return happened

    # ---- what is done to the server ------------------------------------------------------------------------------

    def _arrives(self, request: Any) -> None:
        self._later(self._write_arrival, request)

    def _write_arrival(self, request: Any) -> None:
        outside = self._unsayable(request)
        number, self._count = self._count, self._count + 1
        self._numbers[request.request_id] = number
        prompt, state = self._identities.of(request.prompt_token_ids or ())
        self._known[request.request_id] = _Known(number, request, state)
        lora = request.lora_request
        self._sink(
            Arrived(
                request=number,
                prompt=prompt,
                max_tokens=request.max_tokens,
                salt=self._identities.name(request.cache_salt) if request.cache_salt else "",
                adapter=0 if lora is None else self._adapters.setdefault(lora.lora_name, len(self._adapters) + 1),
                skip_reading=bool(request.skip_reading_prefix_cache),
                priority=request.priority,
                outside=outside,
            )
        )
        if outside:
            self._close()

    def _unsayable(self, request: Any) -> str:
        if request.request_id in self._known or request.resumable:
            return "a session that gets its input bit by bit"
        if request.prompt_token_ids is None or getattr(request, "prompt_embeds", None) is not None:
            return "a prompt of embeddings"
        if request.mm_features:
            return "inputs of an encoder"
        if request.structured_output_request is not None:
            return "structured output"
        return "a request that does not generate" if request.pooling_params is not None else ""

    def _sampled(self, planned: Any, output: Any) -> None:
        if not self._in_flight or self._in_flight.popleft() is not planned:
            self.outside("the output of a step that is not the oldest in flight")
            return
        received: list[str] = []
        sent: list[str] = []
        transfers = output.kv_connector_output
        if transfers is not None:
            if transfers.invalid_block_ids or getattr(transfers, "failed_recving", None):
                self.outside("a load that failed")
                return
            received, sent = list(transfers.finished_recving or ()), list(transfers.finished_sending or ())
        counts = _counts(planned, output) if planned.scheduled_spec_decode_tokens else None
        self._later(self._write_sample, planned, output, counts, received, sent)

    def _write_sample(
        self, planned: Any, output: Any, counts: list[int] | None, received: list[str], sent: list[str]
    ) -> None:
        """``counts``: of a step with drafts, because the server cuts what it does not keep of several tokens."""
        counts = _counts(planned, output) if counts is None else counts
        plain = counts.count(1) == len(counts)
        numbers = [
            tuple(sorted(self._numbers[one] for one in them if one in self._numbers)) for them in (received, sent)
        ]
        for label in sent:
            if label not in self._known:
                self._numbers.pop(label, None)
        self._sink(Sampled(counts=None if plain else counts, received=numbers[0], sent=numbers[1]))

    def _drafted(self, drafts: Any) -> None:
        self._later(self._write_drafts, list(drafts.req_ids), list(map(len, drafts.draft_token_ids)))

    def _write_drafts(self, labels: list[str], counts: list[int]) -> None:
        pairs = zip(labels, counts, strict=False)
        self._sink(Drafted(counts={self._numbers[label]: count for label, count in pairs if label in self._numbers}))

    def _aborted(self, labels: Any, status: Any) -> None:  # noqa: ARG002  as the server calls it
        self._later(self._sink, Aborted())

    def _reset(self, reset_running_requests: bool = False, reset_connector: bool = False) -> None:
        if reset_connector and self._scheduler.connector is not None:
            self.outside("a reset of the connector")
            return
        self._later(self._sink, Reset(running=reset_running_requests))

    def _paused(self, state: Any) -> None:
        self._later(self._sink, Paused(what=_PAUSES[state.name]))  # type: ignore[arg-type]

    # ---- what the server does ------------------------------------------------------------------------------------

    def _told(self, result: Any) -> None:
        """What came of a call; nothing is written of one that nothing came of."""
        done = result if isinstance(result, bool) else None
        if self._log or self._ended or done is not None:
            self._later(self._write_outcome, Told, {"done": done}, *self._happened())

    def _write_outcome(self, kind: Any, told: dict[str, Any], log: Any, ended: list[Ending]) -> None:
        events = [
            (what, (self._numbers[numbers[0]], *numbers[1:]) if what == "asked" else numbers) for what, numbers in log
        ]
        self._sink(kind(**told, log=events, ended=[self._written_end(*one) for one in ended]))

    def _end(self, request: Any) -> None:
        held = request.request_id in self._scheduler.requests
        self._ended.append((request, request.status.name, held, _answer(request)))

    def _written_end(self, request: Any, status: str, held: bool, answer: list[int]) -> Ended:
        known = self._known.pop(request.request_id)
        if not held:
            self._numbers.pop(request.request_id)
        return self._end_of(known, _WHY.get(status, "aborted"), held, answer)

    def _end_of(self, known: _Known, why: Any, held: bool, answer: list[int]) -> Ended:
        packed, _ = self._identities.of(answer, known.request.num_prompt_tokens, known.state)
        return Ended(request=known.number, why=why, sampled=packed, held=held)

    def _asked(self, label: str, local: int, external: int | None, asynchronous: bool) -> None:
        told = -1 if external is None else external
        self._log.append(("asked", (label, local, told, int(asynchronous))))

    def _planned(self, output: Any) -> None:
        """The plan is read later, but for tables that are new to the worker: one in this process appends to them."""
        self._in_flight.append(output)
        new = [(one.req_id, one.num_computed_tokens, _copied(one.block_ids)) for one in output.scheduled_new_reqs]
        cached = output.scheduled_cached_reqs
        more = _copied_tables(cached.new_block_ids) if cached.resumed_req_ids else cached.new_block_ids
        self._later(self._write_plan, output, new, more, *self._happened())

    def _write_plan(self, output: Any, new: list[Any], more: list[Any], log: Any, ended: list[Ending]) -> None:
        number = self._numbers.__getitem__
        scheduled, cached = output.num_scheduled_tokens, output.scheduled_cached_reqs
        ran, went_on = list(scheduled), cached.req_ids
        same, same_on = ran == self._ran, went_on == self._went_on
        self._ran, self._went_on = ran, went_on
        drafts = output.scheduled_spec_decode_tokens
        plan = {
            "who": None if same else list(map(number, ran)),
            "counts": None if output.total_num_scheduled_tokens == len(ran) else list(scheduled.values()),
            "going_on": None if same_on else list(map(number, went_on)),
            "starts": cached.num_computed_tokens,
            "more": [(i, tables) for i, tables in enumerate(more) if tables is not None],
            "new": [(number(label), start, tables) for label, start, tables in new],
            "resumed": sorted(map(number, cached.resumed_req_ids)),
            "drafts": [(number(label), len(tokens)) for label, tokens in drafts.items()],
            "preempted": sorted(map(number, output.preempted_req_ids or ())),
            "copies": [(copy.src_block_id, copy.dst_block_id) for copy in output.kv_cache_block_copies or ()],
            "zero": output.new_block_ids_to_zero or [],
        }
        self._write_outcome(Planned, plan, log, ended)

    # ---- what the pool does: said plainly, because it happens dozens of times a step -------------------------------

    def took(self, blocks: list[int]) -> None:
        """Blocks came from the free queue."""
        if self._inside:
            self._log.append(("took", blocks))
        else:
            self._elsewhere()

    def touched(self, blocks: list[int], revived: int) -> None:  # noqa: ARG002  who counts references knows it
        """References were taken."""
        if self._inside:
            self._log.append(("touched", blocks))
        else:
            self._elsewhere()

    def released(self, blocks: list[int]) -> None:
        """References were given back."""
        if self._inside:
            self._log.append(("released", blocks))
        else:
            self._elsewhere()

    def cleared(self) -> None:
        """All keys are gone."""
        if self._inside:
            self._log.append(("cleared", ()))
        else:
            self._elsewhere()

    def _elsewhere(self) -> None:
        """Also whatever happens when the recording has ended: then it must cost nothing."""
        if self._on:
            self.outside("blocks that something else than the scheduler takes, gives back or evicts")


def _answer(request: Any) -> list[int]:
    """A request's tokens behind its prompt."""
    return list(request.output_token_ids)


def _copied(tables: Any) -> Tables:
    return tuple([tuple(table) for table in tables])


def _copied_tables(tables: Any) -> list[Tables | None]:
    return [None if one is None else _copied(one) for one in tables]


def _counts(planned: Any, output: Any) -> list[int]:
    """Tokens that each request of the step has sampled, in the plan's order."""
    sampled = output.sampled_token_ids
    if not sampled:
        return [0] * len(planned.num_scheduled_tokens)
    if output.req_ids == list(planned.num_scheduled_tokens):
        return list(map(len, sampled))
    places = output.req_id_to_index
    return [len(sampled[places[label]]) for label in planned.num_scheduled_tokens]
