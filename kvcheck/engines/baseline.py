"""Known failures: a file of signatures, each with a reason, an issue, and the last day on which it is excused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from pathlib import Path

import msgspec

from kvcheck.files import VERSION, InputError, read_as, write_json
from kvcheck.invariants.registry import all_invariants
from kvcheck.model.actions import ACTION_KINDS

CLEAN_CAMPAIGNS = 3
"""How many campaigns a failure must stay away from to be called fixed."""
GRACE = timedelta(days=30)
"""How long a failure is excused that an update has put into the file, until somebody says why."""


class Known(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A known failure. ``expires``: the last day on which it is excused. ``clean_campaigns``: how many campaigns in a
    row it has stayed away from, as far as they have updated the file."""

    signature: str
    reason: str
    issue: str = ""
    expires: date
    clean_campaigns: int = 0


class Baseline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file."""

    version: int = VERSION
    known: tuple[Known, ...] = ()


class _File(Baseline, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As it is read: who writes one by hand must say the version too."""

    version: int


class State(StrEnum):
    """What a campaign says of a known failure.

    KNOWN: it was there, and is excused. EXPIRED: it was there, and is excused no more. BACK: it was called fixed, and
    was there. AWAY: it was not there. FIXED: it was not there, in this campaign and in enough others.
    """

    KNOWN = "known"
    EXPIRED = "expired"
    BACK = "back"
    AWAY = "away"
    FIXED = "fixed"


class Standing(msgspec.Struct, frozen=True):
    """A known failure after a campaign; ``clean_campaigns`` counts this one. ``uncounted``: if it was not shown, why
    this campaign counts for nothing."""

    entry: Known
    state: State
    clean_campaigns: int
    uncounted: str = ""


def today() -> date:
    """The day, the same everywhere."""
    return datetime.now(UTC).date()


def read_baseline(file: Path, may_be_missing: bool = False) -> Baseline:
    """The file's content; of a file that is not there, if it need not be, nothing.

    Raises:
        InputError: it cannot be read.
    """
    if not file.exists():
        if may_be_missing:
            return Baseline()
        raise InputError(f"{file}: no such file; --update-baseline begins one")
    try:
        baseline = Baseline(known=read_as(file, _File).known)
    except InputError as error:
        raise InputError(str(error).replace("Invalid RFC3339 encoded date", "a day is written YYYY-MM-DD")) from error
    claims = {invariant.id for invariant in all_invariants()}
    signatures = [entry.signature for entry in baseline.known]
    for entry in baseline.known:
        if signatures.count(entry.signature) > 1:
            raise InputError(f"{file}: {entry.signature} is in it twice")
        claim, *words = entry.signature.split() or [""]
        if claim not in claims:
            raise InputError(
                f"{file}: {entry.signature!r} begins with no claim that is checked (see kvcheck invariants)"
            )
        if entry.signature != " ".join([claim, *words]) or not _is_whole(claim, words):
            raise InputError(
                f"{file}: {entry.signature!r} is no whole signature, and excuses nothing: copy it from a report"
            )
        if not entry.reason.strip():
            raise InputError(f"{file}: {entry.signature} has no reason")
        if entry.clean_campaigns < 0:
            raise InputError(f"{file}: {entry.signature} has fewer than 0 clean campaigns")
    return baseline


def _is_whole(claim: str, words: Sequence[str]) -> bool:
    """Whether a signature can be one of this claim: it ends with the kind of action; what the server raises, or hangs
    in, with a function."""
    return bool(words) and (claim.startswith("system.") or words[-1] in ACTION_KINDS)


def excused(baseline: Baseline, day: date) -> frozenset[str]:
    """The signatures that are no failure on this day."""
    return frozenset(
        entry.signature for entry in baseline.known if day <= entry.expires and entry.clean_campaigns < CLEAN_CAMPAIGNS
    )


def standings(
    baseline: Baseline, shown: Collection[str], missed: Collection[str], whole: bool, day: date
) -> list[Standing]:
    """What a campaign that has shown these signatures says of each entry. ``missed``: those that it has looked for and
    not shown; that it has not shown others says nothing of them. ``whole``: nothing of it was undetermined; if not, it
    says nothing of what it has not shown."""

    def uncounted(signature: str) -> str:
        if not whole:
            return "something of it is undetermined"
        return "" if signature in missed else "no run that has shown this here was replayed to its end"

    return [_standing(entry, entry.signature in shown, uncounted(entry.signature), day) for entry in baseline.known]


def _standing(entry: Known, shown: bool, uncounted: str, day: date) -> Standing:
    if not shown:
        count = entry.clean_campaigns + (not uncounted)
        return Standing(entry, State.FIXED if count >= CLEAN_CAMPAIGNS else State.AWAY, count, uncounted)
    if entry.clean_campaigns >= CLEAN_CAMPAIGNS:
        return Standing(entry, State.BACK, entry.clean_campaigns)
    return Standing(entry, State.KNOWN if day <= entry.expires else State.EXPIRED, 0)


def updated(known: Iterable[Standing], shown: Iterable[str], reason: str, day: date) -> Baseline:
    """What the file should say after a campaign: the counts, and an entry for each signature that it does not have.

    Nobody's words are changed: an entry that has expired, or is fixed, is for people to prolong or to take out.
    """
    entries = [msgspec.structs.replace(one.entry, clean_campaigns=one.clean_campaigns) for one in known]
    there = {entry.signature for entry in entries}
    new = [
        Known(signature=signature, reason=reason, expires=day + GRACE)
        for signature in dict.fromkeys(shown)
        if signature not in there
    ]
    return Baseline(known=(*entries, *new))


def write_baseline(file: Path, baseline: Baseline) -> None:
    """Replace the file."""
    write_json(file, baseline)
