"""The system's own exceptions and assertions."""

from __future__ import annotations

from collections.abc import Iterator

from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.moment import Moment
from kvcheck.invariants.registry import Finding, Severity, invariant
from kvcheck.model.actions import Reset


@invariant(
    "system.exception",
    "the server raises nothing, whatever valid thing happens to it",
    Severity.CRASH,
    "R8.1 R3.5 R10.1",
)
def exception(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """An exception in a scheduling pass or in the processing of an output ends the engine."""
    failure = moment.observation.failure
    if failure is not None:
        yield Finding(
            str(failure),
            detail=f"{failure.type} {failure.function}",
        )


@invariant("system.hang", "every call into the server returns", Severity.STALL, "R8.6.1", kind="watched")
def hang(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """Found by whoever watches the process: what hangs shows no moment."""
    return iter(())


@invariant(
    "system.reset",
    "a reset that preempts running requests is done, unless something outside holds blocks",
    Severity.BOOKKEEPING,
    "R8.7 #34382 #28827",
)
def reset(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """The server says that it declines; content of old weights stays in the cache."""
    before = moment.before
    if not isinstance(moment.action, Reset) or not moment.action.running or not moment.observation.refused:
        return
    if before is None or moment.pending_loads or moment.pending_stores or moment.in_flight or moment.unreported:
        return
    running = {label for label, request in before.requests.items() if request.status == "running"}
    if before.deferred or any(any(table) for label, table in before.tables.items() if label not in running):
        return  # who holds blocks without running cannot be preempted
    if moment.view is not None and moment.view.holders:
        return
    yield Finding("the server declined to reset its prefix cache although it could preempt everybody")
