"""Failures that are not new: those of earlier campaigns, and those that are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvcheck.engines.baseline import CLEAN_CAMPAIGNS, Baseline, Known, Standing, State
from kvcheck.engines.campaign import CampaignResult
from kvcheck.engines.earlier import Outcome, Replayed
from kvcheck.report.console import Screen

MOST_GONE = 10
"""Lines about failures that are no longer shown."""


# ---- earlier failures ----------------------------------------------------------------------------------------------


def show_earlier(screen: Screen, result: CampaignResult) -> None:
    """What came of the failures of earlier campaigns: those that no longer show are named."""
    if not result.earlier:
        return
    screen.line()
    screen.line(f"earlier failures: {earlier_text(result.earlier)}")
    missed = gone(result.earlier)
    for one in missed[:MOST_GONE]:
        screen.line(f"gone: {one.earlier.signature or 'any violation'} ({one.earlier.origin})")
    if len(missed) > MOST_GONE:
        screen.line(f"gone: {len(missed) - MOST_GONE} more, see --json")


def earlier_text(earlier: Sequence[Replayed]) -> str:
    """How many there are of each outcome."""
    counts = Counter(one.outcome for one in earlier)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])


def gone(earlier: Sequence[Replayed]) -> list[Replayed]:
    """Those that this very target has shown and shows no more."""
    return [one for one in earlier if one.outcome is Outcome.GONE]


def earlier_entries(earlier: Sequence[Replayed]) -> list[dict[str, Any]]:
    """For the JSON report."""
    return [
        {"signature": one.earlier.signature, "origin": one.earlier.origin, "outcome": str(one.outcome)}
        for one in earlier
    ]


# ---- known failures ------------------------------------------------------------------------------------------------


def show_known(screen: Screen, standings: Sequence[Standing], file: str) -> None:
    """What the campaign says of each known failure."""
    if standings:
        screen.line()
    for one in standings:
        style = "yellow" if one.state in (State.EXPIRED, State.BACK) else "green" if one.state is State.FIXED else ""
        screen.line(f"{one.state}: {one.entry.signature}: {standing_text(one, file)}", style)


def standing_text(one: Standing, file: str) -> str:
    """What an entry's state means."""
    entry = one.entry
    match one.state:
        case State.KNOWN:
            return known_text(entry)
        case State.EXPIRED:
            return f"was excused until {entry.expires} ({_why(entry)})"
        case State.BACK:
            return f"had stayed away from {entry.clean_campaigns} campaigns, and is excused no more ({_why(entry)})"
        case State.AWAY:
            this = f"; this one does not count: {one.uncounted}" if one.uncounted else ""
            return f"not seen; {one.clean_campaigns} of {CLEAN_CAMPAIGNS} clean campaigns{this}"
        case State.FIXED:
            return f"not seen in {one.clean_campaigns} clean campaigns: take it out of {file}"


def known_text(entry: Known) -> str:
    """Why a failure is excused, and for how long."""
    return f"{_why(entry)}, excused until {entry.expires}"


def _why(entry: Known) -> str:
    return f"{entry.reason}, {entry.issue}" if entry.issue else entry.reason


def update_text(file: str, before: Baseline, after: Baseline, result: CampaignResult) -> str:
    """What an update did to the file."""
    known = {entry.signature for entry in after.known}
    missing = sum(bucket.signature not in known for bucket in result.buckets)
    added = len(after.known) - len(before.known)
    text = f"{file}: entries added: {added}, taken out: 0, in all: {len(after.known)}"
    return text + f"; not added, for want of time to shrink and replay: {missing}" if missing else text


def baseline_entry(standings: Sequence[Standing], file: str, updated: bool) -> dict[str, Any]:
    """For the JSON report: the signatures of each state."""
    by_state = {str(state): [one.entry.signature for one in standings if one.state is state] for state in State}
    counts = {one.entry.signature: one.clean_campaigns for one in standings}
    return {"file": file, "updated": updated, **by_state, "clean_campaigns": counts}
