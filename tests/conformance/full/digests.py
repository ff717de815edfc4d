"""Digests of what each release shows on a fixed corpus of runs, when loaded light or full.

    python -m tests.conformance.full.digests --mode light                        # compare with the stored digests
    python -m tests.conformance.full.digests --mode full --write                 # make them anew (extra `vllm`)
    python -m tests.conformance.full.digests --mode light --release 0.30.0 --show 17     # what one run shows

The stored digests are those of full loading, so that the comparison with light needs none of vLLM's dependencies.
They change with whatever kvcheck observes: after such a change they are made anew, in full mode.

Exit status: 0 if the digests agree, 4 if they do not (1 is that of a Python that crashes), 3 if they cannot be had.
"""

# ruff: noqa: T201 - a command

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast, get_args

import msgspec

from kvcheck.engines.execution import Execution
from kvcheck.model.actions import Run
from kvcheck.model.observation import Observation
from kvcheck.targets.base import Target, UnsupportedLayout
from kvcheck.targets.errors import TargetError
from kvcheck.targets.failures import HarnessError
from kvcheck.targets.vllm.release import KNOWN_RELEASES, Mode, resolve
from kvcheck.targets.vllm.target import VllmTarget

FOLDER = Path(__file__).resolve().parent
RUNS = FOLDER / "runs.json"
DIGESTS = FOLDER / "digests.json"
UNSUPPORTED = "unsupported"
"""Stands for the digest of a run whose layout the release refuses; the two modes must agree on that too."""
DIFFERENT = 4
"""The exit status of a difference."""

_ROOT = FOLDER.parents[2]
_CALL = "python -m tests.conformance.full.digests"


def read_runs(path: Path = RUNS) -> list[Run]:
    """The runs in a file."""
    return msgspec.json.decode(path.read_bytes(), type=list[Run])


def write_runs(path: Path, runs: list[Run]) -> None:
    """One run a line, for diffs."""
    path.write_bytes(b"[\n" + b",\n".join(msgspec.json.encode(run) for run in runs) + b"\n]\n")


def read_digests(path: Path = DIGESTS) -> dict[str, dict[str, str]]:
    """The stored digests: by release, then by index of the run."""
    return msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, str]]) if path.exists() else {}


def compute(version: str, mode: Mode, runs: Path = RUNS) -> dict[str, str]:
    """The digests of one release, from a fresh process: only one release fits into a process.

    Raises:
        TargetError: the release cannot be loaded.
    """
    child = _child(version, mode, runs)
    result = subprocess.run(child, env=_environment(), capture_output=True, text=True, check=False)
    if result.returncode != 0:
        complaint = (result.stderr.strip().splitlines() or ["no word of it"])[-1]
        raise TargetError(f"{version} cannot be loaded in {mode} mode: {complaint}")
    return cast("dict[str, str]", json.loads(result.stdout.splitlines()[-1]))


def difference(version: str, mode: Mode, found: Mapping[str, str], stored: Mapping[str, str]) -> str:
    """Where a release differs from what is stored, and how to look into it; empty if it does not."""
    indices = sorted({*found, *stored}, key=int)
    different = [i for i in indices if found.get(i) != stored.get(i)]
    if not different:
        return ""
    first = different[0]
    look = f"{_CALL} --release {version} --show {first}"
    return (
        f"vllm=={version}: {len(different)} of {len(indices)} runs differ, the first is run {first}:\n"
        f"  stored: {stored.get(first, 'nothing')}\n"
        f"  {mode + ':':7} {found.get(first, 'nothing')}\n"
        f"All runs that differ: {', '.join(different)}. To see what differs, one observation a line, compare\n"
        f"  {look} --mode light\n"
        f"  {look} --mode full   (in an environment with the extra vllm)\n"
        f"If these are equal, what kvcheck observes has changed: make the digests anew with\n"
        f"  {_CALL} --mode full --write"
    )


# ---- in the process that holds the release ---------------------------------------------------------------------------


