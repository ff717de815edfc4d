"""Witnesses: interesting situations. A campaign that never came to one that its layouts allow has not checked it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from kvcheck.invariants.estimate import load_beside_prefills
from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.moment import Moment
from kvcheck.model.actions import Abort, Complete, Evict, Reset, Transfer
from kvcheck.model.layout import Layout
from kvcheck.model.observation import Asked, Begin, Drop, End, Lookup, Register, StepPlan

Happens = Callable[[Moment, Ledger], bool]
Possible = Callable[[Layout], bool]


class Witness(msgspec.Struct, frozen=True):
    """A situation: when it happens, and which layouts allow it. ``needs``: the type of action, of log event, or
    StepPlan, without which it cannot; None: it always can."""

    name: str
    description: str
    happens: Happens
    possible: Possible
    needs: type | None = None


WITNESSES: dict[str, Witness] = {}


def witness(
    name: str, description: str, possible: Possible = lambda layout: True, needs: type | None = None
) -> Callable[[Happens], Happens]:
    """Register a situation."""

    def register(happens: Happens) -> Happens:
        WITNESSES[name] = Witness(name, description, happens, possible, needs)
        return happens

    return register


def possible_witnesses(layout: Layout) -> tuple[Witness, ...]:
    """The situations that can come up with this layout."""
    return tuple(w for w in WITNESSES.values() if w.possible(layout))


def happening(situations: Iterable[Witness], moment: Moment, ledger: Ledger) -> Iterator[str]:
    """Names of the situations that come up in this moment."""
    observation = moment.observation
    present: set[type | None] = {type(event) for event in observation.log}
    present.add(type(moment.action))
    present.add(None)
    if observation.plan is not None:
        present.add(StepPlan)
    for situation in situations:
        if situation.needs in present and situation.happens(moment, ledger):
            yield situation.name


def _caches(layout: Layout) -> bool:
    return layout.caching


def _has_tails(layout: Layout) -> bool:
    """Whether a prompt's last hash boundary can lie inside a block that has a key for it (R5.4.1, R5.4.2)."""
    tails = (g.fine_grained and layout.block_tokens(i) > layout.hash_block for i, g in enumerate(layout.groups))
    return layout.caching and len(layout.groups) > 1 and any(tails)


def _lookups(moment: Moment) -> Iterator[Lookup]:
    return (event for event in moment.observation.log if isinstance(event, Lookup))


@witness("hit", "a request resumes on cached tokens", _caches, needs=Begin)
def _hit(moment: Moment, ledger: Ledger) -> bool:
    return any(isinstance(event, Begin) and event.local for event in moment.observation.log)


@witness("partial-hit", "a hit ends inside a block", lambda layout: layout.partial_hits, needs=Lookup)
def _partial_hit(moment: Moment, ledger: Ledger) -> bool:
    block = ledger.layout.scheduler_block
    return any(event.how == "agreed" and event.length % block for event in _lookups(moment))


@witness(
    "two-groups-disagree",
    "the groups' own hits differ and are reconciled",
    lambda layout: len(layout.groups) > 1 and layout.caching,
    needs=Lookup,
)
def _disagree(moment: Moment, ledger: Ledger) -> bool:
    return any(event.junction > 0 or len(set(event.lengths)) > 1 for event in _lookups(moment))


@witness(
    "copy-on-hit",
    "a shared partial tail is copied for the request that hits it",
    lambda layout: layout.partial_hits,
    needs=StepPlan,
)
def _copy_on_hit(moment: Moment, ledger: Ledger) -> bool:
    plan = moment.observation.plan
    if plan is None or not plan.copies:
        return False
    targets = {target for _, target in plan.copies}
    return any(r.kind != "running" and any(b in targets for t in r.tables for b in t) for r in plan.requests)


@witness(
    "copy-by-producer",
    "a running request's registration moves to a copy",
    lambda layout: (
        _has_tails(layout) and any(g.block_size > layout.hash_block for g in layout.groups if g.kind == "mamba")
    ),
    needs=StepPlan,
)
def _copy_by_producer(moment: Moment, ledger: Ledger) -> bool:
    plan, view = moment.observation.plan, moment.view
    if plan is None or view is None or not plan.copies:
        return False
    held = {block for tables in view.tables.values() for table in tables for block in table}
    return any(source in held and target not in held for source, target in plan.copies)


def _diverging(layout: Layout) -> bool:
    connector = layout.connector
    return (
        layout.caching
        and layout.has_mamba
        and connector is not None
        and connector.divergent
        and any(g.keeps_whole_prefix for g in layout.groups)
    )


