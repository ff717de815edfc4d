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
from kvcheck.engines.watched import Watched
from kvcheck.engines.workers import WorkerDied, WorkerHung
from kvcheck.invariants.registry import Violation
from kvcheck.model.actions import Run
from kvcheck.targets.reference.target import MODEL

SHRINK_SECONDS = 20.0


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


def score(faults: Sequence[str], seeds: Sequence[int], seconds: float, jobs: int, told: Told) -> list[Scored]:
    """Search for each fault with each seed, ``jobs`` at a time, each for at most ``seconds``. ``told`` hears of each
    search when it is over."""
    lock = threading.Lock()

    def one(fault: str, seed: int) -> Scored:
        scored = search_fault(fault, seed, seconds)
        with lock:
            told(scored)
        return scored

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        tasks = [pool.submit(one, fault, seed) for fault in faults for seed in seeds]
        try:
            return [task.result() for task in tasks]
        except BaseException:
            for task in tasks:
                task.cancel()
            raise


def search_fault(fault: str, seed: int, seconds: float) -> Scored:
    """Search for one fault in a worker process, and shrink what shows it."""
    watched = Watched(f"{MODEL}+{fault}")
    try:
        watched.start()
        return _search(watched, fault, seed, seconds)
    except (WorkerDied, WorkerHung) as error:
        return Scored(fault, seed, found=False, seconds=0.0, runs=0, undetermined=f"the worker was lost: {error}")
    finally:
        watched.close()


def _search(watched: Watched, fault: str, seed: int, seconds: float) -> Scored:
    began, runs, undetermined = time.monotonic(), 0, ""
    while time.monotonic() - began < seconds:
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
    shrunk = watched.shrink(run, violation.signature, SHRINK_SECONDS)
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
