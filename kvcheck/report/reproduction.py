"""The end of a search for a reported crash: the run that shows it, or what was tried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kvcheck.engines.buckets import Bucket
from kvcheck.engines.campaign import CampaignResult
from kvcheck.engines.crash import Crash
from kvcheck.engines.shrink import feature_words
from kvcheck.engines.tally import Undetermined
from kvcheck.report.account import how_to_reproduce, show_account
from kvcheck.report.campaign_json import campaign_report, undetermined
from kvcheck.report.console import Screen
from kvcheck.report.describe import counted
from kvcheck.report.verdict import account_of, bound_text, show_undetermined, show_where_undetermined

MOST_OTHERS = 20


class Reproduction(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a search for a crash. ``remarks``: what was known to stand in its way."""

    crash: Crash
    result: CampaignResult
    remarks: tuple[str, ...] = ()

    @property
    def found(self) -> tuple[Bucket, ...]:
        """What was reported, the simplest run first."""
        there = [bucket for bucket in self.result.buckets if self.crash.is_shown_by(bucket.violation)]
        return tuple(sorted(there, key=lambda bucket: (not bucket.confirmed, len(bucket.run.actions))))

    @property
    def others(self) -> tuple[Bucket, ...]:
        """What else came up, worst first."""
        return tuple(bucket for bucket in self.result.buckets if not self.crash.is_shown_by(bucket.violation))

    @property
    def verdict(self) -> str:
        """Violated if the crash was shown; never passed: that it did not come up proves nothing."""
        return "violated" if self.found else "undetermined"


def show_reproduction(screen: Screen, reproduction: Reproduction) -> None:
    """Print it."""
    result = reproduction.result
    for number, bucket in enumerate(reproduction.found, 1):
        show_account(screen, account_of(bucket, result.plan.spec), number)
        if added := _added(bucket, result):
            screen.line(f"  {'unlike:':<12}{_unlike(added)}", "yellow")
    _show_others(screen, reproduction)
    screen.line()
    if not reproduction.found:
        _show_tried(screen, reproduction)
    bound = bound_text(result)
    screen.verdict(reproduction.verdict, f": {_meaning(reproduction)} ({bound})")


def _added(bucket: Bucket, result: CampaignResult) -> list[str]:
    """Features of the run's layout that the layout of the report does not have."""
    if result.plan.layout is None:
        return []
    given = feature_words(result.plan.layout)
    return [word for word in feature_words(bucket.run.layout) if word not in given]


def _unlike(added: list[str]) -> str:
    return f"the layout that was given, this run has {', '.join(added)}"


def _show_others(screen: Screen, reproduction: Reproduction) -> None:
    """What is not the reported crash, each with its run as it was found."""
    others, spec = reproduction.others, reproduction.result.plan.spec
    if not others:
        return
    screen.line()
    screen.line("on the way, and not what was reported (kvcheck shrink makes these runs short):")
    for bucket in others[:MOST_OTHERS]:
        bound = f"{counted(bucket.times, 'time')}, {counted(len(bucket.run.actions), 'action')}"
        told = f"{bucket.violation.severity}: {bucket.signature} ({bound})"
        screen.line(f"  {told}: {how_to_reproduce(bucket.file, spec)}")
        if bucket.needs:
            screen.line(f"    needs: {', '.join(bucket.needs)}")
        if added := _added(bucket, reproduction.result):
            screen.line(f"    unlike: {_unlike(added)}", "yellow")
    if len(others) > MOST_OTHERS:
        screen.line(f"  and {len(others) - MOST_OTHERS} more in {reproduction.result.plan.out}")


def _show_tried(screen: Screen, reproduction: Reproduction) -> None:
    """Where the search came to, and where it did not."""
    result = reproduction.result
    for text in _tried(result):
        screen.line(text)
    for text in reproduction.remarks:
        screen.line(text, "yellow")
    show_undetermined(screen, result.undetermined)
    show_where_undetermined(screen, result.plan.out)
    if reproduction.others:
        screen.line("a run ends with the first violation that makes the rest meaningless: one above may be the cause")


def _tried(result: CampaignResult) -> Iterator[str]:
    reached = [f"{name} {count}" for name, count in result.witnesses.items() if count]
    never = [name for name, count in result.witnesses.items() if not count]
    kinds = [f"{kind} {count}" for kind, count in result.actions_by_kind.items() if count]
    yield f"actions: {', '.join(kinds) or 'none'}"
    yield f"situations reached: {', '.join(reached) or 'none'}"
    yield f"situations never reached: {', '.join(never) or 'none'}"


def _meaning(reproduction: Reproduction) -> str:
    crash = reproduction.crash.text
    if not reproduction.found:
        return f"{crash}: not seen"
    best = reproduction.found[0]
    shown = "shown again in new processes" if best.confirmed else "no time to shrink and replay it"
    return f"{crash}: reproduced by {counted(len(best.run.actions), 'action')}, {shown}"


def reproduction_report(reproduction: Reproduction) -> dict[str, Any]:
    """The JSON report: that of a campaign, the reported crash in ``violations``, all else in ``others``."""
    report = campaign_report(reproduction.result)
    found = {bucket.signature for bucket in reproduction.found}
    entries = report["violations"]
    notes = [Undetermined(code="remark", message=text) for text in reproduction.remarks]
    if not found:
        notes.insert(0, Undetermined(code="not-reproduced", message=f"{reproduction.crash.text}: not seen"))
    return {
        **report,
        "verdict": reproduction.verdict,
        "crash": msgspec.structs.asdict(reproduction.crash),
        "topics": list(reproduction.result.plan.topics),
        "violations": [entry for entry in entries if entry["signature"] in found],
        "others": [entry for entry in entries if entry["signature"] not in found],
        "undetermined": undetermined([*notes, *reproduction.result.undetermined]),
    }
