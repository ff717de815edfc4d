"""What the target is asked after a campaign, for its reports: recordings of what was found, and where it comes from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kvcheck.engines.campaign import CampaignResult
from kvcheck.engines.watched import HANG, Stopped, Watched
from kvcheck.model.observation import Trace
from kvcheck.targets.errors import TargetError
from kvcheck.targets.places import Place

MOST_SECONDS = 10.0
"""How long each of these may take; what has not been answered by then stays open."""


def recordings(result: CampaignResult) -> dict[str, Trace]:
    """By signature. A violation that was not replayed is now; a hang has no end, and so no recording."""
    found = {bucket.signature: bucket.trace for bucket in result.buckets if bucket.trace is not None}
    with _asked(result) as watched:
        for bucket in result.buckets:
            if bucket.trace is None and not bucket.signature.startswith(HANG):
                trace = watched.judge(bucket.run, record=True).trace
                if trace is not None:
                    found[bucket.signature] = trace
    return found


def places(result: CampaignResult) -> dict[str, Place | None]:
    """Where in the server each violation comes from, by signature; each is replayed for that."""
    found: dict[str, Place | None] = {}
    with _asked(result) as watched:
        for bucket in result.buckets:
            found[bucket.signature] = watched.locate(bucket.run, bucket.signature)
    return found


@contextmanager
def _asked(result: CampaignResult) -> Iterator[Watched]:
    """The target, until the time is over. Whoever asks it then, or if it is gone or was changed, is at the end."""
    plan = result.plan
    watched = Watched(
        plan.spec, limits=plan.limits, loader=plan.loader, searcher=plan.searcher, expected=plan.info or result.info
    )
    timer = threading.Timer(MOST_SECONDS, watched.stop)
    timer.daemon = True
    timer.start()
    try:
        yield watched
    except (TargetError, Stopped):
        pass  # what was answered before is still right
    finally:
        timer.cancel()
        watched.close()
