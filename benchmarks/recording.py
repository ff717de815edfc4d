"""What the recorder costs a scheduler with many running requests: the same load with and without it, side by side.

    python benchmarks/recording.py --target vllm==0.33.0 [--running 128] [--groups 1] [--passes 300] [--repeats 10]

Two schedulers of one release are driven with the same requests, pass by pass in turn, several times over. What counts
is the processor time of the scheduler's own calls in each pass (arrivals, the pass, the output), with the recorder's
part in them, and of each pass the least of all repeats, so that the ratio hardly depends on what else the machine does.
The recorder's writer, which has a thread of its own in a server, is told apart.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from kvcheck.model.actions import Arrive
from kvcheck.model.layout import Group, Layout, validate
from kvcheck.report.info import info_text
from kvcheck.targets.base import StepOutput
from kvcheck.targets.loading import describe
from kvcheck.targets.vllm.api import Api, for_release
from kvcheck.targets.vllm.connector import NothingRemote
from kvcheck.targets.vllm.live import LiveRecorder
from kvcheck.targets.vllm.loading import load
from kvcheck.targets.vllm.plugin import FileSink, Writer
from kvcheck.targets.vllm.release import resolve

FULL = Group(kind="full", block_size=16)
WINDOW = Group(kind="sliding_window", block_size=16, window=1024)
PROMPT = 512
ANSWERS = (128, 384)
WARM = 50
"""Passes that do not count: all requests arrive at once in the first of them."""


class Server:
    """One scheduler that always has so many requests; ``seconds``: within its calls."""

    def __init__(self, api: Api, layout: Layout) -> None:
        self.scheduler = api.scheduler(layout, NothingRemote())
        self.seconds = 0.0
        self._api, self._layout = api, layout
        self._random = random.Random(1)
        self._arrived = 0
        self._in_flight: list[tuple[Any, list[str]]] = []

    def timed(self, call: Any, *arguments: Any) -> Any:
        """Call it, and count the time."""
        began = time.thread_time()
        result = call(*arguments)
        self.seconds += time.thread_time() - began
        return result

    def arrive(self) -> None:
        """A request, half of whose prompt others have too."""
        self._arrived += 1
        draw = self._random.randrange
        head = [draw(8)] * (PROMPT // 2)
        prompt = (*head, *(draw(150_000) for _ in range(PROMPT // 2)))
        label = f"cmpl-{self._arrived:032x}"
        answer = self._random.randint(*ANSWERS)
        request = self._api.request(Arrive(label=label, prompt=prompt, max_tokens=answer), self._layout, self._arrived)
        self.timed(self.scheduler.add_request, request)

    def step(self) -> float:
        """A pass, and the output of the oldest step if there are enough in flight; the seconds that they took."""
        before = self.seconds
        while len(self.scheduler.requests) < self._layout.max_requests:
            self.arrive()
        planned, requests = self.timed(self.scheduler.schedule), self.scheduler.requests
        counts = planned.num_scheduled_tokens
        ready = [label for label in counts if requests[label].num_computed_tokens >= requests[label].num_tokens]
        self._in_flight.append((planned, ready))
        if len(self._in_flight) == self._layout.steps_in_flight:
            planned, ready = self._in_flight.pop(0)
            sampled = {label: (self._random.randrange(150_000),) for label in ready}
            output = self._api.runner_output(planned, StepOutput(sampled=sampled, proposed={}), self._layout)
            self.timed(self.scheduler.update_from_output, planned, output)
        return self.seconds - before


def seconds_of(
    api: Api, layout: Layout, passes: int, file: Path, first: int
) -> tuple[list[float], list[float], list[float]]:
    """Seconds of each pass without the recorder, with it, and of its writer after each.

    ``first``: whether the recorded server is made first and begins: that changes what lies where in memory and caches.
    """
    servers = [Server(api, layout), Server(api, layout)]
    writer = Writer()
    LiveRecorder(servers[1 - first].scheduler, FileSink(file), pace=writer)
    taken: tuple[list[float], list[float], list[float]] = [], [], []
    for number in range(WARM + passes):
        for which in (0, 1) if number % 2 else (1, 0):
            is_recorded = which == 1 - first
            taken[is_recorded].append(servers[which].step())
        began = time.thread_time()
        writer.catch_up()
        taken[2].append(time.thread_time() - began)
    without, with_it, writing = (column[WARM:] for column in taken)
    return without, with_it, writing


@click.command()
@click.option("--target", "spec", default="vllm==0.33.0", show_default=True)
@click.option("--running", default=128, show_default=True, help="Requests that run at a time.")
@click.option("--groups", type=click.Choice(["1", "2"]), default="1", show_default=True)
@click.option("--overlapping", is_flag=True, help="Asynchronous scheduling, two steps in flight.")
@click.option("--passes", default=300, show_default=True, help="Of each server, in each repeat.")
@click.option("--repeats", default=10, show_default=True, help="The least time of each pass counts.")
def main(spec: str, running: int, groups: str, overlapping: bool, passes: int, repeats: int) -> None:
    """Compare a recorded scheduler with one that is not."""
    api = for_release(load(resolve(spec)))
    layout = validate(
        Layout(
            groups=(FULL, WINDOW)[: int(groups)],
            num_blocks=running * 128,
            max_model_len=8192,
            token_budget=8192,
            max_requests=running,
            steps_in_flight=2 if overlapping else 1,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "recording.jsonl"
        repeated = [seconds_of(api, layout, passes, file, repeat % 2) for repeat in range(repeats)]
        size = file.stat().st_size
    least = [sum(map(min, zip(*(repeat[which] for repeat in repeated), strict=True))) for which in (0, 1, 2)]
    without, with_it, writing = (seconds / passes * 1e6 for seconds in least)
    overlap = f"{layout.steps_in_flight} step(s) in flight"
    click.echo(f"{info_text(describe(spec))}: {running} running, {groups} group(s), {overlap}, best of {repeats}")
    click.echo(f"scheduling  {without:.0f} us a step")
    click.echo(f"recorded    {with_it:.0f} us a step, {with_it / without - 1:+.1%}")
    click.echo(f"writer      {writing:.0f} us a step, while a server waits for its workers")
    click.echo(f"recording   {size / (WARM + passes) / 1000:.1f} kB a step, arrivals in it")


if __name__ == "__main__":
    main()
