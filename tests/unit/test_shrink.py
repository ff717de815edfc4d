"""The minimiser: its order, that it never loses the failure, and that it reaches minima that are known by hand."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from helpers import full, layout_of, mamba, release_worker, replace, window
from toys import ToySession

from kvcheck.engines.execution import Execution
from kvcheck.engines.random_layouts import ALL_FEATURES, random_layout
from kvcheck.engines.random_runs import RunGenerator
from kvcheck.engines.shrink import complexity, needs, shrink, without_feature
from kvcheck.engines.source import RandomSource
from kvcheck.model.actions import (
    Abort,
    Action,
    Answer,
    Arrive,
    Complete,
    Evict,
    Extend,
    Run,
    Schedule,
    Transfer,
)
from kvcheck.model.layout import Connector, Drafter, Layout, problems

SECONDS = 30.0
LAYOUT = layout_of(full(4), window(4, 8), num_blocks=60, max_model_len=64)
ARRIVE = Arrive(label="a", prompt=(3, 4, 5))


def run_of(*actions: Action, layout: Layout = LAYOUT) -> Run:
    return Run(layout=layout, actions=actions)


# ---- the order -------------------------------------------------------------------------------------------------------

BASE = run_of(ARRIVE, Schedule(), Complete())
SIMPLER: dict[str, tuple[Run, Run]] = {
    "fewer actions": (run_of(Arrive(label="a", prompt=(9,) * 40, max_tokens=20), Schedule()), BASE),
    "fewer groups": (replace(BASE, layout=layout_of(full(4), num_blocks=99)), BASE),
    "fewer features": (BASE, replace(BASE, layout=replace(LAYOUT, connector=Connector()))),
    "a plainer connector": (
        replace(BASE, layout=replace(LAYOUT, connector=Connector())),
        replace(BASE, layout=replace(LAYOUT, connector=Connector(duplicates=True))),
    ),
    "no overlap": (BASE, replace(BASE, layout=replace(LAYOUT, steps_in_flight=2))),
    "no salt": (BASE, run_of(replace(ARRIVE, salt="x"), Schedule(), Complete())),
    "no answers": (BASE, run_of(replace(ARRIVE, answers=(Answer(holds=4),)), Schedule(), Complete())),
    "an answer at once": (
        run_of(replace(ARRIVE, answers=(Answer(holds=4),)), Schedule()),
        run_of(replace(ARRIVE, answers=(Answer(holds=4, asynchronous=True),)), Schedule()),
    ),
    "no accepted drafts": (BASE, run_of(ARRIVE, Schedule(), Complete(accepted={"a": 1}))),
    "fewer tokens": (run_of(replace(ARRIVE, prompt=(9, 9)), Schedule(), Complete()), BASE),
    "a shorter answer": (BASE, run_of(replace(ARRIVE, max_tokens=2), Schedule(), Complete())),
    "smaller blocks": (replace(BASE, layout=replace(LAYOUT, groups=(full(2), window(4, 8)))), BASE),
    "a smaller window": (replace(BASE, layout=replace(LAYOUT, groups=(full(4), window(4, 7)))), BASE),
    "fewer blocks": (replace(BASE, layout=replace(LAYOUT, num_blocks=59)), BASE),
    "smaller tokens": (run_of(replace(ARRIVE, prompt=(3, 4, 4)), Schedule(), Complete()), BASE),
    "a smaller budget": (replace(BASE, layout=replace(LAYOUT, token_budget=31)), BASE),
}


@pytest.mark.parametrize("name", SIMPLER)
def test_the_order_of_simplicity(name: str) -> None:
    simpler, other = SIMPLER[name]
    assert complexity(simpler) < complexity(other)


def test_the_order_is_total_where_it_should_be() -> None:
    assert complexity(BASE) == complexity(run_of(ARRIVE, Schedule(), Complete()))
    chain = [BASE, run_of(ARRIVE, Schedule()), run_of(Schedule())]
    assert sorted(chain, key=complexity) == chain[::-1]


# ---- artificial predicates -------------------------------------------------------------------------------------------


def random_run(seed: int) -> Run:
    """Sixty random actions on a random layout, and a server that does nothing."""
    source = RandomSource(random.Random(seed))
    layout = random_layout(source)
    execution = Execution(ToySession(), layout)  # type: ignore[arg-type]
    generator = RunGenerator(source, layout, ALL_FEATURES)
    actions = []
    for _ in range(60):
        action = generator.next(execution)
        execution.apply(action)
        actions.append(action)
    return Run(layout=layout, actions=tuple(actions))


def arrivals(run: Run) -> list[Arrive]:
    return [action for action in run.actions if isinstance(action, Arrive)]


def two_arrivals_and_a_pass(run: Run) -> bool:
    return len(arrivals(run)) >= 2 and any(isinstance(action, Schedule) for action in run.actions)


def nine_tokens(run: Run) -> bool:
    return any(len(action.prompt) >= 9 for action in arrivals(run))


def a_shared_prefix_of_three(run: Run) -> bool:
    prompts = [action.prompt for action in arrivals(run)]
    return any(p[:3] == q[:3] and len(p) > 3 < len(q) and p[3] != q[3] for p in prompts for q in prompts)


def total(run: Run) -> int:
    return sum(len(action.prompt) for action in arrivals(run))


def test_what_a_connector_needs_not_be_goes() -> None:
    odd = Connector(role="consumer", divergent=True, failure="fail", duplicates=True, reports="request")
    run = replace(BASE, layout=replace(LAYOUT, connector=odd))
    small = shrink(run, lambda other: other.layout.connector is not None and other.layout.connector.divergent, SECONDS)
    assert small.layout.connector == Connector(divergent=True)


@pytest.mark.parametrize("seed", range(6))
def test_two_arrivals_and_a_pass(seed: int) -> None:
    run = random_run(seed)
    assert two_arrivals_and_a_pass(run)
    small = shrink(run, two_arrivals_and_a_pass, SECONDS)
    assert sorted(type(action).__name__ for action in small.actions) == ["Arrive", "Arrive", "Schedule"]
    first, second = arrivals(small)
    assert first == Arrive(label=first.label, prompt=(1,))
    assert second in (Arrive(label=second.label, prompt=(1,)), Arrive(label=second.label, prompt=(2,)))
    assert len(small.layout.groups) == 1
    assert small.layout.drafter is small.layout.connector is None
    assert small.layout.steps_in_flight == 1
    assert needs(small, two_arrivals_and_a_pass) == ()


@pytest.mark.parametrize("seed", range(6))
def test_a_prompt_of_nine_tokens(seed: int) -> None:
    run = random_run(seed)
    assert nine_tokens(run)
    small = shrink(run, nine_tokens, SECONDS)
    assert [len(action.prompt) for action in arrivals(small)] == [9]
    assert len(small.actions) == 1
    assert len(small.layout.groups) == 1


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_a_shared_prefix_stays_shared(seed: int) -> None:
    """Prompts that begin with the same three tokens and go on differently: four tokens each, small numbers."""
    run = random_run(seed)
    if not a_shared_prefix_of_three(run):
        run = replace(
            run,
            actions=(
                *run.actions,
                Arrive(label="p", prompt=(8, 8, 7, 6, 5) * 3),
                Arrive(label="q", prompt=(8, 8, 7, 5, 5) * 3),
            ),
        )
    small = shrink(run, a_shared_prefix_of_three, SECONDS)
    assert len(small.actions) == 2
    assert total(small) == 8
    assert {token for action in arrivals(small) for token in action.prompt} <= {1, 2, 3, 4, 5}


@pytest.mark.parametrize("seed", range(4))
def test_every_step_of_the_way_is_valid_and_one_of_the_shortest_that_fail_is_left(seed: int) -> None:
    run = random_run(seed)
    seen: list[Run] = []

    def watched(candidate: Run) -> bool:
        assert not problems(candidate.layout)
        if not two_arrivals_and_a_pass(candidate):
            return False
        seen.append(candidate)
        return True

    small = shrink(run, watched, SECONDS)
    assert two_arrivals_and_a_pass(small)
    assert small in seen
    assert len(small.actions) == min(len(run.actions) for run in seen)


def five_actions_or_three_with_a_longer_prompt(run: Run) -> bool:
    """Taking away leads to five actions and a short prompt, and from there no further."""
    return len(run.actions) >= 5 or (len(run.actions) == 3 and any(len(a.prompt) >= 6 for a in arrivals(run)))


def test_a_shorter_run_is_found_where_something_must_grow_first() -> None:
    run = run_of(ARRIVE, Schedule(), Complete(), Schedule(), Complete())
    assert len(shrink(run, five_actions_or_three_with_a_longer_prompt, SECONDS).actions) == 3


def test_what_is_tried_in_vain_does_not_keep_the_other_ways_waiting() -> None:
    """In a run of which no action can go, the prompt is shortened before all of its parts were tried."""
    run = run_of(replace(ARRIVE, prompt=(3,) * 40), *[Schedule(), Complete()] * 60)
    tried = 0

    def whole(candidate: Run) -> bool:
        nonlocal tried
        tried += 1
        return len(candidate.actions) == len(run.actions) and (total(candidate) == 40 or tried < 400)

    assert total(shrink(run, whole, SECONDS)) < 40


def test_what_steps_say_of_a_request_goes_with_it() -> None:
    """Even if there is no time to look for what else may go."""
    said = Complete(accepted={"a": 1, "b": 2}, proposed={"b": 1})
    begun = Run(
        layout=layout_of(full(2)), actions=(Arrive(label="a", prompt=(1,)), Arrive(label="b", prompt=(1,)), said)
    )
    seen: list[Run] = []
    shrink(begun, lambda run: seen.append(run) or False, 1.0)  # type: ignore[func-returns-value]
    without = [run.actions[-1] for run in seen if {getattr(one, "label", "") for one in run.actions[:-1]} == {"a"}]
    assert without[0] == Complete(accepted={"a": 1})
    assert Complete(accepted={"b": 2}, proposed={"b": 1}) in [run.actions[-1] for run in seen if run.actions]
    assert Complete(accepted={"a": 1, "b": 2}, proposed={"b": 1}) in [run.actions[-1] for run in seen if run.actions]


def test_nothing_simpler_is_found_a_second_time() -> None:
    small = shrink(random_run(1), nine_tokens, SECONDS)
    assert shrink(small, nine_tokens, SECONDS) == small


def test_time_that_is_over_leaves_the_run_as_it_is() -> None:
    run = random_run(1)
    assert shrink(run, nine_tokens, 0.0) == run


def test_evictions_follow_their_group() -> None:
    """If the first group goes, an eviction in the second is one in the first."""
    layout = layout_of(full(4), mamba(4), num_blocks=40)
    evict = Evict(group=1, label="a", prefix=4)
    run = run_of(ARRIVE, evict, layout=layout)

    def evicts_a_state(candidate: Run) -> bool:
        return any(
            isinstance(action, Evict) and candidate.layout.groups[action.group].kind == "mamba"
            for action in candidate.actions
        )

    small = shrink(run, evicts_a_state, SECONDS)
    assert small.actions == (Evict(group=0, label="a", prefix=4),)
    assert [group.kind for group in small.layout.groups] == ["mamba"]


FUSSY: tuple[Action, ...] = (
    replace(ARRIVE, salt="x", adapter=2, priority=1, session=True, answers=(Answer(holds=None), Answer(holds=3))),
    Extend(label="a", prompt=(4, 5), max_tokens=3),
    Complete(accepted={"a": 2}, proposed={"a": 1}),
    Transfer(label="a", again=True),
    Abort(label="a"),
)


@pytest.mark.parametrize("kind", [Arrive, Extend, Complete, Transfer])
def test_each_kind_of_action_becomes_plain(kind: type[Action]) -> None:
    small = shrink(run_of(*FUSSY), lambda run: any(isinstance(a, kind) for a in run.actions), SECONDS)
    (action,) = small.actions
    if isinstance(action, Arrive):
        assert action == Arrive(label="a", prompt=(1,))
    elif isinstance(action, Extend):
        assert action == Extend(label="a", prompt=(1,))
    else:
        assert action in (Complete(), Transfer(label="a"))


# ---- what the violation needs ----------------------------------------------------------------------------------------

RICH = replace(
    layout_of(full(4, eagle=True), mamba(4, 2), num_blocks=60, max_model_len=64),
    drafter=Drafter(method="eagle", tokens=2),
    connector=Connector(),
    steps_in_flight=2,
    events=True,
)
NEEDED: dict[str, tuple[Callable[[Layout], bool], set[str]]] = {
    "nothing": (lambda _: True, set()),
    "a connector": (lambda layout: layout.connector is not None, {"a connector"}),
    "overlapping steps": (lambda layout: layout.steps_in_flight > 1, {"overlapping steps"}),
    "KV events": (lambda layout: layout.events, {"KV events"}),
    "EAGLE": (lambda layout: bool(layout.eagle_groups), {"EAGLE"}),
    "a drafter": (lambda layout: layout.drafter is not None, {"a drafter"}),
    "a mamba group": (lambda layout: layout.has_mamba, {"a mamba group"}),
    "a full group": (lambda layout: any(g.kind == "full" for g in layout.groups), {"a full group"}),
    "both": (
        lambda layout: layout.connector is not None and layout.has_mamba,
        {"a connector", "a mamba group"},
    ),
}


@pytest.mark.parametrize("name", NEEDED)
def test_needs_names_the_right_features(name: str) -> None:
    predicate, words = NEEDED[name]
    assert set(needs(run_of(ARRIVE, layout=RICH), lambda run: predicate(run.layout))) == words


def test_a_drafter_goes_with_its_marks_and_states() -> None:
    plain = without_feature(RICH, "drafter")
    assert plain.drafter is None
    assert not any(group.eagle or group.speculative_blocks for group in plain.groups)
    assert problems(plain) == []


# ---- a real bug ------------------------------------------------------------------------------------------------------


@pytest.mark.release
def test_a_real_bug_is_shrunk_to_its_two_actions() -> None:
    """0.27.1 asks a window for a hit inside a block: one request and one pass, with the smallest sizes there are."""
    signature = "system.exception AssertionError find_longest_cache_hit"
    layout = layout_of(
        full(8),
        mamba(8),
        mamba(8),
        window(4, 12),
        match_unit=1,
        num_blocks=80,
        max_model_len=80,
        events=True,
        steps_in_flight=2,
        retention=0,
    )
    noise = tuple(
        action
        for i in range(6)
        for action in (Arrive(label=f"r{i}", prompt=tuple(range(1, 20 + i)), max_tokens=3), Schedule(), Complete())
    )
    with release_worker("0.27.1") as worker:
        shrunk = worker.shrink(Run(layout=layout, actions=noise), signature, 60.0)
    assert shrunk.violation is not None
    assert shrunk.violation.signature == signature
    arrive, schedule = shrunk.run.actions
    assert isinstance(arrive, Arrive)
    assert isinstance(schedule, Schedule)
    assert arrive.prompt == (1,)
    assert [(g.kind, g.block_size) for g in shrunk.run.layout.groups] == [("mamba", 2), ("sliding_window", 2)]
    assert shrunk.run.layout.match_unit == 1
    assert set(shrunk.needs) == {"a match unit", "a mamba group", "a sliding-window group"}
