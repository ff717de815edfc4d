"""What the checks cost: the same runs driven with and without judging, turn by turn in one process.

    python benchmarks/checks.py --target vllm==0.28.0 --runs 200 --repeats 5

Prints scheduling passes per second of one core and the ratio of the two; see README.md here.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from kvcheck.engines.execution import Execution
from kvcheck.engines.judging import Watch
from kvcheck.engines.random_layouts import Features
from kvcheck.engines.search import search_one
from kvcheck.model.actions import Run, Schedule
from kvcheck.report.info import info_text
from kvcheck.targets.base import Target
from kvcheck.targets.loading import DEFAULT_TARGET, load_target


def driven(target: Target, run: Run) -> None:
    """The server, its recorder and the shadow worker, unjudged."""
    execution = Execution(target.start(run.layout, run.level), run.layout)
    for action in run.actions:
        execution.apply(action)


def judged(target: Target, run: Run) -> None:
    """The same with all invariants and witnesses."""
    session = target.start(run.layout, run.level)
    watch = Watch(session, Execution(session, run.layout))
    for action in run.actions:
        watch.apply(action)


def cpu_seconds(way: Callable[[Target, Run], None], target: Target, runs: list[Run]) -> float:
    """Processor time of all runs."""
    start = time.process_time()
    for run in runs:
        way(target, run)
    return time.process_time() - start


@click.command()
@click.option("--target", "spec", default=DEFAULT_TARGET, show_default=True)
@click.option("--runs", default=200, show_default=True, help="Random runs, seeds from 0 on.")
@click.option("--repeats", default=5, show_default=True, help="Turns; the least time of each way counts.")
def main(spec: str, runs: int, repeats: int) -> None:
    """Compare driving with judging."""
    target = load_target(spec)
    chosen = [search_one(target, seed, Features()).run for seed in range(runs)]
    passes = sum(isinstance(action, Schedule) for run in chosen for action in run.actions)
    turns = [[cpu_seconds(way, target, chosen) for way in (driven, judged)] for _ in range(repeats)]
    without, with_checks = (min(turn[way] for turn in turns) for way in (0, 1))
    click.echo(f"{info_text(target.info)}: {runs} runs, {passes} passes, best of {repeats}")
    click.echo(f"driven  {passes / without:8.0f} passes/s")
    click.echo(f"judged  {passes / with_checks:8.0f} passes/s")
    click.echo(f"ratio   {with_checks / without:8.2f}")


if __name__ == "__main__":
    main()
