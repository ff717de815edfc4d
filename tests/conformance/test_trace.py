"""A recording is judged without its target as the run was judged with it; and one that was tampered with is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from helpers import release_worker, replace

from kvcheck.engines.judging import judge_trace
from kvcheck.files import read_run_or_trace, write_trace
from kvcheck.layouts.presets import preset
from kvcheck.model.actions import Arrive, Complete, Run, Schedule
from kvcheck.model.observation import CacheView, Lookup, Observation, StepPlan, Trace
from kvcheck.targets.errors import TargetError

pytestmark = pytest.mark.release

VERSION = "0.28.0"
RUNS = 60
PROMPT = (1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2)
STEP = (Schedule(), Complete())
RUN = Run(
    layout=preset("gptoss", VERSION),
    actions=(
        Arrive(label="a", prompt=PROMPT, max_tokens=2),
        *STEP,
        Arrive(label="b", prompt=PROMPT, max_tokens=2),
        *STEP,
        *STEP,
        *STEP,
    ),
)


def test_random_recordings_are_judged_the_same(tmp_path: Path) -> None:
    violated = 0
    with release_worker(VERSION) as worker:
        for seed in range(RUNS):
            run = worker.search(seed).run
            online = worker.judge(run, record=True)
            assert online.trace is not None
            write_trace(tmp_path / "trace.json", online.trace)
            read = read_run_or_trace(tmp_path / "trace.json")
            assert read == online.trace
            assert isinstance(read, Trace)
            offline = judge_trace(read)
            assert offline.violations == online.violations
            assert offline.witnesses == online.witnesses
            assert (offline.actions, offline.skipped) == (online.actions, online.skipped)
            violated += bool(online.violations)
    assert 0 < violated < RUNS


# ---- doctored recordings ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace() -> Trace:
    """A recording of two equal requests, the second of which hits what the first has left."""
    with release_worker(VERSION) as worker:
        result = worker.judge(RUN, record=True)
    assert not result.violations
    assert result.trace is not None
    return result.trace


def doctored(trace: Trace, index: int, change: Callable[[Observation], Observation]) -> set[str]:
    """What is found if one observation is changed."""
    observations = list(trace.observations)
    observations[index] = change(observations[index])
    assert observations[index] != trace.observations[index]
    return {v.invariant for v in judge_trace(replace(trace, observations=tuple(observations))).violations}


def viewed(**fields: object) -> Callable[[Observation], Observation]:
    return lambda seen: replace(seen, view=replace(seen.view, **{k: _value(v, seen.view) for k, v in fields.items()}))


def _value(value: object, view: CacheView | None) -> object:
    return value(view) if callable(value) else value


def test_the_recording_itself_is_sound(trace: Trace) -> None:
    assert judge_trace(trace).violations == ()
    lookups = [event for event in trace.observations[4].log if isinstance(event, Lookup)]
    assert [event.length for event in lookups] == [10]


CHANGES: dict[str, tuple[int, Callable[[Observation], Observation], set[str]]] = {
    "a reference is lost": (
        1,
        viewed(
            refs=lambda view: tuple(count - (block == view.tables["a"][1][0]) for block, count in enumerate(view.refs))
        ),
        {"ownership.references", "ownership.free-queue"},
    ),
    "the first free block is missing": (
        1,
        viewed(free=lambda view: view.free[1:], free_count=lambda view: view.free_count - 1),
        {"ownership.free-queue"},
    ),
    "a key is missing from the map": (1, viewed(keys=lambda view: view.keys[1:]), {"registration.map"}),
    "a block is not given back at the end": (
        8,
        viewed(
            refs=lambda view: tuple(count + (block == view.free[0]) for block, count in enumerate(view.refs)),
            free=lambda view: view.free[1:],
            free_count=lambda view: view.free_count - 1,
        ),
        {"ownership.leak", "ownership.references"},
    ),
    "a hit is shorter than what is there": (
        4,
        lambda seen: replace(seen, log=tuple(_shorter(e) if isinstance(e, Lookup) else e for e in seen.log)),
        {"hits.complete", "hits.repeat"},
    ),
    "the worker is told of other blocks": (
        4,
        lambda seen: replace(seen, plan=_elsewhere(seen.plan)),
        {"content.attention"},
    ),
}


def _shorter(event: Lookup) -> Lookup:
    blocks = tuple(group[:4] for group in event.blocks)
    return replace(event, length=8, lengths=(8, 8), blocks=blocks)


def _elsewhere(plan: StepPlan | None) -> StepPlan:
    """The worker is told of the hit's blocks in the wrong order."""
    assert plan is not None
    other, item = plan.requests
    assert (other.label, item.label) == ("a", "b")
    tables = tuple(tuple(reversed(table)) for table in item.tables)
    return replace(plan, requests=(other, replace(item, tables=tables)))


@pytest.mark.parametrize("name", CHANGES)
def test_a_recording_that_was_tampered_with(name: str, trace: Trace) -> None:
    index, change, expected = CHANGES[name]
    found = doctored(trace, index, change)
    assert found & expected
    assert found <= expected | {"registration.names"}


def test_a_recording_of_another_run_is_told_apart(trace: Trace) -> None:
    other = replace(trace, run=replace(RUN, actions=(Schedule(), *RUN.actions)))
    with pytest.raises(TargetError, match="it is of another run"):
        judge_trace(other)


def test_a_trace_says_what_was_driven(trace: Trace) -> None:
    assert trace.target.spec == f"vllm=={VERSION}"
    assert trace.target.version == VERSION
    assert msgspec.json.decode(msgspec.json.encode(trace), type=Trace) == trace
