"""The pool scope searched side by side by kvcheck, spin and rumur: states, transitions, time.

    python benchmarks/pool_scope.py [--blocks 6] [--requests 2] [--columns 3]

All three search without symmetry, so that the counts must agree; kvcheck then searches once more with symmetry. Spin
and rumur are packages of Debian of these names; their models are in `pool_scope/`. Wall-clock time of one core, the
time to compile the models not counted. Exit status 1 if the counts differ, 2 if a tool is missing.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from kvcheck.explorer.pool import PoolLayout, PoolMove, PoolState, PoolWorld
from kvcheck.explorer.search import Search
from kvcheck.model.faults import NO_FAULTS

MODELS = Path(__file__).parent / "pool_scope"
TOOLS = ("spin", "rumur", "cc")


class Counted(NamedTuple):
    """One search."""

    by: str
    states: int
    transitions: int
    seconds: float


def by_kvcheck(layout: PoolLayout, symmetric: bool) -> Counted:
    """Ours, on the pool of the model."""
    world = PoolWorld(layout, NO_FAULTS, symmetric)
    explored = Search[PoolState, PoolMove](world).run(lambda: True)
    name = "kvcheck, with symmetry" if symmetric else "kvcheck"
    return Counted(name, explored.states, explored.transitions, explored.seconds)


def by_spin(layout: PoolLayout, folder: Path) -> Counted:
    """Depth first, without partial-order reduction. Its initial state comes before the one that all begin with, with a
    transition of its own, and the process that makes it has one more."""
    sizes = [f"-DFREE={layout.blocks - 1}", f"-DREQUESTS={layout.requests}", f"-DCOLUMNS={layout.columns}"]
    _run(folder, "spin", *sizes, "-a", str(MODELS / "pool.pml"))
    _run(folder, "cc", "-O3", "-DSAFETY", "-DNOREDUCE", "-DMEMLIM=4096", "-o", "pan", "pan.c")
    began = time.monotonic()
    told = _run(folder, "./pan", "-E", "-m10000000", "-w26")
    seconds = time.monotonic() - began
    return Counted("spin", _number(r"(\d+) states, stored", told) - 1, _number(r"(\d+) transitions", told) - 2, seconds)


def by_rumur(layout: PoolLayout, folder: Path) -> Counted:
    """Breadth first, one thread."""
    text = (MODELS / "pool.m").read_text(encoding="utf-8")
    sizes = {"@FREE@": layout.blocks - 1, "@REQUESTS@": layout.requests, "@COLUMNS@": layout.columns}
    for name, size in sizes.items():
        text = text.replace(name, str(size))
    (folder / "pool.m").write_text(text, encoding="utf-8")
    options = ("--symmetry-reduction", "off", "--deadlock-detection", "off", "--threads", "1")
    _run(folder, "rumur", *options, "--output", "pool.c", "pool.m")
    _run(folder, "cc", "-O3", "-std=c11", "-march=native", "-w", "-o", "pool", "pool.c", "-lpthread", "-latomic")
    began = time.monotonic()
    told = _run(folder, "./pool")
    seconds = time.monotonic() - began
    return Counted("rumur", _number(r"(\d+) states,", told), _number(r"(\d+) rules fired in", told), seconds)


def _run(folder: Path, *command: str) -> str:
    """What a command of a tool prints."""
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout  # noqa: S603  tools named here


def _number(pattern: str, text: str) -> int:
    """The number that a tool told last."""
    return int(re.findall(pattern, text)[-1])


def main() -> int:
    """Search, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--requests", type=int, default=2)
    parser.add_argument("--columns", type=int, default=3)
    layout = PoolLayout(**vars(parser.parse_args()))
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        print(f"not installed: {', '.join(missing)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = [by_kvcheck(layout, symmetric=False), by_spin(layout, folder), by_rumur(layout, folder)]
    print("| by | states | transitions | seconds | states a second |\n|---|---|---|---|---|")
    for one in (*plain, by_kvcheck(layout, symmetric=True)):
        print(f"| {one.by} | {one.states} | {one.transitions} | {one.seconds:.2f} | {one.states / one.seconds:.0f} |")
    return 0 if len({(one.states, one.transitions) for one in plain}) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
