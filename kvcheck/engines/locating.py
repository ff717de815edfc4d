"""Where in the server's source a violation comes from, for reports that point there.

A crash: where it was raised. A hang: the function that does not end. A claim about one event, such as a lookup: the
call that did it. A block that holds something else than its key says, or than a request expects: the call that
registered it, or, if it has no key, that last took or touched it. Anything else: what the server did last.
"""

from __future__ import annotations

from kvcheck.engines.execution import Execution
from kvcheck.engines.judging import Watch
from kvcheck.invariants.moment import Moment
from kvcheck.invariants.registry import Violation
from kvcheck.model.actions import Run
from kvcheck.model.observation import Event, Register, Take, Touch
from kvcheck.targets.base import Target, UnsupportedLayout
from kvcheck.targets.failures import HarnessError
from kvcheck.targets.places import Place, PlacedLog, Placing, place_of_failure


def located(target: Target, run: Run, signature: str) -> Place | None:
    """Where a violation comes from; None: the run does not show it, or the target cannot tell."""
    try:
        session = target.start(run.layout, run.level)
    except UnsupportedLayout:
        return None
    log = session.place_events() if isinstance(session, Placing) else PlacedLog()
    watch = Watch(session, Execution(session, run.layout, run.level), situations=())
    try:
        for action in run.actions:
            moment = watch.apply(action)
            violation = watch.violations.get(signature)
            if violation is not None:
                return _place(watch, moment, violation, log)
    except HarnessError:
        return None
    return None


def _place(watch: Watch, moment: Moment, violation: Violation, log: PlacedLog) -> Place | None:
    failure = moment.observation.failure
    if failure is not None and violation.invariant == "system.exception":
        return place_of_failure(failure)
    cause = watch.judge.causes.get(violation.signature)
    if cause is not None and (place := log.place_of(cause)) is not None:
        return place
    blocks = {(read.group, read.block) for read in moment.wrong}
    about = [place for event, place in log.places if _is_about(event, blocks)]
    placed = about or [place for _, place in log.places]
    return placed[-1] if placed else None


def _is_about(event: Event, blocks: set[tuple[int, int]]) -> bool:
    """Whether an event registered, took or touched one of these blocks (with their groups)."""
    if isinstance(event, Register):
        return (event.group, event.block) in blocks
    return isinstance(event, Take | Touch) and any((event.group, block) in blocks for block in event.blocks)