def _attention_and_mamba(event: Lookup, ledger: Ledger) -> tuple[int, int]:
    groups = ledger.layout.groups
    attention = next((n for n, g in zip(event.lengths, groups, strict=True) if g.keeps_whole_prefix), 0)
    mamba = max((n for n, g in zip(event.lengths, groups, strict=True) if not g.is_attention), default=0)
    return attention, mamba


@witness("diverged-attention-deeper", "full attention hits deeper than a Mamba group", _diverging, needs=Lookup)
def _attention_deeper(moment: Moment, ledger: Ledger) -> bool:
    pairs = [_attention_and_mamba(e, ledger) for e in _lookups(moment) if e.how == "each"]
    return any(attention > mamba for attention, mamba in pairs)


@witness(
    "diverged-mamba-deeper", "a Mamba state survives deeper than full attention's blocks", _diverging, needs=Lookup
)
def _mamba_deeper(moment: Moment, ledger: Ledger) -> bool:
    pairs = [_attention_and_mamba(e, ledger) for e in _lookups(moment) if e.how == "each"]
    return any(mamba > attention for attention, mamba in pairs)


@witness("eviction", "a registered block is handed out again and loses its key", _caches, needs=Drop)
def _eviction(moment: Moment, ledger: Ledger) -> bool:
    plan = moment.observation.plan
    taken = set(plan.fresh) if plan else set()
    return any(isinstance(event, Drop) and event.block in taken for event in moment.observation.log)


@witness("outside-eviction", "cached blocks are evicted from outside", _caches, needs=Evict)
def _outside_eviction(moment: Moment, ledger: Ledger) -> bool:
    return isinstance(moment.action, Evict) and not moment.observation.skipped


@witness("second-key", "a block has two keys", _has_tails, needs=Register)
def _second_key(moment: Moment, ledger: Ledger) -> bool:
    registered = [event for event in moment.observation.log if isinstance(event, Register)]
    return any(len(ledger.by_block.get((event.group, event.block), ())) > 1 for event in registered)


@witness("duplicate-content", "one prefix is registered in two blocks of a group", _caches, needs=Register)
def _duplicate(moment: Moment, ledger: Ledger) -> bool:
    registered = [event for event in moment.observation.log if isinstance(event, Register)]
    return any(len(ledger.keys.get((e.group, e.length, e.key), ())) > 1 for e in registered)


@witness("refused-allocation", "an allocation is refused because memory is short", needs=End)
def _refused(moment: Moment, ledger: Ledger) -> bool:
    return any(isinstance(event, End) and not event.done for event in moment.observation.log)


@witness("preemption", "a request is preempted", needs=StepPlan)
def _preemption(moment: Moment, ledger: Ledger) -> bool:
    return moment.observation.plan is not None and bool(moment.observation.plan.preempted)


@witness("resume", "a preempted request runs again", needs=StepPlan)
def _resume(moment: Moment, ledger: Ledger) -> bool:
    plan, before = moment.observation.plan, moment.before
    if plan is None or before is None:
        return False
    return any(
        r.kind == "resumed" or (r.label in before.requests and before.requests[r.label].status == "preempted")
        for r in plan.requests
        if r.kind != "running"
    )


@witness("chunked-prefill", "a prompt is prefilled in several steps", needs=StepPlan)
def _chunked(moment: Moment, ledger: Ledger) -> bool:
    plan = moment.observation.plan
    return plan is not None and any(r.start + r.count < r.known and not r.drafts for r in plan.requests)


@witness(
    "window-given-up",
    "blocks fall out of reach of a running request",
    lambda layout: any(not g.keeps_whole_prefix for g in layout.groups),
    needs=StepPlan,
)
def _given_up(moment: Moment, ledger: Ledger) -> bool:
    view = moment.view
    if view is None or moment.observation.plan is None:
        return False
    return any(
        0 in table[:-1] and table[-1] != 0 for label in view.running for table in view.tables.get(label, ()) if table
    )


def _drafts(layout: Layout) -> bool:
    return layout.draft_tokens > 0


@witness("drafts-accepted", "drafts are verified and accepted", _drafts, needs=Complete)
def _accepted(moment: Moment, ledger: Ledger) -> bool:
    processed = moment.observation.processed
    return isinstance(moment.action, Complete) and processed is not None and any(n > 1 for n in processed.kept.values())


@witness(
    "rejection-across-a-boundary", "drafts are rejected on both sides of a block boundary", _drafts, needs=Complete
)
def _rejection(moment: Moment, ledger: Ledger) -> bool:
    plan, processed = moment.executed, moment.observation.processed
    if plan is None or processed is None:
        return False
    size = min(ledger.layout.block_tokens(g) for g in range(len(ledger.layout.groups)))
    for r in plan.requests:
        end = r.start + r.count
        kept = end - r.drafts + max(0, processed.kept.get(r.label, 1) - 1)
        if r.drafts and kept < end and kept // size < (end - 1) // size:
            return True
    return False


