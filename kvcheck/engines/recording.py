"""Recordings of what a campaign found, also of what it had no time to replay."""

from __future__ import annotations

from kvcheck.engines.campaign import CampaignResult
from kvcheck.engines.watched import HANG, Watched
from kvcheck.model.observation import Trace
from kvcheck.targets.errors import TargetError


def recordings(result: CampaignResult) -> dict[str, Trace]:
    """By signature. A violation that was not replayed is now; a hang has no end, and so no recording."""
    plan = result.plan
    watched = Watched(
        plan.spec, limits=plan.limits, loader=plan.loader, searcher=plan.searcher, expected=plan.info or result.info
    )
    found: dict[str, Trace] = {}
    try:
        for bucket in result.buckets:
            trace = bucket.trace
            if trace is None and not bucket.signature.startswith(HANG):
                trace = watched.judge(bucket.run, record=True).trace
            if trace is not None:
                found[bucket.signature] = trace
    except TargetError:
        return found  # the target is gone or was changed: what was recorded before is still right
    finally:
        watched.close()
    return found
