"""Progress: while work remains and nothing outside is awaited, some pass gets on (R8.4.8, R8.6.1)."""

from __future__ import annotations

from collections.abc import Iterator

from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.moment import Moment
from kvcheck.invariants.registry import Finding, Severity, invariant
from kvcheck.model.actions import Pause, Schedule
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
    "progress.livelock",
    "some request gets further than it ever was, within a bounded number of passes",
    Severity.STALL,
    "R8.6.1 #25538 #21793",
    kind="eventually",
)
def livelock(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """Requests that are preempted and start again for ever run tokens and get nowhere."""
    if not isinstance(moment.action, Schedule) or moment.view is None or moment.observation.plan is None:
        return
    advanced = False
    for label, r in moment.view.requests.items():
        if r.computed > ledger.high_water.get(label, -1):
            ledger.high_water[label] = r.computed
            advanced = True
    gone = ledger.high_water.keys() - moment.view.requests.keys()
    for label in gone:
        del ledger.high_water[label]
        advanced = True
    waits = ledger.paused or not moment.view.requests or _outside_is_awaited(moment, moment.view)
    ledger.passes_without_progress = 0 if advanced or waits else ledger.passes_without_progress + 1
    limit = 2 * ledger.layout.max_model_len + 16
    if ledger.passes_without_progress > limit:
        yield Finding(f"no request got further in {limit} passes")
