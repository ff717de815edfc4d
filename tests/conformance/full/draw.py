"""Draws runs for `digests`: fresh random ones of a release, or a corpus that is varied.

    python -m tests.conformance.full.draw --release 0.33.0 --count 200 --seed 20260101 FILE
    python -m tests.conformance.full.draw --release 0.33.0 --count 800 --keep 40 --most-actions 60 FILE

With `--keep`, that many of the runs are chosen so that each kind of group, drafter, connector, ... and each situation
that a run can reach is there several times; runs that more releases support come first.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from kvcheck.engines.judging import judge_run
from kvcheck.engines.random_layouts import Features
from kvcheck.engines.search import search_one
from kvcheck.engines.seeds import seed_of_run
from kvcheck.model.actions import Run, kind_of
from kvcheck.model.layout import Layout
from kvcheck.targets.base import Target
from kvcheck.targets.vllm.release import KNOWN_RELEASES, resolve
from kvcheck.targets.vllm.target import VllmTarget
from tests.conformance.full.digests import UNSUPPORTED, compute, write_runs


def drawn(target: Target, count: int, seed: int, most_actions: int | None) -> list[Run]:
    """Random runs, cut to so many actions."""
    searched = (search_one(target, seed_of_run(seed, index), Features()).run for index in range(count))
    return [msgspec.structs.replace(run, actions=run.actions[:most_actions]) for run in searched]


def chosen(target: Target, runs: Sequence[Run], keep: int) -> list[Run]:
    """So many of the runs, each of which adds most to those before it."""
    traits = [frozenset(_traits(target, run)) for run in runs]
    supporters = _supporters(runs)
    seen: Counter[str] = Counter()
    left, kept = set(range(len(runs))), []
    for _ in range(keep):
        best = max(left, key=lambda i: ((4 + supporters[i]) * sum(0.25 ** seen[t] for t in traits[i]), -i))
        left.remove(best)
        kept.append(best)
        seen.update(traits[best])
    return [runs[i] for i in kept]


def _traits(target: Target, run: Run) -> Iterator[str]:
    yield from _layout_traits(run.layout)
    yield from {f"action {kind_of(action)}" for action in run.actions}
    yield from judge_run(target, run).witnesses


def _layout_traits(layout: Layout) -> Iterator[str]:
    kinds = sorted({group.kind for group in layout.groups})
    yield from kinds
    yield "+".join(kinds)
    yield f"{len(layout.groups)} groups"
    yield f"worker generation {layout.worker_generation}"
    yield f"retention {layout.retention}"
    yield f"{layout.steps_in_flight} steps in flight"
    if layout.drafter:
        yield f"drafter {layout.drafter.method}"
        yield f"asynchronous {layout.asynchronous}, drafter {layout.drafter.is_eagle}"
    if layout.connector:
        yield f"connector {layout.connector.role} {layout.connector.failure} {layout.connector.divergent}"
    flags = {
        "partial hits": layout.partial_hits,
        "checkpoint blocks": any(group.checkpoint_blocks for group in layout.groups),
        "dcp": layout.dcp > 1,
        "priority": layout.policy == "priority",
        "events": layout.events,
        "no caching": not layout.caching,
        "zeroing": layout.zeroing,
        "flagged groups": any(group.eagle for group in layout.groups),
    }
    yield from (name for name, on in flags.items() if on)


def _supporters(runs: Sequence[Run]) -> list[int]:
    """How many of the known releases can express each run's layout."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "runs.json"
        write_runs(file, list(runs))
        every = [compute(version, "light", file) for version in KNOWN_RELEASES]
    return [sum(digests[str(i)] != UNSUPPORTED for digests in every) for i in range(len(runs))]


def main() -> None:
    """Draw, choose and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--release", required=True, help="the release that the runs are drawn on")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=int)
    parser.add_argument("--most-actions", type=int)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    target = VllmTarget(resolve(f"vllm=={options.release}", mode="light"))
    runs = drawn(target, options.count, options.seed, options.most_actions)
    write_runs(options.file, runs if options.keep is None else chosen(target, runs, options.keep))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # a seed gives the same runs on every machine
        again = [sys.executable, *sys.orig_argv[1:]]
        sys.exit(subprocess.run(again, env={**os.environ, "PYTHONHASHSEED": "0"}, check=False).returncode)
    main()
