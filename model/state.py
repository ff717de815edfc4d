"""A server's state as a value: taken, put back, and compared up to the names of blocks and requests.

Taken between two actions: what lives during a pass only is no part of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from kvcheck.model.managers import MambaManager, Manager, Row
from kvcheck.model.observation import StepPlan, Tables
from kvcheck.model.pool import NULL, Key, Pool
from kvcheck.model.request import FrozenNames, Request
from kvcheck.model.scheduler import Scheduler

Canonical = tuple[Any, ...]
"""Numbers, texts, None, and tuples of these."""

_LISTS = ("tokens", "names", "inputs")
_PLAIN = tuple(name for name in Request.__slots__ if name not in (*_LISTS, "_hashed", "_hash_block"))


_plain_of = attrgetter(*_PLAIN)
_LABEL, _ORDER, _LAST_STEP, _PREEMPTIONS, _STATUS = map(
    _PLAIN.index, ("label", "order", "last_step", "preemptions", "status")
)


class RequestState(NamedTuple):
    """One request. ``plain``: the values of its plain fields, in the order of its slots. ``named``: what its names are
    made from, and they."""

    plain: tuple[Any, ...]
    tokens: tuple[int, ...]
    inputs: tuple[Any, ...]
    named: FrozenNames

    @property
    def label(self) -> str:
        """The label of the request."""
        return self.plain[_LABEL]  # type: ignore[no-any-return]


class RowState(NamedTuple):
    """What one request holds in one group."""

    blocks: tuple[int, ...]
    registered: int
    tail: tuple[int, int] | None
    grown: bool
    previous: int | None
    producer: bool


RowStates = tuple[tuple[str, RowState], ...]
"""What requests hold in one group, by label."""


class PoolState(NamedTuple):
    """``keys``: by block. ``holders``: by group, name and age."""

    refs: tuple[int, ...]
    free: tuple[int, ...]
    free_count: int
    keys: tuple[tuple[int, tuple[Key, ...]], ...]
    holders: tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]


class State(NamedTuple):
    """All that decides what a server does next. Labels stand for requests; ``rows`` are by group."""

    pool: PoolState
    requests: tuple[RequestState, ...]
    rows: tuple[RowStates, ...]
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    passed_over: tuple[str, ...]
    prefills: tuple[str, ...]
    loaded: frozenset[str]
    failed: frozenset[str]
    aborted_loads: frozenset[str]
    finished: frozenset[str]
    preempted: frozenset[str]
    pins: tuple[tuple[str, tuple[int, ...]], ...]
    fenced: tuple[tuple[int, tuple[int, ...]], ...]
    departed: tuple[tuple[int, str, Tables], ...]
    in_flight: tuple[StepPlan, ...]
    counters: tuple[int, int, int, int, int]
    paused: str


# ---- take and put back -----------------------------------------------------------------------------------------------


def snapshot(server: Scheduler) -> State:
    """The state between two actions."""
    cache = server.cache
    return State(
        pool=_pool_state(cache.pool),
        requests=tuple([_request_state(request) for request in server.requests.values()]),
        rows=tuple([_row_states(manager) for manager in cache.managers]),
        running=tuple([request.label for request in server.running]),
        waiting=tuple([request.label for request in server.waiting.requests]),
        passed_over=tuple([request.label for request in server.passed_over.requests]),
        prefills=tuple(server.prefills),
        loaded=frozenset(server.loaded),
        failed=frozenset(server.failed),
        aborted_loads=frozenset(server.aborted_loads),
        finished=frozenset(server.finished),
        preempted=frozenset(server.preempted),
        pins=tuple([(label, tuple(blocks)) for label, blocks in cache.pins.items()]),
        fenced=tuple([(fence, tuple(blocks)) for fence, blocks in server.fenced]),
        departed=tuple(server.failures.departed),
        in_flight=tuple(server.in_flight),
        counters=(server.passes, server.steps, server.processed_steps, server.arrivals, server.idle),
        paused=server.paused,
    )


def restore(server: Scheduler, state: State, now: State) -> None:
    """Put a state back into a server that is in the state ``now``: what is the same in both is left alone."""
    cache = server.cache
    _restore_pool(cache.pool, state.pool, now.pool)
    server.requests = known = _requests(server, state, now)
    for manager, rows, rows_now in zip(cache.managers, state.rows, now.rows, strict=True):
        _restore_rows(manager, rows, rows_now)
    server.running = [known[label] for label in state.running]
    server.waiting.requests[:] = [known[label] for label in state.waiting]
    server.passed_over.requests[:] = [known[label] for label in state.passed_over]
    server.prefills = {label: known[label] for label in state.prefills}
    server.loaded, server.failed = set(state.loaded), set(state.failed)
    server.aborted_loads = set(state.aborted_loads)
    server.finished, server.preempted = set(state.finished), set(state.preempted)
    cache.pins = {label: list(blocks) for label, blocks in state.pins}
    server.fenced.clear()
    server.fenced.extend((fence, list(blocks)) for fence, blocks in state.fenced)
    server.failures.departed = list(state.departed)
    server.in_flight.clear()
    server.in_flight.extend(state.in_flight)
    server.passes, server.steps, server.processed_steps, server.arrivals, server.idle = state.counters
    server.paused = state.paused


def _pool_state(pool: Pool) -> PoolState:
    return PoolState(
        refs=tuple(pool.refs),
        free=tuple(pool.free),
        free_count=pool.free_count,
        keys=tuple([(block, tuple(keys)) for block, keys in pool.keys.items()]),
        holders=tuple([tuple([(name, tuple(b)) for name, b in holders.items()]) for holders in pool.holders]),
    )


def _restore_pool(pool: Pool, state: PoolState, now: PoolState) -> None:
    pool.published.clear()
    pool.taken.clear()
    if state == now:
        return
    pool.refs = list(state.refs)
    pool.free = OrderedDict.fromkeys(state.free)
    pool.free_count = state.free_count
    pool.keys = {block: list(keys) for block, keys in state.keys}
    pool.holders = [{name: list(blocks) for name, blocks in holders} for holders in state.holders]


def _request_state(request: Request) -> RequestState:
    return RequestState(
        plain=_plain_of(request),
        tokens=tuple(request.tokens),
        inputs=tuple(request.inputs),
        named=request.frozen_names(),
    )


def _requests(server: Scheduler, state: State, now: State) -> dict[str, Request]:
    there = {item.label: item for item in now.requests}
    return {
        item.label: server.requests[item.label]
        if there.get(item.label) == item
        else _request(item, server.layout.hash_block)
        for item in state.requests
    }


def _request(state: RequestState, hash_block: int) -> Request:
    request = Request.__new__(Request)
    for name, value in zip(_PLAIN, state.plain, strict=True):
        setattr(request, name, value)
    request.revive(state.tokens, state.named, state.inputs, hash_block)
    return request


def _row_states(manager: Manager) -> RowStates:
    producers = manager.producers if isinstance(manager, MambaManager) else ()
    return tuple(
        [
            (label, RowState(tuple(r.blocks), r.registered, r.tail, r.grown, r.previous, label in producers))
            for label, r in manager.rows.items()
        ]
    )


def _restore_rows(manager: Manager, rows: RowStates, now: RowStates) -> None:
    for passing in (manager.copies, manager.to_zero, manager.handed_over):  # a server that died has left some
        passing.clear()
    if rows == now:
        return
    manager.rows.clear()
    producers = set()
    for label, state in rows:
        row = manager.rows[label] = Row()
        row.blocks, row.registered, row.tail = list(state.blocks), state.registered, state.tail
        row.grown, row.previous = state.grown, state.previous
        if state.producer:
            producers.add(label)
    if isinstance(manager, MambaManager):
        manager.producers = producers


# ---- up to names -----------------------------------------------------------------------------------------------------


class Numbering(NamedTuple):
    """Numbers that do not depend on names: of requests by label, in the order of the queues, and of blocks."""

    labels: dict[str, int]
    blocks: dict[int, int]

    def of(self, labels: Collection[str]) -> tuple[int, ...]:
        """These requests in the order of their numbers. One that is gone has none, and is told from others by -1."""
        return tuple(sorted([self.labels.get(label, -1) for label in labels])) if labels else ()


def numbering(state: State) -> Numbering:
    """Blocks are numbered as they are met: the free queue in its order, then the tables. That is exact, because the
    queue is part of the state, and costs one walk."""
    labels = _numbers((*state.running, *state.passed_over, *state.waiting, *(r.label for r in state.requests)))
    held = [
        block
        for group in state.rows
        for label, row in sorted(group, key=lambda item: labels.get(item[0], -1))
        if label in labels
        for block in row.blocks
    ]
    outside = [block for _, blocks in (*state.pins, *state.fenced) for block in blocks]
    return Numbering(labels, _numbers((NULL, *state.pool.free, *held, *outside, *range(len(state.pool.refs)))))


def canonical(state: State, numbers: Numbering | None = None) -> Canonical:
    """The same for two states that differ in the numbers of blocks and the labels of requests only.

    Counts of passes and arrivals matter by their differences only, and of plans in flight what the server reads again.
    Numbers, texts, None and tuples of these, so that it can be written as bytes.
    """
    numbers = numbering(state) if numbers is None else numbers
    labels, blocks = numbers
    order = sorted(state.requests, key=lambda request: labels[request.label])
    passes, steps, processed, arrivals, idle = state.counters
    name = labels.get
    return (
        _canonical_pool(state.pool, blocks),
        tuple([_canonical_request(request, labels, processed, arrivals) for request in order]),
        tuple([_canonical_rows(group, numbers) for group in state.rows]),
        tuple([labels[label] for label in state.running]),
        tuple([labels[label] for label in state.waiting]),
        tuple([labels[label] for label in state.passed_over]),
        tuple(map(numbers.of, (state.prefills, state.loaded, state.failed, state.aborted_loads))),
        tuple(map(numbers.of, (state.preempted, state.finished))),
        tuple(sorted([(name(label, -1), _renamed(pinned, blocks)) for label, pinned in state.pins])),
        tuple([(steps - fence, _renamed(fenced, blocks)) for fence, fenced in state.fenced]),
        tuple([(passes - seq, name(label, -1), _tables(tables, blocks)) for seq, label, tables in state.departed]),
        tuple([_canonical_plan(plan, labels, blocks, passes) for plan in state.in_flight]),
        (steps - processed, idle, state.paused),
    )


def _numbers(things: Iterable[Any]) -> dict[Any, int]:
    """Each thing with the number of its first place among the different ones."""
    return {thing: number for number, thing in enumerate(dict.fromkeys(things))}


def _renamed(items: Sequence[int], blocks: dict[int, int]) -> tuple[int, ...]:
    return tuple([blocks[block] for block in items])


def _tables(tables: Tables, blocks: dict[int, int]) -> Tables:
    return tuple([_renamed(table, blocks) for table in tables])


def _canonical_pool(pool: PoolState, blocks: dict[int, int]) -> Canonical:
    refs = tuple([pool.refs[block] for block in blocks])
    keys = sorted([(blocks[block], held) for block, held in pool.keys])
    holders = [sorted([(name, _renamed(held, blocks)) for name, held in group]) for group in pool.holders]
    return refs, len(pool.free), pool.free_count, tuple(keys), tuple([tuple(group) for group in holders])


def _canonical_request(request: RequestState, labels: dict[str, int], processed: int, arrivals: int) -> Canonical:
    """Of some fields less matters than their value: counts would tell states apart that have the same future."""
    plain = list(request.plain)
    plain[_LABEL] = labels[plain[_LABEL]]
    plain[_ORDER] = arrivals - plain[_ORDER]
    plain[_LAST_STEP] = max(0, plain[_LAST_STEP] - processed)
    plain[_PREEMPTIONS] = plain[_PREEMPTIONS] > 0
    plain[_STATUS] = plain[_STATUS].value
    inputs = tuple([(extend.prompt, extend.max_tokens, arrivals - order) for extend, order in request.inputs])
    (_, _, salt, adapter), names = request.named
    return tuple(plain), request.tokens, inputs, names, salt, adapter


def _canonical_rows(group: RowStates, numbers: Numbering) -> Canonical:
    rows = []
    for label, row in group:
        if label in numbers.labels:
            tail = None if row.tail is None else (row.tail[0], numbers.blocks[row.tail[1]])
            blocks = _renamed(row.blocks, numbers.blocks)
            rows.append((numbers.labels[label], blocks, row.registered, tail, row.grown, row.previous, row.producer))
    return tuple(sorted(rows, key=lambda item: item[0]))


def _canonical_plan(plan: StepPlan, labels: dict[str, int], blocks: dict[int, int], passes: int) -> Canonical:
    requests = [
        (labels.get(r.label, -1), r.kind, r.start, r.count, r.drafts, r.known, _tables(r.tables, blocks))
        for r in plan.requests
    ]
    loads = [
        (labels.get(load.label, -1), load.local, load.external, load.asynchronous, load.arrives) for load in plan.loads
    ]
    copies = tuple([(blocks[source], blocks[target]) for source, target in plan.copies])
    return (
        passes - plan.seq,
        tuple(requests),
        copies,
        _renamed(plan.fresh, blocks),
        _renamed(plan.zero, blocks),
        tuple(loads),
    )
