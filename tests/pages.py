"""Pages for tests: what they hold, and long runs to make them of."""

from __future__ import annotations

import json
import random
import re
from typing import Any

from kvcheck.engines.execution import Execution
from kvcheck.engines.judging import RunResult, judge_run
from kvcheck.engines.random_runs import RunGenerator
from kvcheck.engines.source import RandomSource
from kvcheck.model.actions import Run
from kvcheck.model.layout import Connector, Group, Layout
from kvcheck.report.pages.run import RunPage, run_page
from kvcheck.targets.reference.target import ReferenceTarget

LONG_LAYOUT = Layout(
    groups=(
        Group(kind="full", block_size=4),
        Group(kind="sliding_window", block_size=4, window=9),
        Group(kind="mamba", block_size=8),
    ),
    num_blocks=200,
    max_model_len=160,
    token_budget=48,
    max_requests=6,
    connector=Connector(),
)


def judged(run: Run, spec: str = "model@0.28.0") -> RunResult:
    """What the model makes of a run, with its recording."""
    return judge_run(ReferenceTarget(spec), run, record=True)


def page_of(run: Run, result: RunResult, **fields: Any) -> str:
    """The page of a run that was judged on the model."""
    verdict = "violated" if result.violations else "undetermined" if result.undetermined else "passed"
    given = {
        "run": run,
        "target": "model",
        "verdict": verdict,
        "violations": result.violations,
        "reproduce": "kvcheck replay run.json --target model",
        "trace": result.trace,
        **fields,
    }
    return run_page(RunPage(**given))


def film_in(page: str) -> Any:
    """What the page's script reads."""
    found = re.search(r'<script type="application/json" id="film">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def long_run(actions: int = 1000) -> Run:
    """A run of so many random actions on 200 blocks."""
    session = ReferenceTarget("model").start(LONG_LAYOUT)
    execution = Execution(session, LONG_LAYOUT)
    generator = RunGenerator(RandomSource(random.Random(0)), LONG_LAYOUT)
    drawn = []
    for _ in range(actions):
        drawn.append(generator.next(execution))
        execution.apply(drawn[-1])
    return Run(layout=LONG_LAYOUT, actions=tuple(drawn))
