"""Failures of earlier campaigns, which a campaign replays before it searches.

They come from a database, into which each campaign puts what it has found, and from folders of counterexamples. A
campaign is given those of campaigns like it: the same target, the same layout or random ones, the same level.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

import msgspec

from kvcheck.engines.buckets import Bucket
from kvcheck.engines.database import Database
from kvcheck.engines.shrink import complexity
from kvcheck.engines.watched import HANG
from kvcheck.files import (
    RUN_FILE,
    VERSION,
    InputError,
    check_run,
    decoded_as,
    expected_verdicts,
    one_line,
    read_run,
    stated_signature,
)
from kvcheck.model.actions import Level, Run


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is replayed first. ``signature``: what it showed; None: any violation. ``origin``: where it comes
    from. ``was_shown``: it broke something on this very target. ``shrunk``: nobody need shrink it again."""

    run: Run
    origin: str
    signature: str | None = None
    needs: tuple[str, ...] = ()
    was_shown: bool = True
    shrunk: bool = True


class Outcome(StrEnum):
    """What came of it. GONE: this target has shown it, and shows it no more; NOT_SHOWN: other targets have. MASKED:
    another violation has ended the run."""

    SHOWN = "shown"
    GONE = "gone"
    NOT_SHOWN = "not shown"
    MASKED = "masked"
    NOT_SUPPORTED = "not supported"
    UNDETERMINED = "undetermined"
    NOT_REPLAYED = "not replayed"


_MISSED = frozenset((Outcome.GONE, Outcome.NOT_SHOWN))


class Replayed(msgspec.Struct, frozen=True):
    """An earlier failure, and what came of it in this campaign."""

    earlier: Earlier
    outcome: Outcome


def missed(earlier: Iterable[Replayed]) -> frozenset[str]:
    """Signatures that this target has shown and shows no more: every run that did was replayed, up to where it did. A
    run that only other targets have shown says nothing: this one may show it by another."""
    found: dict[str | None, set[Outcome]] = {}
    for one in earlier:
        found.setdefault(one.earlier.signature, set()).add(one.outcome)
    return frozenset(
        signature for signature, seen in found.items() if signature and Outcome.GONE in seen and seen <= _MISSED
    )


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What the database holds of a failure."""

    signature: str
    run: Run
    needs: tuple[str, ...] = ()
    shrunk: bool = True
    version: int = VERSION


def family(spec: str, layout: str, level: str) -> str:
    """The name of all campaigns that replay each other's failures. A checkout is one, wherever it lies."""
    return " ".join(["path:" if spec.startswith("path:") else spec, layout, level])


def in_order(earlier: Iterable[Earlier]) -> tuple[Earlier, ...]:
    """Each run once, with all that is known of it; the shortest first, and hangs, which take their time, last."""
    by_run: dict[bytes, Earlier] = {}
    for one in earlier:
        key = msgspec.json.encode((one.run, one.signature))
        same = by_run.get(key, one)
        by_run[key] = msgspec.structs.replace(
            same, was_shown=same.was_shown or one.was_shown, shrunk=same.shrunk or one.shrunk
        )
    return tuple(sorted(by_run.values(), key=lambda one: ((one.signature or "").startswith(HANG), complexity(one.run))))


# ---- the database ------------------------------------------------------------------------------------------------


def stored_in(database: Database, name: str) -> tuple[list[Earlier], list[str]]:
    """The failures of a family, and complaints about what cannot be read."""
    found, complaints = [], []
    for raw in database.fetch(name):
        title = f"{database.title}, entry {hashlib.sha256(raw).hexdigest()[:8]}"
        try:
            stored: Stored = decoded_as(Path(title), raw, Stored)
            check_run(Path(title), stored.run)
        except InputError as error:
            complaints.append(one_line(error))
            continue
        found.append(
            Earlier(run=stored.run, origin=title, signature=stored.signature, needs=stored.needs, shrunk=stored.shrunk)
        )
    return found, [*complaints, *database.unread.values()]


def remember(database: Database, name: str, buckets: Iterable[Bucket]) -> bool:
    """Put what a campaign has found into the database: one run a signature, the latest, but none that was not shrunk
    in the place of one that was. Returns whether that could be done for all."""
    whole = True
    before = {raw: stored for raw in database.fetch(name) if (stored := _readable(raw)) is not None}
    for bucket in buckets:
        new = Stored(signature=bucket.signature, run=bucket.run, needs=bucket.needs, shrunk=bucket.state == "confirmed")
        same = {raw: old for raw, old in before.items() if old.signature == new.signature}
        if new.shrunk or not any(old.shrunk for old in same.values()):
            raw = msgspec.json.encode(new)
            whole &= database.replace(name, [old for old in same if old != raw], raw)
    return whole


def _readable(raw: bytes) -> Stored | None:
    try:
        return msgspec.json.decode(raw, type=Stored)
    except (msgspec.MsgspecError, RecursionError):
        return None


# ---- folders of counterexamples ----------------------------------------------------------------------------------


def counterexamples_in(folder: Path, spec: str, level: Level) -> list[Earlier]:
    """The counterexamples of a folder that are of this level.

    Raises:
        InputError: there is no such folder, or a file in it cannot be read.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    paths = [path for path in sorted(folder.iterdir()) if (path / RUN_FILE).is_file()]
    found = [
        Earlier(
            run=read_run(path),
            origin=str(path),
            signature=stated_signature(path),
            was_shown=expected_verdicts(path).get(spec) == "violated",
        )
        for path in paths
    ]
    return [one for one in found if one.run.level == level]
