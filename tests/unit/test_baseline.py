"""Known failures: what a campaign says of them, and what an update changes."""

from __future__ import annotations

import json
import re
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvcheck.engines.baseline import (
    CLEAN_CAMPAIGNS,
    GRACE,
    Baseline,
    Known,
    State,
    excused,
    read_baseline,
    standings,
    updated,
    write_baseline,
)
from kvcheck.files import InputError

DAY = date(2026, 3, 31)


def entry(signature: str = "a", expires: date = DAY, clean: int = 0) -> Known:
    return Known(signature=signature, reason="why", issue="#1", expires=expires, clean_campaigns=clean)


def state_of(known: Known, shown: bool, clean: bool = True, whole: bool = True) -> tuple[State, int]:
    this = {known.signature}
    (one,) = standings(Baseline(known=(known,)), this if shown else set(), this if clean else set(), whole, DAY)
    assert bool(one.uncounted) == (not shown and not (clean and whole))
    return one.state, one.clean_campaigns


def test_an_entry_excuses_up_to_its_last_day() -> None:
    baseline = Baseline(known=(entry("a", DAY), entry("b", DAY - timedelta(days=1)), entry("c", DAY, CLEAN_CAMPAIGNS)))
    assert excused(baseline, DAY) == {"a"}
    assert state_of(entry(expires=DAY), shown=True) == (State.KNOWN, 0)
    assert state_of(entry(expires=DAY - timedelta(days=1)), shown=True) == (State.EXPIRED, 0)


def test_only_clean_campaigns_in_a_row_make_it_fixed() -> None:
    assert state_of(entry(clean=0), shown=False) == (State.AWAY, 1)
    assert state_of(entry(clean=1), shown=False, clean=False) == (State.AWAY, 1)
    assert state_of(entry(clean=1), shown=False, whole=False) == (State.AWAY, 1)
    assert state_of(entry(clean=1), shown=True) == (State.KNOWN, 0)
    assert state_of(entry(clean=2), shown=False) == (State.FIXED, 3)
    assert state_of(entry(clean=2), shown=False, clean=False) == (State.AWAY, 2)
    assert state_of(entry(clean=3), shown=False, clean=False) == (State.FIXED, 3)
    assert state_of(entry(clean=3), shown=True) == (State.BACK, 3)


def test_an_update_counts_and_adds_and_changes_nobodys_words(tmp_path: Path) -> None:
    before = Baseline(
        known=(entry("hits.skip a schedule", clean=2), entry("hits.skip b schedule", DAY - timedelta(days=9), 1))
    )
    found = ["hits.skip a schedule", "hits.skip c schedule", "hits.skip c schedule"]
    after = updated(standings(before, found, missed=["hits.skip b schedule"], whole=True, day=DAY), found, "found", DAY)
    there, away, new = after.known
    assert there == entry("hits.skip a schedule", clean=0)
    assert away == entry("hits.skip b schedule", DAY - timedelta(days=9), clean=2)
    assert (new.signature, new.reason, new.expires, new.clean_campaigns) == (
        "hits.skip c schedule",
        "found",
        DAY + GRACE,
        0,
    )
    write_baseline(tmp_path / "b.json", after)
    assert read_baseline(tmp_path / "b.json") == after


WHOLE = {
    "signature": "hits.skip a schedule",
    "reason": "why",
    "issue": "#1",
    "expires": "2026-03-31",
    "clean_campaigns": 0,
}


@pytest.mark.parametrize(
    "entries",
    [
        [{**WHOLE, "expires": "soon"}],
        [{**WHOLE, "expire": "2026-03-31"}],
        [{**WHOLE, "reason": " "}],
        [{**WHOLE, "clean_campaigns": -1}],
        [WHOLE, WHOLE],
        [{**WHOLE, "signature": "hits.skipped a schedule"}],
        [{**WHOLE, "signature": "hits.skip"}],
        [{**WHOLE, "signature": "hits.skip full"}],
        [{**WHOLE, "signature": "hits.skip full schedule "}],
        [{**WHOLE, "signature": "system.hang"}],
        [{**WHOLE, "signature": " "}],
        [{name: WHOLE[name] for name in ("signature", "reason")}],
        {},
    ],
)
def test_files_that_cannot_be_right(tmp_path: Path, entries: Any) -> None:
    file = tmp_path / "b.json"
    file.write_text(json.dumps({"version": 1, "known": entries}))
    with pytest.raises(InputError):
        read_baseline(file)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"known": []}, "missing required field `version`"),
        ({"version": 1, "known": [{**WHOLE, "expires": "31.3.2026"}]}, "a day is written YYYY-MM-DD"),
        ({"version": 1, "known": [{**WHOLE, "signature": "hits.skip"}]}, "'hits.skip' is no whole signature"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, content: Any, told: str) -> None:
    file = tmp_path / "b.json"
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=re.escape(told)):
        read_baseline(file)


def test_what_may_be_left_out(tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    file.write_text(json.dumps({"version": 1, "known": [{k: WHOLE[k] for k in ("signature", "reason", "expires")}]}))
    assert read_baseline(file).known == (msgspec.structs.replace(entry("hits.skip a schedule"), issue=""),)
    assert read_baseline(tmp_path / "none.json", may_be_missing=True) == Baseline()
    with pytest.raises(InputError):
        read_baseline(tmp_path / "none.json")
