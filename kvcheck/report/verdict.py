"""The end of a campaign: all accounts, and what the verdict means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvcheck.engines.buckets import Bucket
from kvcheck.engines.campaign import CampaignResult
from kvcheck.engines.findings import UNDETERMINED
from kvcheck.engines.judging import RunResult
from kvcheck.engines.tally import Undetermined
from kvcheck.report.account import Account, how_to_reproduce
from kvcheck.report.console import Screen
from kvcheck.report.describe import counted
from kvcheck.targets.reference.target import MODEL, is_model

MOST_UNDETERMINED = 20


def account_of(bucket: Bucket, spec: str) -> Account:
    """All that is known of a bucket."""
    remark = f"{counted(bucket.times, 'time')}, first after {bucket.found_after:.1f} s"
    if bucket.origin:
        remark += f", from {bucket.origin}"
    if not bucket.confirmed:
        remark += ", no time to shrink and replay it"
    elif bucket.state != "confirmed" and not bucket.known:
        remark += ", no time to shrink it further"
    return Account(
        violation=bucket.violation,
        run=bucket.run,
        reproduce=how_to_reproduce(bucket.file, spec),
        trace=bucket.trace,
        needs=bucket.needs,
        remark=remark,
    )


def show_verdict(screen: Screen, result: CampaignResult) -> None:
    """The last lines."""
    screen.line()
    reached = [f"{name} {count}" for name, count in result.witnesses.items() if count]
    screen.line(f"situations reached: {', '.join(reached) or 'none'}")
    show_undetermined(screen, result.undetermined)
    if result.buckets:
        screen.line(f"runs and recordings: {result.plan.out}")
    show_where_undetermined(screen, result.plan.out)
    if is_model(result.plan.spec):
        screen.line(about_model(result.plan.spec))
    screen.verdict(result.verdict, f": {meaning_text(result)} ({bound_text(result)})")


def bound_text(result: CampaignResult) -> str:
    """How much a campaign looked at."""
    which, shards = result.plan.shard
    shard = f" shard {which} of {shards}" if shards > 1 else ""
    parts = [counted(result.runs, "run"), counted(result.actions, "action"), f"seed {result.plan.seed}{shard}"]
    parts += [f"{result.seconds:.0f} s", *(["interrupted"] if result.interrupted else [])]
    return ", ".join(parts)


def show_undetermined(screen: Screen, items: Sequence[Undetermined]) -> None:
    """What nothing can be said about, one a line."""
    for item in items[:MOST_UNDETERMINED]:
        times = f" ({item.times} times)" if item.times > 1 else ""
        screen.line(f"undetermined: {item.code}: {item.message}{times}", "yellow")
    if len(items) > MOST_UNDETERMINED:
        screen.line(f"undetermined: {len(items) - MOST_UNDETERMINED} more, see --json", "yellow")


def show_where_undetermined(screen: Screen, out: Path) -> None:
    """Where the runs are of which nothing can be said, if there are any."""
    if (folder := out / UNDETERMINED).is_dir():
        screen.line(f"runs of which nothing can be said: {folder}")


def about_model(spec: str) -> str:
    """What a campaign on the model says, and what it does not."""
    if spec == MODEL:
        return (
            "the target is the reference model, what a server should do: nothing found means that the model, the "
            "shadow worker and the invariants agree; it says nothing about a server (--target vllm==0.33.0)"
        )
    return f"the target is the reference model with faults on ({spec}): what is found shows what these faults do"


def meaning_text(result: CampaignResult) -> str:
    """What a campaign's verdict means."""
    new, known = ("new ", f" ({len(result.known)} known)") if result.known else ("", "")
    if result.verdict == "violated":
        return _violations(len(result.failures)) + (f", and {len(result.known)} known" if result.known else "")
    if result.verdict == "undetermined":
        return f"no {new}violation was found{known}, but not everything was looked at"
    reached = sum(1 for count in result.witnesses.values() if count)
    return (
        f"no {new}violation{known} in these runs, which came to "
        f"{f'all {reached} situations' if reached > 1 else 'the one situation'} that the layouts allow; no proof"
    )


def _violations(count: int) -> str:
    return "1 violation" if count == 1 else f"{count} different violations"


def show_replay_verdict(
    screen: Screen, verdict: str, undetermined: tuple[str, str], result: RunResult, whole: int
) -> None:
    """The last line of a replay of a run with ``whole`` actions."""
    ended = "; what came after it was not run" if result.actions < whole else ""
    done = counted(result.actions, "action") if result.actions == whole else f"{result.actions} of {whole} actions"
    done += f", {result.skipped} of them without a subject"
    meaning = {
        "passed": "this run breaks no invariant",
        "violated": _violations(len(result.violations)) + ended,
        "undetermined": ": ".join(undetermined),
    }[verdict]
    screen.line()
    screen.verdict(verdict, f": {meaning} ({done})")
