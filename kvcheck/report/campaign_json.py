"""The JSON reports of `fuzz` and `replay`. Other tools read them: keys stay."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

import kvcheck
from kvcheck.engines.buckets import Bucket
from kvcheck.engines.campaign import CampaignResult
from kvcheck.engines.tally import Undetermined
from kvcheck.files import versioned
from kvcheck.invariants.registry import Violation
from kvcheck.model.actions import Run
from kvcheck.model.observation import TargetInfo
from kvcheck.report.account import how_to_reproduce
from kvcheck.report.known import earlier_entries


class Core(msgspec.Struct, frozen=True, kw_only=True):
    """What all such reports have. ``target``: what was asked for."""

    version: int = 1
    kvcheck: str = kvcheck.__version__
    verdict: str
    target: str
    target_resolved: dict[str, str]
    seed: int | None = None
    runs: int = 1
    actions: int
    seconds: float
    interrupted: bool
    violations: list[dict[str, Any]]
    undetermined: list[dict[str, Any]]
    witnesses: dict[str, int]
    actions_by_kind: dict[str, int]

    def report(self, **more: Any) -> dict[str, Any]:
        """As plain data, and more."""
        return {**msgspec.structs.asdict(self), **more}


def campaign_report(result: CampaignResult, baseline: dict[str, Any] | None = None) -> dict[str, Any]:
    """The report of a campaign. ``baseline``: what it says of known failures, if there are any."""
    plan = result.plan
    return Core(
        verdict=result.verdict,
        target=plan.spec,
        target_resolved=resolved(result.info),
        seed=plan.seed,
        runs=result.runs,
        actions=result.actions,
        seconds=round(result.seconds, 3),
        interrupted=result.interrupted,
        violations=[_bucket(bucket, plan.spec) for bucket in result.buckets],
        undetermined=undetermined(result.undetermined),
        witnesses=result.witnesses,
        actions_by_kind=result.actions_by_kind,
    ).report(
        skipped=result.skipped,
        jobs=plan.jobs,
        shard="/".join(map(str, plan.shard)),
        layout=None if plan.layout is None else versioned(plan.layout),
        out=str(plan.out),
        earlier=earlier_entries(result.earlier),
        baseline=baseline,
    )


def resolved(info: TargetInfo) -> dict[str, str]:
    """What a target turned out to be."""
    return msgspec.structs.asdict(info)


def violation_entry(
    violation: Violation, run: Run, file: Path, spec: str, needs: Iterable[str] = (), times: int = 1
) -> dict[str, Any]:
    """One violation."""
    return {
        "signature": violation.signature,
        "invariant": violation.invariant,
        "severity": violation.severity,
        "message": violation.message,
        "layout": versioned(run.layout),
        "needs": list(needs),
        "run": str(file),
        "actions": len(run.actions),
        "times": times,
        "known": False,
        "reproduce": how_to_reproduce(file, spec),
        "action": violation.index,
    }


def undetermined(items: Iterable[Undetermined]) -> list[dict[str, Any]]:
    """All that nothing can be said about."""
    return [{"code": item.code, "message": item.message, "times": item.times} for item in items]


def _bucket(bucket: Bucket, spec: str) -> dict[str, Any]:
    return {
        **violation_entry(bucket.violation, bucket.run, bucket.file, spec, bucket.needs, bucket.times),
        "known": bucket.known,
        "origin": bucket.origin,
        "found_after": round(bucket.found_after, 3),
        "found_in_run": bucket.index,
        "confirmed": bucket.confirmed,
    }