@witness(
    "steps-overlap",
    "a step is scheduled while another is in flight",
    lambda layout: layout.asynchronous,
    needs=StepPlan,
)
def _overlap(moment: Moment, ledger: Ledger) -> bool:
    return moment.observation.plan is not None and moment.in_flight > 1


@witness(
    "ends-in-flight",
    "a request ends while a later step of it is in flight",
    lambda layout: layout.asynchronous,
    needs=Complete,
)
def _ends_in_flight(moment: Moment, ledger: Ledger) -> bool:
    processed, before = moment.observation.processed, moment.before
    if processed is None or before is None or moment.executed is None:
        return False
    counts = {r.label: r.count for r in moment.executed.requests}
    return any(
        label in before.requests and before.requests[label].in_flight > counts.get(label, 0)
        for label in processed.ended
    )


def _loads(layout: Layout) -> bool:
    return layout.connector is not None and layout.connector.role != "producer"


def _loads_with_steps(layout: Layout) -> bool:
    return _loads(layout) and not (layout.connector and layout.connector.divergent)


@witness(
    "load-with-step",
    "external tokens are loaded before a step, and new tokens run in it",
    _loads_with_steps,
    needs=StepPlan,
)
def _load_with_step(moment: Moment, ledger: Ledger) -> bool:
    plan = moment.observation.plan
    return plan is not None and any(not load.asynchronous for load in plan.loads)


@witness("load-asynchronous", "external tokens are loaded while steps go on", _loads, needs=StepPlan)
def _load_async(moment: Moment, ledger: Ledger) -> bool:
    plan = moment.observation.plan
    return plan is not None and any(load.asynchronous for load in plan.loads)


@witness(
    "load-beside-hit",
    "external tokens follow a local hit",
    lambda layout: _loads(layout) and layout.caching,
    needs=Begin,
)
def _load_beside_hit(moment: Moment, ledger: Ledger) -> bool:
    return any(isinstance(e, Begin) and e.local and e.external for e in moment.observation.log)


@witness("load-failed", "a load does not arrive whole", _loads, needs=StepPlan)
def _load_failed(moment: Moment, ledger: Ledger) -> bool:
    plan = moment.observation.plan
    return plan is not None and any(load.arrives is not None for load in plan.loads)


@witness(
    "load-beside-prefill",
    "an asynchronous load gets blocks while another request in flight still needs some",
    _loads,
    needs=StepPlan,
)
def _load_beside_prefill(moment: Moment, ledger: Ledger) -> bool:
    return load_beside_prefills(moment, ledger) is not None


@witness("ask-later", "the connector cannot tell yet", _loads, needs=Asked)
def _ask_later(moment: Moment, ledger: Ledger) -> bool:
    return any(isinstance(e, Asked) and e.external is None for e in moment.observation.log)


@witness("abort-while-loading", "a request is aborted while its load is under way", _loads, needs=Abort)
def _abort_loading(moment: Moment, ledger: Ledger) -> bool:
    if not isinstance(moment.action, Abort) or moment.observation.skipped or moment.before is None:
        return False
    request = moment.before.requests.get(moment.action.label)
    return request is not None and request.status == "loading"


@witness(
    "store",
    "a finished request's blocks are kept until the connector has read them",
    lambda layout: layout.connector is not None and layout.connector.role != "consumer",
    needs=Transfer,
)
def _store(moment: Moment, ledger: Ledger) -> bool:
    return isinstance(moment.action, Transfer) and moment.action.what == "store" and not moment.observation.skipped


@witness(
    "fenced-free",
    "blocks are fenced until a step in flight is processed",
    lambda layout: layout.asynchronous and layout.connector is not None and layout.connector.role != "producer",
)
def _fenced(moment: Moment, ledger: Ledger) -> bool:
    return moment.view is not None and moment.view.deferred > 0


@witness("reset-running", "the cache is reset while requests run", needs=Reset)
def _reset_running(moment: Moment, ledger: Ledger) -> bool:
    done = not moment.observation.skipped and not moment.observation.refused
    return (
        isinstance(moment.action, Reset)
        and moment.action.running
        and done
        and bool(moment.before and moment.before.running)
    )


@witness(
    "junction",
    "a shared prefix that a sparse group has not kept is seen",
    lambda layout: layout.caching and len(layout.groups) > 1,
    needs=Lookup,
)
def _junction(moment: Moment, ledger: Ledger) -> bool:
    return any(event.junction > 0 for event in _lookups(moment))
