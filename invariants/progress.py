"""Progress: while work remains and nothing outside is awaited, some pass gets on (R8.4.8, R8.6.1)."""

from __future__ import annotations

from collections.abc import Iterator

from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.moment import Moment
from kvcheck.invariants.registry import Finding, Severity, invariant
from kvcheck.model.actions import Complete, Pause, Schedule, Transfer
from kvcheck.model.observation import Asked, CacheView

FROZEN_PASSES = 3


def _outside_is_awaited(moment: Moment, view: CacheView) -> bool:
    later = any(isinstance(e, Asked) and e.external is None for e in moment.observation.log)
    waits = moment.pending_loads or moment.pending_stores or moment.unreported or moment.in_flight > 1
    return later or bool(waits) or any(r.status in ("idle", "held") for r in view.requests.values())


@invariant(
    "progress.frozen",
    "a pass that runs nothing and changes nothing is not repeated while work remains",
    Severity.STALL,
    "R8.4.8 R8.6.1 #40707 #39734",
    kind="eventually",
)
def frozen(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """The scheduler is deterministic: if nothing changed, nothing ever will."""
    if isinstance(moment.action, Pause) and not moment.observation.skipped:
        ledger.paused = moment.action.what != "none"
    if not isinstance(moment.action, Schedule) or moment.observation.plan is None:
        return
    view, plan = moment.view, moment.observation.plan
    if view is None:
        return
    same = moment.before is not None and view == moment.before
    stuck = not plan.requests and same and bool(view.requests) and not ledger.paused
    ledger.frozen_passes = ledger.frozen_passes + 1 if stuck and not _outside_is_awaited(moment, view) else 0
    if ledger.frozen_passes >= FROZEN_PASSES:
        unfinished = [label for label, r in view.requests.items() if r.status not in ("idle", "held")]
        statuses = sorted({view.requests[label].status for label in unfinished})
        yield Finding(
            f"{len(unfinished)} requests wait ({', '.join(unfinished[:4])}), {len(view.free)} blocks are free, and "
            "passes run nothing",
            detail="+".join(statuses),
        )


@invariant(
    "progress.alone",
    "a request that holds blocks and no other does is not preempted",
    Severity.STALL,
    "R8.6 R8.6.1",
)
def alone(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """The pool has room for one request of the maximum length. One that is refused a step gives everything back, and
    comes to the same step again. A step in flight may have to end first, for what it reads is not given up before."""
    before, plan = moment.before, moment.observation.plan
    if before is None or plan is None or before.holders or before.deferred:
        return
    holding = [label for label, tables in before.tables.items() if any(map(any, tables))]
    if len(holding) != 1 or holding != list(plan.preempted):
        return
    request = before.requests.get(holding[0])
    if request is not None and not request.in_flight:
        yield Finding(
            f"{holding[0]} has {request.computed} tokens and is preempted for want of blocks, of which "
            f"{len(before.free)} are free and no other request holds any"
        )


@invariant(
    "progress.livelock",
    "some request gets further than it ever was, within a bounded number of passes",
    Severity.STALL,
    "R8.6.1 #25538 #21793",
    kind="eventually",
)
def livelock(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """Requests that are preempted and start again for ever run tokens and get nowhere.

    A pass that waits for outside does not count, unless a load has come since the last one: that was awaited. Loads
    that fail may do so for ever.
    """
    if moment.observation.skipped:
        return
    if not isinstance(moment.action, Schedule | Complete | Transfer):
        ledger.passes_without_progress = 0
    if isinstance(moment.action, Transfer) and moment.action.what == "load":
        ledger.load_came = moment.action.label not in ledger.failed_loads
    if not isinstance(moment.action, Schedule) or moment.view is None or moment.observation.plan is None:
        return
    if ledger.note_progress(moment.view) or ledger.paused or not moment.view.requests:
        ledger.passes_without_progress = 0
    elif ledger.load_came or not _outside_is_awaited(moment, moment.view):
        ledger.passes_without_progress += 1
    ledger.load_came = False
    limit = 2 * ledger.layout.max_model_len + 16
    if ledger.passes_without_progress > limit and not moment.unreported:
        yield Finding(f"no request got further in {limit} passes")
