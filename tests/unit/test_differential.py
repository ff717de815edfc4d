"""Two servers side by side: what one shows and the other does not is seen at once, and shrinks."""

from __future__ import annotations

import pytest

from kvcheck.engines.differential import compare_one, compare_run
from kvcheck.engines.random_layouts import Features
from kvcheck.engines.shrink import shrink
from kvcheck.model.actions import Run
from kvcheck.targets.base import UnsupportedLayout
from kvcheck.targets.loading import load_target
from kvcheck.targets.paired import PairedTarget


def paired(left: str, right: str) -> PairedTarget:
    return PairedTarget(load_target(left), load_target(right))


def test_a_server_agrees_with_itself() -> None:
    target = paired("model@0.28.0", "model@0.28.0")
    compared = [compare_one(target, seed, Features()) for seed in range(40)]
    assert [one.difference for one in compared] == [None] * 40
    assert sum(one.actions for one in compared) > 2000
    assert any(one.crashed for one in (compare_one(target, seed, Features()) for seed in range(40, 160)))


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("window-one-short", "event Lookup"),  # another hit
        ("partial-tail-registered-twice", "keys"),  # another key
        ("unregistered-blocks-age", "view free"),  # the order of reuse
        ("chunk-starts-off-grid", "schedule requests"),  # another chunk
        ("hit-blocks-not-counted", "event Estimate"),  # another estimate
        ("failed-load-several-groups", "crash in process"),  # only one of them dies
        ("reset-keeps-keys", "view keys"),  # the same events, another map
    ],
)
def test_a_difference_is_named_where_it_is_seen_first_and_shrinks(fault: str, what: str) -> None:
    target = paired("model", f"model+{fault}")
    compared = (compare_one(target, seed, Features()) for seed in range(400))
    found = next(one for one in compared if one.difference is not None and one.difference.function.startswith(what))

    def differs(run: Run) -> bool:
        try:
            difference = compare_run(target, run).difference
        except UnsupportedLayout:
            return False
        return difference is not None and difference.function.startswith(what)

    shrunk = shrink(found.run, differs, 2.0)
    assert differs(shrunk)
    assert len(shrunk.actions) <= len(found.run.actions)


def test_what_only_one_of_two_supports_is_not_compared() -> None:
    target = paired("model", "model")
    assert target.info.spec == "model against model"
    run = compare_one(target, 0, Features()).run
    assert compare_run(target, run).difference is None
