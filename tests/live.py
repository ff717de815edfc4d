"""Live servers for tests: what runs in a process of its own with a release loaded and the recorder on its scheduler."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from kvcheck.engines.execution import Execution
from kvcheck.engines.judging import Watch
from kvcheck.engines.random_layouts import Features
from kvcheck.engines.retracing import judge_recording
from kvcheck.engines.search import search_one
from kvcheck.model.actions import Arrive, Evict, Run
from kvcheck.model.layout import Group, Layout
from kvcheck.targets.base import StepOutput
from kvcheck.targets.loading import load_target
from kvcheck.targets.recording import read_recording
from kvcheck.targets.vllm.api import for_release
from kvcheck.targets.vllm.connector import NothingRemote
from kvcheck.targets.vllm.live import LiveRecorder
from kvcheck.targets.vllm.loading import load
from kvcheck.targets.vllm.plugin import FileSink, register
from kvcheck.targets.vllm.release import resolve

LAYOUT = Layout(
    groups=(Group(kind="full", block_size=16), Group(kind="sliding_window", block_size=16, window=64)),
    num_blocks=120,
    max_model_len=512,
    token_budget=128,
    max_requests=6,
    steps_in_flight=2,
)


def random_recordings(spec: str, runs: int, folder: Path) -> dict[str, Any]:
    """Drive random runs under the recorder; what judging the recordings says beside what watching the runs said."""
    target = load_target(spec)
    told: Counter[str] = Counter()
    parted = []
    for seed in range(runs):
        drawn = search_one(target, seed, Features(sessions=False)).run
        run = Run(layout=drawn.layout, actions=tuple(a for a in drawn.actions if not isinstance(a, Evict)))
        session: Any = target.start(run.layout)
        file = folder / f"{seed}.jsonl"
        recorder = LiveRecorder(session.scheduler, FileSink(file))
        watch = Watch(session, Execution(session, run.layout))
        for action in run.actions:
            watch.apply(action)
            if watch.broken:
                break
        recorder.close()
        result = judge_recording(target, read_recording(file))
        same = {v.signature for v in result.violations} == set(watch.violations) and not result.undetermined
        outside = result.undetermined.startswith("outside: ")
        told["same"] += same
        told["outside"] += outside
        told["violated"] += same and bool(result.violations)
        if not same and not outside:
            parted.append(f"{seed}: {result.undetermined}")
    return {"parted": parted, **{name: told[name] for name in ("same", "outside", "violated")}}


def serve(spec: str, end: str, passes: int = 120) -> None:
    """Serve a load with overlapping steps, as an engine does, with the recorder that the environment asks for.

    ``end``: in order ("shutdown"), the same after somebody else has evicted a block ("evicted"), or killed ("cut")."""
    runtime = load(resolve(spec))
    register()
    api, rng = for_release(runtime), random.Random(3)
    scheduler = api.scheduler(LAYOUT, NothingRemote())
    heads = [[rng.randrange(150_000) for _ in range(100)] for _ in range(3)]
    in_flight: list[tuple[Any, list[str]]] = []
    for number in range(passes):
        while len(scheduler.requests) < LAYOUT.max_requests + 1:
            scheduler.add_request(_request(api, rng, heads))
        if number % 40 == 39:
            scheduler.finish_requests([next(iter(scheduler.requests))], api.aborted)
        planned, requests = scheduler.schedule(), scheduler.requests
        ready = [r for r in planned.num_scheduled_tokens if requests[r].num_computed_tokens >= requests[r].num_tokens]
        in_flight.append((planned, ready))
        if len(in_flight) == LAYOUT.steps_in_flight:
            planned, ready = in_flight.pop(0)
            sampled = {label: (rng.randrange(150_000),) for label in ready}
            output = api.runner_output(planned, StepOutput(sampled=sampled, proposed={}), LAYOUT)
            scheduler.update_from_output(planned, output)
    if end == "evicted":
        scheduler.kv_cache_manager.block_pool.evict_blocks({1})
    if end != "cut":
        scheduler.shutdown()
    else:
        _cut(Path(os.environ["KVCHECK_RECORD"]))


def parted_where_cut(spec: str, file: Path) -> list[str]:
    """Cut a recording after each of its lines; what is said of those that are not as far as they go what they were."""
    target, recording = load_target(spec), read_recording(file)
    said = []
    for length in range(len(recording.lines)):
        cut = msgspec.structs.replace(recording, lines=recording.lines[:length])
        result = judge_recording(target, cut)
        if result.violations or not result.undetermined.startswith("cut-off: "):
            said.append(f"after {length} lines: {result.undetermined}")
    return said


def _request(api: Any, rng: random.Random, heads: list[list[int]]) -> Any:
    own = [rng.randrange(150_000) for _ in range(rng.randint(1, 40))]
    prompt = (*rng.choice(heads)[: rng.randint(1, 100)], *own)
    salt = "secret-tenant" if rng.random() < 0.1 else ""
    arrive = Arrive(label=f"secret-{rng.random()}", prompt=prompt, max_tokens=rng.randint(1, 50), salt=salt)
    return api.request(arrive, LAYOUT, 0)


def _cut(file: Path) -> None:
    """End as a killed process does: with what has been written, the last line in the middle."""
    time.sleep(0.2)
    with file.open("ab") as more:
        more.write(b'{"line":"plan')
        more.flush()
    os._exit(0)
