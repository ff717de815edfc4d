"""Violations of a campaign, sorted by signature."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from kvcheck.engines.findings import Findings
from kvcheck.engines.shrink import complexity
from kvcheck.invariants.registry import Severity, Violation
from kvcheck.model.actions import Run
from kvcheck.model.observation import Trace

MOST_BUCKETS = 200

_RANK = {str(severity): rank for rank, severity in enumerate(Severity)}

MOST_LOST = 3
"""Runs of one bucket that are tried if none of them shows it again."""

State = Literal["found", "shrinking", "shrunk", "confirming", "shown", "shortening", "confirmed", "lost"]
_CONFIRMED = ("shown", "shortening", "confirmed")


class Bucket(msgspec.Struct, kw_only=True):
    """All that has one signature. ``run`` is the simplest known, ``original`` as it was found in run ``index``.

    ``origin``: where a run comes from that an earlier campaign has found; its index is None. ``known``: it is expected,
    and no failure of this campaign.

    State "lost": its run does not show it again; ``lost`` is how often that was so. Another run may, if it is not tried
    too often. State "shown": its run was replayed and shows it, but nobody has shrunk it for that.
    """

    signature: str
    violation: Violation
    run: Run
    original: Run
    index: int | None
    found_after: float
    file: Path
    origin: str = ""
    known: bool = False
    times: int = 1
    lost: int = 0
    state: State = "found"
    needs: tuple[str, ...] = ()
    trace: Trace | None = None

    @property
    def confirmed(self) -> bool:
        """Whether its run was replayed and showed it again."""
        return self.state in _CONFIRMED


class Buckets:
    """The buckets of one campaign, each kept on disk from the moment that it is found; several threads find.

    ``wanted``: whether a violation is worth the work of shrinking and replaying, and is what the campaign is about.
    ``known``: signatures of violations that are no failure.
    """

    def __init__(
        self,
        findings: Findings,
        wanted: Callable[[Violation], bool] | None = None,
        known: frozenset[str] = frozenset(),
    ) -> None:
        self.full = False
        self._wanted = wanted
        self._findings = findings
        self._known = known
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._by_signature: dict[str, Bucket] = {}

    def sort(self, violation: Violation, run: Run, index: int | None, **more: Any) -> None:
        """Put a violation where it belongs; until its bucket is worked on, the simplest run stands for it, or one that
        was replayed. ``more``: what else is known of a bucket that this run stands for."""
        with self._lock:
            bucket = self._by_signature.get(violation.signature)
            if bucket is not None:
                self._again(bucket, violation, run, index, more)
            elif len(self._by_signature) >= MOST_BUCKETS and not (self._wanted and self._wanted(violation)):
                self.full = True
            else:
                self._by_signature[violation.signature] = Bucket(
                    signature=violation.signature,
                    violation=violation,
                    run=run,
                    original=run,
                    index=index,
                    found_after=time.monotonic() - self._began,
                    file=self._findings.save(violation.signature, run, _traces(more)),
                    known=violation.signature in self._known,
                    **more,
                )

    def _again(
        self, bucket: Bucket, violation: Violation, run: Run, index: int | None, more: Mapping[str, Any]
    ) -> None:
        bucket.times += 1
        state: State = more.get("state", "found")
        if bucket.state == "lost":
            stands = state in _CONFIRMED or bucket.lost < MOST_LOST
        else:
            stands = bucket.state == "found" and (state in _CONFIRMED or complexity(run) < complexity(bucket.run))
        if stands:
            bucket.state, bucket.needs, bucket.trace = state, more.get("needs", ()), more.get("trace")
            bucket.run = bucket.original = run
            bucket.violation, bucket.index, bucket.origin = violation, index, more.get("origin", "")
            self._findings.save(violation.signature, run, _traces(more))

    def take(self, state: State, working: State) -> Bucket | None:
        """The worst bucket in a state, which becomes another one, so that only one thread works on it. What is known
        comes last."""
        with self._lock:
            there = [b for b in self._by_signature.values() if b.state == state and self._is_worth_work(b)]
            if not there:
                return None
            worst = min(there, key=lambda bucket: (bucket.known, _rank(bucket)))
            worst.state = working
            return worst

    def waiting(self) -> int:
        """How many are still to be shrunk."""
        with self._lock:
            return sum(b.state in ("found", "shown") and self._is_worth_work(b) for b in self._by_signature.values())

    def all(self) -> tuple[Bucket, ...]:
        """Those that are to be reported, worst first, and what is known after the others."""
        with self._lock:
            there = [bucket for bucket in self._by_signature.values() if bucket.state != "lost"]
        return tuple(sorted(there, key=lambda bucket: (bucket.known, _rank(bucket), bucket.found_after)))

    def any(self) -> bool:
        """Whether there is a failure that is wanted. Takes no lock: signal handlers ask too, which must not wait."""
        there = list(self._by_signature.values())
        return any(b.state != "lost" and not b.known and self._matters(b) for b in there)

    def _is_worth_work(self, bucket: Bucket) -> bool:
        """Nobody needs a shorter run of what is known and was replayed."""
        return self._matters(bucket) and not (bucket.known and bucket.state == "shown")

    def _matters(self, bucket: Bucket) -> bool:
        return self._wanted is None or self._wanted(bucket.violation)


def _traces(more: Mapping[str, Any]) -> tuple[Trace, ...]:
    return (more["trace"],) if more.get("trace") else ()


def _rank(bucket: Bucket) -> int:
    return _RANK.get(bucket.violation.severity, len(_RANK))
