"""The Hypothesis machine as users run it, on real releases: silent where they are sound, and not where they are not.

A release fits into a process only once, so each machine runs in an interpreter of its own.
"""

from __future__ import annotations

import json

import msgspec
import pytest
from helpers import full, layout_of, mamba, sound_layout, window
from releases import output_of, release

from kvcheck.model.layout import Drafter, Layout

pytestmark = pytest.mark.release

MACHINE = """
    import json
    import logging
    import sys

    import msgspec
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis.stateful import run_state_machine_as_test

    from kvcheck.engines.judging import judge_run
    from kvcheck.engines.random_layouts import Features
    from kvcheck.machine import ViolationFound, machine_for
    from kvcheck.model.actions import kind_of
    from kvcheck.model.layout import Layout
    from kvcheck.targets.loading import load_target

    logging.disable(logging.CRITICAL)
    spec, layout, examples, shrinks = sys.argv[1:]
    target = load_target(spec)
    features = Features(failed_loads=False, duplicates=False, sessions=False)
    chosen = msgspec.json.decode(layout, type=Layout)
    machine = machine_for(target, features, chosen)
    runs = []

    class Counted(machine):
        def teardown(self):
            super().teardown()
            runs.append(len(self.actions))

    phases = [Phase.generate, Phase.shrink] if shrinks == "shrink" else [Phase.generate]
    quick = settings(
        max_examples=int(examples), phases=phases, derandomize=True, database=None, deadline=None,
        stateful_step_count=12 if shrinks == "shrink" else 30, report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    told = {"signatures": [], "again": [], "actions": []}
    try:
        run_state_machine_as_test(Counted, settings=quick)
    except ViolationFound as found:
        told["signatures"] = [v.signature for v in found.violations]
        told["again"] = [v.signature for v in judge_run(target, found.run).violations]
        told["actions"] = [kind_of(action) for action in found.run.actions]
    print(json.dumps({**told, "runs": len(runs), "longest": max(runs)}))
"""


def machine(version: str, layout: Layout, examples: int = 25, shrinks: bool = False) -> dict[str, object]:
    """What the machine found on a release with this layout."""
    release(version)
    encoded = msgspec.json.encode(layout).decode()
    output = output_of(MACHINE, f"vllm=={version}", encoded, examples, "shrink" if shrinks else "")
    return json.loads(output.splitlines()[-1])  # type: ignore[no-any-return]


SOUND = {
    "full attention": sound_layout("full", False, 1, "0.32.0"),
    "windows": sound_layout("gptoss", False, 1, "0.32.0"),
    "recurrent layers": sound_layout("gdn", False, 1, "0.32.0"),
    "overlapping steps": sound_layout("gptoss", False, 2, "0.32.0"),
    "a connector": sound_layout("full", True, 1, "0.32.0"),
}


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_found_where_a_release_is_sound(name: str) -> None:
    told = machine("0.32.0", SOUND[name])
    assert told["signatures"] == []
    assert isinstance(told["runs"], int)
    assert isinstance(told["longest"], int)
    assert told["runs"] >= 20
    assert told["longest"] > 20


def test_the_window_drafter_assertion_is_found_and_shrunk() -> None:
    """A drafter's window whose block is not the hash block, beside a Mamba group with larger blocks (R10.12)."""
    layout = layout_of(
        mamba(8, 3),
        full(8),
        window(9, 11),
        drafter=Drafter(method="dspark", tokens=3),
        worker_generation=2,
        num_blocks=60,
        max_model_len=80,
    )
    told = machine("0.27.1", layout, shrinks=True)
    assert told["signatures"] == ["system.exception AssertionError find_longest_cache_hit"]
    assert told["again"] == told["signatures"]
    kinds = told["actions"]
    assert isinstance(kinds, list)
    assert (kinds[0], kinds[-1]) == ("arrive", "schedule")
    assert set(kinds[1:-1]) <= {"arrive", "settle", "pause"}  # the last two are how a run of the machine ends
    assert kinds.count("arrive") <= 3  # Hypothesis may leave a burst of them
