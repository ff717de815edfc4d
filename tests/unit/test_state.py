"""A server's state is a value: it can be put back, and does not depend on the names of blocks and requests."""

from __future__ import annotations

import msgspec
import pytest
from helpers import full, layout_of, mamba, window

from kvcheck.engines.execution import Execution
from kvcheck.engines.random_layouts import Features
from kvcheck.engines.search import search_one
from kvcheck.model.actions import Abort, Action, Arrive, Complete, Schedule
from kvcheck.model.faults import NO_FAULTS
from kvcheck.model.layout import Layout
from kvcheck.model.state import State, canonical, snapshot
from kvcheck.targets.base import StepOutput
from kvcheck.targets.loading import load_target
from kvcheck.targets.reference.session import ReferenceSession

HYBRID = layout_of(full(2), mamba(4), window(2, 4))
PROMPT = (5, 6, 7, 8, 9)


def driven(layout: Layout, *actions: Action) -> ReferenceSession:
    session = ReferenceSession(layout, NO_FAULTS)
    execution = Execution(session, layout)
    for action in actions:
        assert not execution.apply(action).observation.skipped
    return session


def state_of(layout: Layout, *actions: Action) -> State:
    return snapshot(driven(layout, *actions).scheduler)


@pytest.mark.parametrize("seed", range(25))
def test_going_on_from_a_restored_state_shows_the_same(seed: int) -> None:
    run = search_one(load_target("model"), seed, Features()).run
    one, other = (Execution(ReferenceSession(run.layout, NO_FAULTS), run.layout) for _ in range(2))
    session = one.session
    assert isinstance(session, ReferenceSession)
    empty = session.snapshot()
    for action in run.actions:
        before = session.snapshot()
        session.restore(empty, before)
        session.restore(before, empty)
        assert session.snapshot() == before
        assert one.apply(action).observation == other.apply(action).observation


def test_a_state_can_be_left_and_come_back_to() -> None:
    session = driven(HYBRID, Arrive(label="a", prompt=PROMPT), Schedule())
    there = session.snapshot()
    session.process(StepOutput({"a": (9,)}, {}))
    execution = Execution(session, HYBRID)
    execution.apply(Arrive(label="b", prompt=PROMPT))
    execution.apply(Schedule())
    elsewhere = session.snapshot()
    assert elsewhere != there
    session.restore(there, elsewhere)
    assert session.snapshot() == there
    assert session.take_log() == ()


def test_what_the_next_plan_will_tell_the_worker_belongs_to_the_state() -> None:
    fresh = state_of(HYBRID)
    left = state_of(HYBRID, Arrive(label="a", prompt=PROMPT), Abort(label="a"))
    assert canonical(left) != canonical(fresh)


def test_labels_do_not_matter() -> None:
    states = [
        state_of(HYBRID, Arrive(label=label, prompt=PROMPT, max_tokens=3), Schedule(), Complete(), Schedule())
        for label in ("a", "z")
    ]
    assert states[0] != states[1]
    assert canonical(states[0]) == canonical(states[1])


def test_numbers_of_blocks_do_not_matter_but_their_order_does() -> None:
    state = state_of(HYBRID, Arrive(label="a", prompt=PROMPT), Schedule())
    renamed = _renamed(state, {1: 4, 4: 1})
    assert renamed != state
    assert canonical(renamed) == canonical(state)
    free = state.pool.free
    swapped = state._replace(pool=state.pool._replace(free=(free[1], free[0], *free[2:])))
    assert canonical(swapped) == canonical(state)  # two blocks without content are alike
    used = state_of(HYBRID, Arrive(label="a", prompt=PROMPT), Schedule(), Abort(label="a"))
    swapped = used._replace(
        pool=used.pool._replace(free=(*used.pool.free[:-2], used.pool.free[-1], used.pool.free[-2]))
    )
    assert canonical(swapped) != canonical(used)


def _renamed(state: State, names: dict[int, int]) -> State:
    """The state with other numbers for some blocks."""

    def name(block: int) -> int:
        return names.get(block, block)

    refs = list(state.pool.refs)
    for old, new in names.items():
        refs[new] = state.pool.refs[old]
    pool = state.pool._replace(
        refs=tuple(refs),
        free=tuple(map(name, state.pool.free)),
        keys=tuple((name(block), keys) for block, keys in state.pool.keys),
        holders=tuple(tuple((n, tuple(map(name, b))) for n, b in group) for group in state.pool.holders),
    )
    rows = tuple(
        tuple((label, row._replace(blocks=tuple(map(name, row.blocks)))) for label, row in group)
        for group in state.rows
    )
    plans = tuple(_renamed_plan(plan, name) for plan in state.in_flight)
    return state._replace(pool=pool, rows=rows, in_flight=plans)


def _renamed_plan(plan: object, name: object) -> object:
    def tables(found: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(name(block) for block in table) for table in found)  # type: ignore[operator]

    requests = tuple(msgspec.structs.replace(item, tables=tables(item.tables)) for item in plan.requests)  # type: ignore[attr-defined]
    fresh, zero = (tables((blocks,))[0] for blocks in (plan.fresh, plan.zero))  # type: ignore[attr-defined]
    return msgspec.structs.replace(plan, requests=requests, fresh=fresh, zero=zero)  # type: ignore[type-var]
