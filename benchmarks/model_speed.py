"""How many scheduler actions a second the model makes, without recorder, shadow worker and checks.

    PYTHONHASHSEED=0 python benchmarks/model_speed.py [--actions 200000] [--fault F ...]

The standard small layout is a hybrid as public models have it, scaled down: full attention and Mamba with blocks of 8,
two requests at a time, prompts of 4 to 24 tokens that often share a head, answers of 8. Processor time of one core.
With `--fault` the same with faults on, turn by turn, to see that a switch costs nothing.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence

from kvcheck.model.actions import Arrive
from kvcheck.model.faults import Faults, faults_on
from kvcheck.model.layout import Group, Layout, validate
from kvcheck.model.observation import Load, Scheduled, Tables
from kvcheck.model.request import Request
from kvcheck.model.scheduler import Scheduler

STANDARD = validate(
    Layout(
        groups=(Group(kind="full", block_size=8), Group(kind="mamba", block_size=8)),
        num_blocks=24,
        max_model_len=48,
        token_budget=16,
        max_requests=2,
    )
)
ANSWER = 8


class NoConnector:
    """The layout has none, so nothing is asked."""

    def ask(self, request: Request, local: int) -> tuple[int | None, bool]:
        """Never asked."""
        raise AssertionError

    def allocated(self, request: Request, tables: Tables, fresh: Sequence[int], external: int) -> None:
        """Never told."""

    def finished(self, request: Request, tables: Tables) -> bool:
        """Never asked."""
        raise AssertionError

    def take_loads(self) -> tuple[Load, ...]:
        """None."""
        return ()


def drive(faults: Faults, wanted: int) -> tuple[int, float]:
    """So many actions: arrivals, passes, processed steps. Returns how many there were, and seconds."""
    rng = random.Random(1)
    server = Scheduler(STANDARD, faults, NoConnector())
    began, actions, arrivals = time.process_time(), 0, 0
    while actions < wanted:
        if len(server.requests) < STANDARD.max_requests + 1:
            arrivals += 1
            prompt = tuple(rng.choice((1, 1, 2)) for _ in range(rng.randint(4, 24)))
            server.arrive(Arrive(label=f"r{arrivals}", prompt=prompt, max_tokens=ANSWER))
            actions += 1
        plan = server.schedule()
        server.process({item.label: (3,) for item in plan.requests if samples(server, item)})
        actions += 2
    return actions, time.process_time() - began


def samples(server: Scheduler, item: Scheduled) -> bool:
    """Whether the step gives the request a token: all that is known has run."""
    return item.start + item.count >= server.requests[item.label].known


def main() -> None:
    """Print the rates, best of three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actions", type=int, default=200_000)
    parser.add_argument("--fault", action="append", default=[])
    asked = parser.parse_args()
    ways = {"no fault": Faults()} | ({"+".join(asked.fault): faults_on(asked.fault)} if asked.fault else {})
    best = dict.fromkeys(ways, 0.0)
    for _ in range(3):
        for name, faults in ways.items():
            actions, seconds = drive(faults, asked.actions)
            best[name] = max(best[name], actions / seconds)
    for name, rate in best.items():
        print(f"{name}: {rate:.0f} actions a second")


if __name__ == "__main__":
    main()
