"""How well the harness finds what is known: each fault of the model searched for as if nobody knew it.

A fault is found by the first violation that a random search on the model with this fault shows, because the model
without faults shows none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import msgspec

from kvcheck.engines.judging import SOFT
from kvcheck.engines.seeds import seed_of_run
from kvcheck.engines.watched import Stopped, Watched
from kvcheck.engines.worker_protocol import Shrunk
from kvcheck.engines.workers import WorkerDied, WorkerHung
from kvcheck.invariants.registry import Violation
from kvcheck.model.actions import Run
from kvcheck.targets.reference.target import MODEL

SHRINK_SECONDS = 40.0


class Scored(msgspec.Struct, frozen=True, omit_defaults=True):
    """One search for one fault. ``seconds`` and ``runs``: until it was found, or given up. ``actions``: of the shrunk
    ``run``; ``unshrunk``: of the run as found."""

    fault: str
    seed: int
    found: bool
    seconds: float
    runs: int
    invariant: str = ""
    signature: str = ""
    severity: str = ""
    actions: int = 0
    unshrunk: int = 0
    run: Run | None = None
    undetermined: str = ""


Told = Callable[[Scored], None]


class Scoring:
    """Searches for faults, ``jobs`` at a time, each for at most ``seconds``. ``told`` hears of each when it is over;
    those that ``interrupt`` cuts short are not counted."""

    def __init__(self, seconds: float, jobs: int, told: Told) -> None:
        self._seconds, self._jobs, self._told = seconds, jobs, told
        self._lock = threading.Lock()
        self._working: set[Watched] = set()
        self.interrupted = False

    def run(self, faults: Sequence[str], seeds: Sequence[int]) -> list[Scored]:
        """Search for each fault with each seed; what came of it, in this order."""
        with ThreadPoolExecutor(max_workers=self._jobs) as pool:
            tasks = [pool.submit(self._one, fault, seed) for fault in faults for seed in seeds]
            done = [task.result() for task in tasks]
        return [scored for scored in done if scored is not None]

    def interrupt(self) -> None:
        """End all searches now."""
        self.interrupted = True
        for watched in tuple(self._working):
            watched.stop()

    kill = interrupt

    @property
    def found_something(self) -> bool:
        """A fault that is found is no violation."""
        return False

    def _one(self, fault: str, seed: int) -> Scored | None:
        watched = Watched(f"{MODEL}+{fault}")
        self._working.add(watched)
        if self.interrupted:  # looked at only now: `interrupt` stops what is working already
            watched.stop()
        try:
            scored = search_fault(watched, fault, seed, self._seconds)
        except Stopped:
            return None
        finally:
            self._working.discard(watched)
        if watched.stopped and not scored.found:
            return None
        with self._lock:
            self._told(scored)
        return scored


def search_fault(watched: Watched, fault: str, seed: int, seconds: float) -> Scored:
    """Search for one fault in a worker process that is not started yet, and shrink what shows it."""
    try:
        watched.start()
        return _search(watched, fault, seed, seconds)
    except (WorkerDied, WorkerHung) as error:
        return Scored(fault, seed, found=False, seconds=0.0, runs=0, undetermined=f"the worker was lost: {error}")
    finally:
        watched.close()


def _search(watched: Watched, fault: str, seed: int, seconds: float) -> Scored:
    began, runs, undetermined = time.monotonic(), 0, ""
    while time.monotonic() - began < seconds and not watched.stopped:
        result = watched.search(seed_of_run(seed, runs))
        runs += 1
        undetermined = undetermined or result.undetermined
        if result.violations:
            took = time.monotonic() - began
            return _shrunk(watched, fault, seed, took, runs, worst(result.violations), result.run)
    return Scored(fault, seed, found=False, seconds=time.monotonic() - began, runs=runs, undetermined=undetermined)


def worst(violations: Sequence[Violation]) -> Violation:
    """The violation to tell of: the first one that breaks the server, or else the first."""
    soft = {str(severity) for severity in SOFT}
    return next((violation for violation in violations if violation.severity not in soft), violations[0])


def _shrunk(
    watched: Watched, fault: str, seed: int, seconds: float, runs: int, violation: Violation, run: Run
) -> Scored:
    try:
        shrunk = watched.shrink(run, violation.signature, SHRINK_SECONDS)
    except Stopped:  # what was found is not lost
        shrunk = Shrunk(run)
    return Scored(
        fault,
        seed,
        found=True,
        seconds=seconds,
        runs=runs,
        invariant=violation.invariant,
        signature=violation.signature,
        severity=violation.severity,
        actions=len(shrunk.run.actions),
        unshrunk=len(run.actions),
        run=shrunk.run,
    )


class Summary(msgspec.Struct, frozen=True):
    """All searches for one fault.

    ``seconds``: the median of all searches, where one that found nothing counts as longer than all others; None if
    most found nothing. ``runs``, ``actions``: medians of those that found it. ``shortest``: the shortest shrunk run.
    """

    fault: str
    searches: int
    found: int
    seconds: float | None
    runs: float | None
    actions: float | None
    invariants: tuple[str, ...]
    shortest: Scored | None


def summaries(scored: Sequence[Scored]) -> list[Summary]:
    """One line a fault, in the order of the searches."""
    return [
        _summary(fault, [s for s in scored if s.fault == fault]) for fault in dict.fromkeys(s.fault for s in scored)
    ]


def _summary(fault: str, searches: list[Scored]) -> Summary:
    found = [one for one in searches if one.found]
    most_found = 2 * len(found) > len(searches)
    seconds = [one.seconds if one.found else float("inf") for one in searches]
    return Summary(
        fault=fault,
        searches=len(searches),
        found=len(found),
        seconds=median(seconds) if most_found else None,
        runs=median(one.runs for one in found) if found else None,
        actions=median(one.actions for one in found) if found else None,
        invariants=tuple(dict.fromkeys(one.invariant for one in found)),
        shortest=min(found, key=lambda one: one.actions, default=None),
    )
