"""No false alarm: runs of the model without a fault, each of which an invariant once accused."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import full, layout_of, mamba, replace, window

from kvcheck.engines.judging import judge_run
from kvcheck.model.actions import Abort, Action, Answer, Arrive, Complete, Extend, Run, Schedule, Transfer
from kvcheck.model.layout import Connector, Drafter, Group, Layout
from kvcheck.targets.loading import load_target

FAILING = Arrive(
    label="a",
    prompt=(1, 1, 1),
    max_tokens=1,
    answers=(Answer(holds=1, arrives=0), Answer(holds=6, asynchronous=True)),
)
TOKENS = (1, 2, 1, 3, 3, 3, 3, 1, 2, 2, 4, 1, 4, 5, 1, 4, 4, 2, 4, 2, 2, 4, 6, 7, 8, 9)
STEP = (Schedule(), Complete())


def asking(label: str, *tokens: int, priority: int = 0) -> Arrive:
    return Arrive(label=label, prompt=tokens, max_tokens=1, priority=priority)


def loading(label: str, prompt: int, holds: int) -> Arrive:
    """A request of which a connector brings the first tokens later on."""
    return replace(asking(label, *TOKENS[:prompt]), answers=(Answer(holds=holds, asynchronous=True),))


def tight(*groups: Group, **settings: Any) -> Layout:
    """The layout with the smallest pool that a server should accept."""
    layout = layout_of(*groups, **settings)
    return replace(layout, num_blocks=layout.min_blocks)


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
        pytest.param(
            layout_of(
                *(window(4, 6), full(4), window(2, 4), *[mamba(4, 3)] * 3),
                num_blocks=62,
                max_model_len=29,
                token_budget=14,
                steps_in_flight=2,
                max_requests=2,
                policy="priority",
                drafter=Drafter(method="draft_model", tokens=3),
                connector=Connector(role="consumer", divergent=True),
            ),
            (
                asking("a", *TOKENS[:14]),
                Schedule(),
                asking("b", *TOKENS),
                Complete(),
                Schedule(),
                asking("c", *TOKENS[:22]),
                asking("d", *TOKENS[:16], 7, 7, 6, 9, priority=2),
                *(Complete(), Schedule(), Schedule(), Complete(), Schedule(), Complete(), *STEP),
                asking("e", *TOKENS[:9]),
                *STEP * 3,
            ),
            id="a key that was taken back is published anew for the same block",
        ),
        pytest.param(
            layout_of(
                *(window(1, 2), mamba(4), mamba(4)),
                num_blocks=19,
                max_model_len=11,
                token_budget=5,
                max_requests=2,
                policy="priority",
                steps_in_flight=2,
                connector=Connector(role="consumer", divergent=True),
            ),
            (
                asking("a", 1, 1, 2, 3, 1, 4, 2, 5, 1, 4, priority=1),
                Schedule(),
                Arrive(label="b", prompt=(6,), max_tokens=2),
                *(Schedule(), Complete()),
                Arrive(label="c", prompt=(1, 1), max_tokens=1, answers=(Answer(holds=4, asynchronous=True),)),
                *(Schedule(), Complete(), Schedule(), Transfer(label="c"), Complete(), Complete(), *STEP),
            ),
            id="blocks of a request that was taken out of a plan are neither zeroed nor poisoned after a load",
        ),
        pytest.param(
            layout_of(
                *(window(1, 4, eagle=True), full(1), mamba(2, 1)),
                num_blocks=26,
                max_model_len=5,
                token_budget=6,
                max_requests=3,
                drafter=Drafter(method="mtp", tokens=1),
                connector=Connector(divergent=True),
            ),
            (
                asking("a", 1, 2),
                asking("b", 1, 1, 3),
                Arrive(label="c", prompt=(1, 1, 1, 1), max_tokens=1, answers=(Answer(holds=5, asynchronous=True),)),
                *(Schedule(), Transfer(label="c"), Complete(), *STEP),
            ),
            id="a block that another token followed, in a group that was looked up on its own",
        ),
        pytest.param(
            layout_of(
                *(mamba(6), full(6)),
                num_blocks=6,
                max_model_len=6,
                token_budget=2,
                match_unit=2,
                max_requests=2,
                steps_in_flight=2,
                connector=Connector(role="consumer"),
            ),
            (
                Arrive(label="a", prompt=(1, 1, 2, 1), max_tokens=1, answers=(Answer(holds=4, arrives=2),)),
                Schedule(),
                asking("b", 1, 1, 2, 1, 1),
                *(Schedule(), Complete(), Complete()),
            ),
            id="who has copied what a failed load left starts anew as well",
        ),
        pytest.param(
            layout_of(
                full(4),
                num_blocks=7,
                max_model_len=20,
                token_budget=16,
                max_requests=2,
                steps_in_flight=2,
                connector=Connector(role="consumer"),
                zeroing=True,
            ),
            (
                Arrive(
                    label="a",
                    prompt=(*range(12),),
                    max_tokens=1,
                    answers=(Answer(holds=8, asynchronous=True, arrives=4), Answer()),
                ),
                Arrive(label="b", prompt=(9,) * 12, max_tokens=3),
                *(Schedule(), Transfer(label="a"), Complete(), Schedule(), *STEP, Abort(label="a"), Complete()),
            ),
            id="blocks that a failed load has not filled are given back",
        ),
        pytest.param(
            layout_of(
                *(mamba(5), mamba(5), mamba(5)),
                num_blocks=10,
                max_model_len=7,
                token_budget=1,
                match_unit=1,
                max_requests=1,
                connector=Connector(),
            ),
            (
                Arrive(label="a", prompt=(1,), max_tokens=1, session=True),
                *STEP,
                *(Extend(label="a", prompt=(1,)), *STEP) * 2,
                *STEP * 2,
            ),
            id="the tails of a session's earlier turns are not kept",
        ),
        pytest.param(
            layout_of(
                *(full(1), mamba(4), mamba(4), mamba(4)),
                num_blocks=36,
                max_model_len=56,
                token_budget=24,
                max_requests=1,
                steps_in_flight=3,
                dcp=2,
            ),
            (
                Arrive(label="a", prompt=tuple(range(51)), max_tokens=1, session=True),
                *STEP,
                Extend(label="a", prompt=(5, 5)),
                *(Schedule(), Schedule(), Complete(), Complete(), *STEP * 4),
            ),
            id="states before columns that chunks passed over are given back, so that the next turn fits",
        ),
        pytest.param(
            layout_of(
                full(2),
                num_blocks=16,
                max_model_len=8,
                token_budget=8,
                max_requests=2,
                long_prefill_threshold=1,
                drafter=Drafter(method="mtp", tokens=2, modules=2),
            ),
            (asking("a", 1, 2), asking("b", 1, 2), *STEP * 4),
            id="a long-prefill threshold gives way to what the drafter's last chunk needs",
        ),
        pytest.param(
            layout_of(
                *(window(2, 2), window(1, 2)),
                num_blocks=6,
                max_model_len=14,
                token_budget=1,
                max_requests=1,
                watermark=0.0,
                connector=Connector(divergent=True),
            ),
            (loading("a", 5, 4), Schedule(), loading("b", 2, 2), Complete(), Schedule()),
            id="a load leaves what a window needs beside the blocks that it really holds",
        ),
        pytest.param(
            layout_of(
                *(mamba(12, 2), mamba(12, 2), Group(kind="mla", block_size=12)),
                num_blocks=17,
                max_model_len=25,
                token_budget=6,
                max_requests=2,
                long_prefill_threshold=5,
                watermark=0.0,
                drafter=Drafter(method="eagle", tokens=2),
                connector=Connector(),
            ),
            (asking("a", *TOKENS[:23]), loading("b", 14, 15), *STEP * 5),
            id="a load leaves what the drafter needs behind the last chunk of a prefill",
        ),
        pytest.param(
            layout_of(
                *(window(1, 4), mamba(3, 1)),
                num_blocks=19,
                max_model_len=16,
                token_budget=3,
                max_requests=2,
                watermark=0.25,
                drafter=Drafter(method="mtp", tokens=1),
                steps_in_flight=3,
                connector=Connector(role="consumer"),
            ),
            (
                replace(asking("a", *TOKENS[:14]), answers=(Answer(holds=None), Answer(holds=12, arrives=0))),
                Schedule(),
                loading("b", 15, 14),
                *(Schedule(), Schedule(), Transfer(label="b"), Complete(), Schedule()),
                *(Complete(), Complete(), Complete(), Schedule(), Complete()),
            ),
            id="a block that a failed load left is missing too for a request whose own load is over and that waits",
        ),
        pytest.param(
            tight(
                *(mamba(8, 2), mamba(8, 2), mamba(8, 2), window(8, 17)),
                max_model_len=84,
                token_budget=19,
                match_unit=1,
                long_prefill_threshold=10,
                watermark=0.0,
                admit_whole=False,
                drafter=Drafter(method="mtp", tokens=2),
            ),
            (replace(asking("a", *TOKENS[:22]), max_tokens=16), *STEP * 5),
            id="the smallest pool has room for the copies of states inside blocks where no hit ends inside",
        ),
        pytest.param(
            layout_of(
                *(window(3, 2), full(4)),
                num_blocks=16,
                max_model_len=23,
                token_budget=16,
                max_requests=2,
                policy="priority",
                drafter=Drafter(method="mtp", tokens=4, modules=4),
            ),
            (
                replace(asking("a", *TOKENS[:17]), priority=1),
                replace(asking("b", *TOKENS[:16]), max_tokens=7),
                *STEP,
                *(Schedule(), Complete(accepted={"b": 4}), Schedule()),
            ),
            id="accepted drafts carry a window past blocks of the prompt that were not final yet",
        ),
    ],
)
def test_nothing_is_accused(layout: Layout, actions: tuple[Action, ...]) -> None:
    result = judge_run(load_target("model"), Run(layout=layout, actions=actions))
    assert (result.violations, result.undetermined, result.skipped) == ((), "", 0)
