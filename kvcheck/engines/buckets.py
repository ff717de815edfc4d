"""Violations of a campaign, sorted by signature."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

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

State = Literal["found", "shrinking", "shrunk", "confirming", "confirmed", "lost"]


class Bucket(msgspec.Struct, kw_only=True):
    """All that has one signature. ``run`` is the simplest known, ``original`` as it was found in run ``index``.

    State "lost": its run does not show it again; ``lost`` is how often that was so. Another run may, if it is not tried
    too often.
    """

    signature: str
    violation: Violation
    run: Run
    original: Run
    index: int
    found_after: float
    file: Path
    times: int = 1
    lost: int = 0
    state: State = "found"
    needs: tuple[str, ...] = ()
    trace: Trace | None = None


class Buckets:
    """The buckets of one campaign, each kept on disk from the moment that it is found; several threads find.

    ``wanted``: whether a violation is worth the work of shrinking and replaying, and is what the campaign is about.
    """

    def __init__(self, findings: Findings, wanted: Callable[[Violation], bool] | None = None) -> None:
        self.full = False
        self._wanted = wanted
        self._findings = findings
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._by_signature: dict[str, Bucket] = {}

    def sort(self, violation: Violation, run: Run, index: int) -> None:
        """Put a violation where it belongs; until its bucket is worked on, the simplest run stands for it."""
        with self._lock:
            bucket = self._by_signature.get(violation.signature)
            if bucket is not None:
                self._again(bucket, violation, run, index)
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
                    file=self._findings.save(violation.signature, run),
                )

    def _again(self, bucket: Bucket, violation: Violation, run: Run, index: int) -> None:
        bucket.times += 1
        again = bucket.state == "lost" and bucket.lost < MOST_LOST
        if again or (bucket.state == "found" and complexity(run) < complexity(bucket.run)):
            bucket.state, bucket.needs, bucket.trace = "found", (), None
            bucket.run = bucket.original = run
            bucket.violation, bucket.index = violation, index
            self._findings.save(violation.signature, run)

    def take(self, state: State, working: State) -> Bucket | None:
        """The worst bucket in a state, which becomes another one, so that only one thread works on it."""
        with self._lock:
            there = [b for b in self._by_signature.values() if b.state == state and self._matters(b)]
            if not there:
                return None
            worst = min(there, key=lambda bucket: _RANK.get(bucket.violation.severity, len(_RANK)))
            worst.state = working
            return worst

    def waiting(self) -> int:
        """How many are still to be shrunk."""
        with self._lock:
            return sum(b.state == "found" and self._matters(b) for b in self._by_signature.values())

    def all(self) -> tuple[Bucket, ...]:
        """Those that are to be reported, worst first."""
        with self._lock:
            there = [bucket for bucket in self._by_signature.values() if bucket.state != "lost"]
        return tuple(sorted(there, key=lambda b: (_RANK.get(b.violation.severity, len(_RANK)), b.found_after)))

    def any(self) -> bool:
        """Whether there is what is wanted. Takes no lock: signal handlers ask too, which must not wait for one."""
        return any(b.state != "lost" and self._matters(b) for b in list(self._by_signature.values()))

    def _matters(self, bucket: Bucket) -> bool:
        return self._wanted is None or self._wanted(bucket.violation)
