"""A campaign as SARIF 2.1.0: each violation at the line of the server's source that it comes from.

A known failure is suppressed, with its reason. What nothing can be said about makes the invocation unsuccessful.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import kvcheck
from kvcheck.engines.baseline import Known, Standing
from kvcheck.engines.buckets import Bucket
from kvcheck.engines.campaign import CampaignResult
from kvcheck.engines.tally import Undetermined
from kvcheck.invariants.registry import MEANING, Severity, all_invariants
from kvcheck.report.account import how_to_reproduce
from kvcheck.report.known import known_text
from kvcheck.targets.places import Place

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "%SRCROOT%"
"""What the paths are relative to: the folder that the job ran in, or the server's own tree."""
SOMEWHERE = "vllm/v1/core/sched/scheduler.py"
"""Where a violation is put of which nobody knows where it comes from: every step begins there."""
_LEVELS = {Severity.LEAK: "warning", Severity.LOST_REUSE: "warning"} | dict.fromkeys(
    (Severity.DRAFT_QUALITY, Severity.BOOKKEEPING), "note"
)
"""All others are errors."""


def sarif_report(
    result: CampaignResult, standings: Sequence[Standing], places: Mapping[str, Place | None]
) -> dict[str, Any]:
    """The whole log, with one run. ``places``: by signature, where a violation comes from."""
    rules = _rules()
    numbers = {rule["id"]: number for number, rule in enumerate(rules)}
    known = {one.entry.signature: one.entry for one in standings}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "kvcheck", "version": kvcheck.__version__, "rules": rules}},
                "originalUriBaseIds": {ROOT: {"description": {"text": "the root of the server's sources"}}},
                "invocations": [_invocation(result)],
                "columnKind": "unicodeCodePoints",
                "results": [
                    _result(bucket, result.plan.spec, numbers, known, places.get(bucket.signature))
                    for bucket in result.buckets
                ],
            }
        ],
    }


def _rules() -> list[dict[str, Any]]:
    return [_rule(one.id, one.claim, one.severity, one.rules) for one in all_invariants()]


def _rule(identifier: str, claim: str, severity: Severity, rules: Sequence[str]) -> dict[str, Any]:
    return {
        "id": identifier,
        "shortDescription": {"text": claim},
        "fullDescription": {"text": f"{claim} ({severity}: {MEANING[severity]})"},
        "defaultConfiguration": {"level": _level(severity)},
        "properties": {"tags": [str(severity)], "rules": list(rules)},
    }


def _level(severity: str) -> str:
    return _LEVELS.get(Severity(severity), "error")


def _result(
    bucket: Bucket, spec: str, numbers: Mapping[str, int], known: Mapping[str, Known], place: Place | None
) -> dict[str, Any]:
    violation = bucket.violation
    reproduce = how_to_reproduce(bucket.file, spec)
    found: dict[str, Any] = {
        "ruleId": violation.invariant,
        "ruleIndex": numbers[violation.invariant],
        "level": _level(violation.severity),
        "message": {"text": f"{violation.signature}: {violation.message}. To see it again: {reproduce}"},
        "locations": [_location(place, spec)],
        "partialFingerprints": {"kvcheckSignature/v1": violation.signature},
        "properties": {
            "signature": violation.signature,
            "severity": violation.severity,
            "needs": list(bucket.needs),
            "actions": len(bucket.run.actions),
            "times": bucket.times,
            "run": str(bucket.file),
            "reproduce": reproduce,
        },
    }
    if bucket.known:
        why = known_text(known[violation.signature])
        found["suppressions"] = [{"kind": "external", "status": "accepted", "justification": why}]
    return found


def _location(place: Place | None, spec: str) -> dict[str, Any]:
    place = place or Place(SOMEWHERE, 0, "")
    physical = {
        "artifactLocation": {"uri": quote(os.fsencode(f"{_folder(spec)}{place.file}")), "uriBaseId": ROOT},
        "region": {"startLine": max(1, place.line)},
    }
    location: dict[str, Any] = {"physicalLocation": physical}
    if place.function:
        location["logicalLocations"] = [{"name": place.function, "kind": "function"}]
    return location


def _folder(spec: str) -> str:
    """The way from here to the server's tree, if it lies below; that is where a job has its checkout."""
    if not spec.startswith("path:"):
        return ""
    root, here = Path(spec.removeprefix("path:")).expanduser().resolve(), Path.cwd()
    return f"{root.relative_to(here).as_posix()}/" if here in root.parents else ""


def _invocation(result: CampaignResult) -> dict[str, Any]:
    return {
        "executionSuccessful": not result.undetermined,
        "toolExecutionNotifications": [_notification(item) for item in result.undetermined],
        "properties": {
            "verdict": result.verdict,
            "target": result.plan.spec,
            "seed": result.plan.seed,
            "runs": result.runs,
            "actions": result.actions,
        },
    }


def _notification(item: Undetermined) -> dict[str, Any]:
    return {
        "level": "error",
        "descriptor": {"id": item.code},
        "message": {"text": f"undetermined: {item.code}: {item.message}"},
    }