def digest(target: Target, run: Run) -> str:
    """One sha256 over all observations of a run; in plain words, why there are none."""
    try:
        return hashlib.sha256(b"\n".join(_shown(target, run))).hexdigest()
    except UnsupportedLayout:
        return UNSUPPORTED
    except HarnessError as error:
        return f"harness: {error}"


def _shown(target: Target, run: Run) -> Iterator[bytes]:
    """The observations as canonical JSON. The run goes on after violations: nothing is judged here."""
    session = target.start(run.layout, run.level)
    for moment in Execution(session, run.layout).run(run):
        yield msgspec.json.encode(_without_place(moment.observation), order="deterministic")


def _without_place(seen: Observation) -> Observation:
    """File and line of a failure say nothing that type, function and stack do not."""
    if seen.failure is None:
        return seen
    return msgspec.structs.replace(seen, failure=msgspec.structs.replace(seen.failure, file="", line=0))


def _serve(version: str, mode: Mode, runs: Path, show: int | None) -> None:
    target = VllmTarget(resolve(f"vllm=={version}", mode=mode))
    every = read_runs(runs)
    if show is not None:
        for line in _shown(target, every[show]):
            print(line.decode())
        return
    print(json.dumps({str(i): digest(target, run) for i, run in enumerate(every)}))


def _child(version: str, mode: Mode, runs: Path, show: int | None = None) -> list[str]:
    # by its path: an installed package may be called `tests` too
    line = [sys.executable, __file__, "--here", "--mode", mode, "--release", version, "--runs", str(runs)]
    return line if show is None else [*line, "--show", str(show)]


def _environment() -> dict[str, str]:
    """Sets are ordered alike in all processes, and this checkout of kvcheck is the one that runs."""
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(paths)}


# ---- command line ----------------------------------------------------------------------------------------------------


def main() -> int:
    """Compute, then write or compare."""
    options = _options()
    if options.here:
        _serve(options.release[0], options.mode, options.runs, options.show)
        return 0
    if options.show is not None:
        child = _child(options.release[0], options.mode, options.runs, options.show)
        return subprocess.run(child, env=_environment(), check=False).returncode
    try:
        return _written(options) if options.write else _compared(options)
    except TargetError as error:
        print(f"digests: {error}", file=sys.stderr)
        return 3


def _written(options: argparse.Namespace) -> int:
    stored = read_digests(options.digests)
    for version in options.release:
        stored[version] = compute(version, options.mode, options.runs)
        print(f"{version} {options.mode}: {_summary(stored[version])}", flush=True)
    options.digests.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return 0


def _compared(options: argparse.Namespace) -> int:
    stored = read_digests(options.digests)
    status = 0
    for version in options.release:
        found = compute(version, options.mode, options.runs)
        text = difference(version, options.mode, found, stored.get(version, {}))
        status = DIFFERENT if text else status
        print(text or f"{version} {options.mode}: {_summary(found)}, as stored", flush=True)
    return status


def _summary(digests: Mapping[str, str]) -> str:
    unsupported = sum(value == UNSUPPORTED for value in digests.values())
    return f"{len(digests)} runs, {unsupported} of them unsupported"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mode", required=True, choices=get_args(Mode))
    parser.add_argument("--release", action="append", choices=KNOWN_RELEASES, help="may be repeated; default: all")
    parser.add_argument("--write", action="store_true", help="store the digests instead of comparing them")
    parser.add_argument("--runs", type=Path, default=RUNS, help="another corpus")
    parser.add_argument("--digests", type=Path, default=DIGESTS, help="where its digests are stored")
    parser.add_argument("--show", type=int, metavar="RUN", help="print what one run shows, one observation a line")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # the process that loads the release
    options = parser.parse_args()
    if options.show is not None and len(options.release or ()) != 1:
        parser.error("--show needs one --release")
    options.release = options.release or list(KNOWN_RELEASES)
    return options


if __name__ == "__main__":
    sys.exit(main())
