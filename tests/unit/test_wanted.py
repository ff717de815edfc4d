"""A campaign that looks for one thing: it ends when that is shown, and works on nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toys import LOADER, SEARCHER, run_of

from kvcheck.engines.buckets import MOST_BUCKETS, Buckets
from kvcheck.engines.campaign import Campaign, CampaignResult, Plan
from kvcheck.engines.crash import Crash
from kvcheck.engines.findings import Findings
from kvcheck.engines.workers import Limits
from kvcheck.invariants.registry import Violation
from kvcheck.report.reproduction import Reproduction, reproduction_report

FAILS = Crash(type="AssertionError", function="fail")
HANGS = Crash(signature="system.hang")
RUN = run_of("fine")


@pytest.fixture
def labels(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda text: monkeypatch.setenv("TOY_LABELS", text)


def searched(out: Path, wanted: Crash, runs: int = 200) -> CampaignResult:
    limits = Limits(stall_seconds=1.0)
    toys = {"loader": LOADER, "searcher": SEARCHER, "limits": limits}
    plan = Plan(spec="toy", seed=1, out=out, seconds=60.0, runs=runs, wanted=wanted, **toys)
    return Campaign(plan).run()


def test_it_ends_with_the_shortest_run_of_what_is_wanted(tmp_path: Path, labels: Any) -> None:
    labels("- - - fail-x")
    result = searched(tmp_path, FAILS)
    reproduction = Reproduction(crash=FAILS, result=result)
    assert reproduction.verdict == "violated"
    assert result.runs < 100
    (bucket,) = reproduction.found
    assert bucket.state == "confirmed"
    assert len(bucket.run.actions) == 1


def test_what_else_comes_up_is_told_apart_and_not_worked_on(tmp_path: Path, labels: Any) -> None:
    labels("- fail-x")
    result = searched(tmp_path, HANGS, runs=10)
    reproduction = Reproduction(crash=HANGS, result=result, remarks=("no such function",))
    assert reproduction.verdict == "undetermined"
    assert result.runs == 10
    (other,) = reproduction.others
    assert other.state == "found"
    assert other.file.is_file()
    report = reproduction_report(reproduction)
    assert report["verdict"] == "undetermined"
    assert report["violations"] == []
    assert [entry["signature"] for entry in report["others"]] == ["system.exception AssertionError fail"]
    assert [item["code"] for item in report["undetermined"]] == ["not-reproduced", "remark"]


def test_the_search_goes_on_after_what_does_not_show_again(tmp_path: Path, labels: Any) -> None:
    labels(f"flaky-{tmp_path / 'flag'} - -")
    result = searched(tmp_path / "out", FAILS, runs=20)
    assert Reproduction(crash=FAILS, result=result).verdict == "undetermined"
    assert result.runs == 20
    assert "not-reproducible" in {item.code for item in result.undetermined}


def test_there_is_always_room_for_what_is_wanted(tmp_path: Path) -> None:
    buckets = Buckets(Findings(tmp_path, "toy"), FAILS.is_shown_by)
    for number in range(MOST_BUCKETS):
        buckets.sort(violation(f"progress.frozen {number}"), RUN, number)
    assert not buckets.any()
    buckets.sort(violation("system.exception AssertionError fail"), RUN, MOST_BUCKETS)
    assert buckets.any()
    assert not buckets.full


def violation(signature: str) -> Violation:
    return Violation(signature.partition(" ")[0], "crash", "", signature, 0)
