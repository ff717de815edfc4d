"""Targets that misbehave on purpose, and a search that draws what they trip over.

Worker processes load them by name, so this module must be importable there: the watching process hands on its path.
A request's label says what happens when it arrives.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

from kvcheck.engines.execution import Execution
from kvcheck.engines.search import SearchResult
from kvcheck.invariants.registry import Violation
from kvcheck.model.actions import Action, Arrive, Extend, Run, Schedule, kind_of
from kvcheck.model.layout import Group, Layout
from kvcheck.model.observation import CacheView, Processed, Promises, StepPlan, TargetInfo
from kvcheck.targets.base import StepOutput
from kvcheck.targets.errors import TargetError

FOLDER = str(Path(__file__).parent)
LAYOUT = Layout(groups=(Group(kind="full", block_size=2),), num_blocks=20, max_model_len=16, token_budget=16)
LOADER = "toys:load"
SEARCHER = "toys:search"

_SYSTEM: dict[str, Any] = {"__name__": "vllm.toy"}
exec(  # the system under test is told by its module's name
    """
import time

def inner(deadline):
    return time.monotonic() < deadline

def spin(seconds=1e9):
    deadline = time.monotonic() + seconds
    while inner(deadline):
        pass

def fail(text):
    raise AssertionError(text)

def fall():
    raise ValueError("fallen")
""",
    _SYSTEM,
)


def arrival(label: str, prompt: tuple[int, ...] = (1, 2, 3)) -> Arrive:
    return Arrive(label=label, prompt=prompt)


def run_of(*labels: str) -> Run:
    return Run(layout=LAYOUT, actions=(Schedule(), *(arrival(label) for label in labels), Schedule()))


class ToySession:
    promises = Promises()

    def __init__(self) -> None:
        self._passes = 0

    def arrive(self, request: Arrive) -> None:
        kind, _, argument = request.label.partition("-")
        if kind == "hang":
            _SYSTEM["spin"]()
        elif kind == "nap":
            _SYSTEM["spin"](float(argument))
        elif kind == "stuck":
            while True:
                pass
        elif kind == "fail":
            _SYSTEM["fail"](argument)
        elif kind == "fall":
            _SYSTEM["fall"]()
        elif kind == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif kind == "leave":
            os._exit(7)
        elif kind == "once" and not Path(argument).exists():
            Path(argument).touch()
            _SYSTEM["spin"]()
        elif kind == "flaky" and not Path(argument).exists():
            Path(argument).touch()
            _SYSTEM["fail"]("flaky")
        elif kind == "exhausted":
            raise MemoryError
        elif kind == "mistake":
            raise RuntimeError("a mistake of the harness")
        elif kind == "eat":
            sys.modules[f"eaten-{len(sys.modules)}"] = bytearray(int(argument) << 20)  # type: ignore[assignment]

    def extend(self, update: Extend) -> None:
        pass

    def schedule(self) -> StepPlan:
        self._passes += 1
        return StepPlan(seq=self._passes, requests=())

    def process(self, output: StepOutput) -> Processed:
        return Processed({})

    def abort(self, label: str) -> None:
        pass

    def evict(self, group: int, label: str, prefix: int) -> bool:
        return False

    def reset(self, running: bool) -> bool:
        return True

    def pause(self, what: str) -> bool:
        return False

    def settle(self) -> None:
        pass

    def view(self) -> CacheView:
        free = tuple(range(1, LAYOUT.num_blocks))
        return CacheView(
            refs=(0,) * LAYOUT.num_blocks,
            free=free,
            free_count=len(free),
            keys=(),
            block_keys=(),
            tables={},
            holders=(),
            requests={},
            running=(),
            waiting=(),
        )

    def take_log(self) -> tuple[()]:
        return ()

    def take_stores(self) -> tuple[()]:
        return ()


class ToyTarget:
    def __init__(self, spec: str) -> None:
        self.info = TargetInfo(spec=spec, version="1")

    def supports(self, layout: Layout) -> str:
        return "" if len(layout.groups) == 1 else "a toy has one group"

    def start(self, layout: Layout, level: str = "scheduler") -> ToySession:
        return ToySession()


def load(spec: str) -> ToyTarget:
    """`toy`, or one that does not load."""
    if spec == "refused":
        raise TargetError("there is no such toy")
    if spec == "broken":
        raise ValueError("line one\nline two")
    if spec == "dies":
        os._exit(3)
    return ToyTarget(spec)


def search(target: ToyTarget, seed: int, layout: Layout | None) -> SearchResult:
    """Runs of a few arrivals; which ones is in the environment variable TOY_LABELS, one label for each of its runs
    (seeds modulo their number), `-` for a run that is all right."""
    labels = os.environ.get("TOY_LABELS", "-").split()
    label = labels[seed % len(labels)]
    actions: list[Action] = [Schedule(), *(arrival(f"fine{i}") for i in range(random.Random(seed).randrange(1, 4)))]
    actions += [arrival(label)] if label != "-" else []
    execution = Execution(target.start(LAYOUT), LAYOUT)  # type: ignore[arg-type]
    violations: list[Violation] = []
    for action in actions:
        failure = execution.apply(action).observation.failure
        if failure is not None:
            signature = f"system.exception {failure.type} {failure.function}"
            violations.append(Violation("system.exception", "crash", failure.message, signature, execution.count - 1))
            break
    kinds = [kind_of(action) for action in actions[: execution.count]]
    return SearchResult(
        run=Run(layout=LAYOUT, actions=tuple(actions)),
        violations=tuple(violations),
        witnesses={"seen": 1},
        possible=("seen",),
        actions_by_kind={kind: kinds.count(kind) for kind in kinds},
        actions=len(kinds),
        skipped=0,
    )
