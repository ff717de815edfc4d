"""Random variations of a run: they stay runs, and they reach what they should."""

from __future__ import annotations

from collections import Counter
from random import Random

from helpers import full, layout_of
from msgspec.structs import replace

from kvcheck.engines.judging import judge_run
from kvcheck.engines.variations import begun, varied
from kvcheck.model.actions import Answer, Arrive, Complete, Run, Schedule, Transfer
from kvcheck.model.content import Prefixes
from kvcheck.model.layout import Connector, problems
from kvcheck.targets.loading import load_target

LAYOUT = layout_of(full(4), num_blocks=20, max_model_len=24, connector=Connector())
ARRIVE = Arrive(label="a", prompt=(1, 2, 3, 4, 5), max_tokens=4, answers=(Answer(holds=4),))
RUN = Run(layout=LAYOUT, actions=(ARRIVE, Schedule(), Complete(), Schedule(), Complete()))


def test_variations_are_runs_that_a_correct_server_survives() -> None:
    rng, model, run = Random(1), load_target("model"), RUN
    for _ in range(300):
        run = varied(run, rng)
        assert not problems(run.layout)
        assert judge_run(model, run).violations == ()
        labels = Counter(action.label for action in run.actions if isinstance(action, Arrive))
        assert set(labels.values()) <= {1}
        if len(run.actions) > 30 or not run.actions:
            run = RUN


def test_variations_differ_in_all_that_can() -> None:
    rng = Random(2)
    others = [varied(RUN, rng) for _ in range(400)]
    arrivals = [action for run in others for action in run.actions if isinstance(action, Arrive)]
    assert {len(run.actions) for run in others} >= {2, 3, 4, 5, 6, 7}
    assert {len(arrival.prompt) for arrival in arrivals} >= {1, 4, 6, 9}
    assert {arrival.max_tokens for arrival in arrivals} >= {1, 2, 3, 5}
    assert {arrival.answers[0].holds for arrival in arrivals} >= {0, 3, 5}
    assert {arrival.label for arrival in arrivals} >= {"a", "r0"}
    for name in ("num_blocks", "token_budget", "max_requests", "max_model_len"):
        values = {getattr(run.layout, name) for run in others}
        assert min(values) < getattr(LAYOUT, name) < max(values), name


def test_a_variation_may_give_the_server_a_connector_whose_tokens_are_there_at_once_and_overlapping_steps() -> None:
    layout = layout_of(full(4), num_blocks=20, max_model_len=24)
    loading = replace(ARRIVE, answers=())
    run, rng = Run(layout=layout, actions=(loading, Schedule(), Transfer(label="a"), Complete())), Random(4)
    others = [varied(run, rng) for _ in range(400)]
    assert {other.layout.steps_in_flight for other in others} == {1, 2, 3}
    answered = [(other, a) for other in others for a in other.actions if isinstance(a, Arrive) and a.answers]
    assert answered
    for other, arrive in answered:
        assert other.layout.connector is not None
        assert not any(answer.asynchronous for answer in arrive.answers)
    assert any(not any(isinstance(a, Transfer) for a in other.actions) for other, _ in answered)


def test_the_same_draws_make_the_same_variation() -> None:
    assert varied(RUN, Random(3)) == varied(RUN, Random(3))


def test_a_request_that_has_begun_has_the_same_text() -> None:
    later = begun(ARRIVE, 3)
    assert (later.prompt[:5], later.max_tokens) == (ARRIVE.prompt, 1)
    assert Prefixes(later.prompt, "", 0).token_list(9) == Prefixes(ARRIVE.prompt, "", 0).token_list(9)
