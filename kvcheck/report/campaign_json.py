"""The JSON reports of `fuzz` and `replay`. Other tools read them: keys stay."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

import kvcheck
from kvcheck.engines.campaign import Bucket, CampaignResult, Undetermined
from kvcheck.files import versioned
from kvcheck.invariants.registry import Violation
from kvcheck.model.actions import Run
from kvcheck.model.observation import TargetInfo
from kvcheck.report.account import replay_command


def campaign_report(result: CampaignResult) -> dict[str, Any]:
    """The report of a campaign."""
    spec = result.plan.spec
    return {
        **core(
            verdict=result.verdict,
            spec=spec,
            info=result.info,
            seed=result.plan.seed,
            runs=result.runs,
            actions=result.actions,
            seconds=result.seconds,
            interrupted=result.interrupted,
            violations=[_bucket(bucket, spec) for bucket in result.buckets],
            undetermined=undetermined(result.undetermined),
            witnesses=result.witnesses,
            actions_by_kind=result.actions_by_kind,
        ),
        "skipped": result.skipped,
        "jobs": result.plan.jobs,
        "layout": None if result.plan.layout is None else versioned(result.plan.layout),
        "out": str(result.plan.out),
    }


def core(
    *,
    verdict: str,
    spec: str,
    info: TargetInfo,
    seed: int | None,
    runs: int,
    actions: int,
    seconds: float,
    interrupted: bool,
    violations: list[dict[str, Any]],
    undetermined: list[dict[str, Any]],
    witnesses: dict[str, int],
    actions_by_kind: dict[str, int],
) -> dict[str, Any]:
    """What all such reports have."""
    return {
        "version": 1,
        "kvcheck": kvcheck.__version__,
        "verdict": verdict,
        "target": spec,
        "target_resolved": msgspec.to_builtins(msgspec.structs.asdict(info)),
        "seed": seed,
        "runs": runs,
        "actions": actions,
        "seconds": round(seconds, 3),
        "interrupted": interrupted,
        "violations": violations,
        "undetermined": undetermined,
        "witnesses": witnesses,
        "actions_by_kind": actions_by_kind,
    }


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
        "reproduce": replay_command(file, spec),
        "action": violation.index,
    }


def undetermined(items: Iterable[Undetermined]) -> list[dict[str, Any]]:
    """All that nothing can be said about."""
    return [{"code": item.code, "message": item.message, "times": item.times} for item in items]


def _bucket(bucket: Bucket, spec: str) -> dict[str, Any]:
    return {
        **violation_entry(bucket.violation, bucket.run, bucket.file, spec, bucket.needs, bucket.times),
        "found_after": round(bucket.found_after, 3),
        "found_in_run": bucket.index,
        "confirmed": bucket.state == "confirmed",
    }
