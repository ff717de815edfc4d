"""No false alarm: runs of the model without a fault, each of which an invariant once accused."""

from __future__ import annotations

import pytest
from helpers import full, layout_of, mamba, replace, window

from kvcheck.engines.judging import judge_run
from kvcheck.model.actions import Action, Answer, Arrive, Complete, Run, Schedule
from kvcheck.model.layout import Connector, Layout
from kvcheck.targets.loading import load_target

FAILING = Arrive(
    label="a",
    prompt=(1, 1, 1),
    max_tokens=1,
    answers=(Answer(holds=1, arrives=0), Answer(holds=6, asynchronous=True)),
)
SMALL = Arrive(label="a", prompt=(1, 2, 2, 1, 1), max_tokens=1)


@pytest.mark.parametrize(
    ("layout", "actions"),
    [
        pytest.param(
            layout_of(
                window(1, 3),
                num_blocks=7,
                max_model_len=4,
                token_budget=1,
                steps_in_flight=2,
                max_requests=1,
                connector=Connector(),
            ),
            (FAILING, Schedule(), Schedule(), Complete(), Schedule(), Complete()),
            id="a step in flight of a request that loads anew after a failed load",
        ),
        pytest.param(
            layout_of(window(1, 2), full(2), mamba(5), num_blocks=17, max_model_len=7, token_budget=6, max_requests=2),
            (SMALL, replace(SMALL, label="b", prompt=(*SMALL.prompt, 1)), Schedule()),
            id="a window keeps what multiples of S need, also where hits end anywhere",
        ),
    ],
)
def test_nothing_is_accused(layout: Layout, actions: tuple[Action, ...]) -> None:
    result = judge_run(load_target("model"), Run(layout=layout, actions=actions))
    assert (result.violations, result.undetermined, result.skipped) == ((), "", 0)
