"""A fuzz job in CI: earlier failures first, known failures, shards, reports."""

from __future__ import annotations

import json
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from junitparser import JUnitXml
from toys import LAYOUT, run_of

from kvcheck.cli import ci
from kvcheck.cli.commands import fuzz as fuzz_command
from kvcheck.cli.main import run
from kvcheck.engines.baseline import CLEAN_CAMPAIGNS, today
from kvcheck.engines.campaign import Campaign, CampaignResult
from kvcheck.engines.seeds import index_in_shard
from kvcheck.files import read_run, versioned, write_json, write_run

FAIL = "system.exception AssertionError fail"
OTHER = "hits.skip full schedule"
FALL = "system.exception ValueError fall"
TODAY = date(2026, 3, 31)


@pytest.fixture(autouse=True)
def day(monkeypatch: pytest.MonkeyPatch) -> Any:
    """It is TODAY; called with another day, it is that."""
    days = [TODAY]
    monkeypatch.setattr(ci, "today", lambda: days[-1])
    return days.append


def fuzz(*arguments: str, runs: int = 3) -> tuple[int, Any]:
    """A campaign on toys: exit status and JSON report."""
    line = [
        "fuzz",
        "--target",
        "toy",
        "--runs",
        str(runs),
        "--seed",
        "1",
        "--jobs",
        "1",
        "--json",
        "f.json",
        *arguments,
    ]
    status = run(line)
    return status, json.loads(Path("f.json").read_text())


def outcomes(report: Any) -> list[tuple[str, str]]:
    return [(one["signature"], one["outcome"]) for one in report["earlier"]]


def test_the_day_is_one() -> None:
    assert abs(today() - date.today()) <= timedelta(days=1)  # noqa: DTZ011


# ---- earlier failures ------------------------------------------------------------------------------------------------


def test_what_one_job_finds_the_next_replays_first(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    toys("- fail-x")
    status, report = fuzz()
    assert (status, report["earlier"]) == (1, [])
    toys("-")
    status, report = fuzz()
    assert status == 1
    assert outcomes(report) == [(FAIL, "shown")]
    (violation,) = report["violations"]
    assert (violation["confirmed"], violation["times"], violation["found_in_run"]) == (True, 1, None)
    assert violation["origin"].startswith("kvcheck-out/database, entry ")
    assert len(read_run(Path(violation["run"])).actions) == 1
    assert "earlier failures: 1 shown" in capsys.readouterr().out
    assert fuzz("--layout", "gptoss")[1]["earlier"] == []
    assert fuzz("--fresh")[0] == 0


def test_what_was_kept_as_it_was_found_is_confirmed_before_it_is_shrunk(
    toys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without_time:
        without_time.setattr(Campaign, "_choose_found", lambda _: None)
        toys("fail-x")
        assert [v["confirmed"] for v in fuzz(runs=1)[1]["violations"]] == [False]
        toys("-")
        assert [v["confirmed"] for v in fuzz(runs=1)[1]["violations"]] == [True]
    assert len(read_run(Path(fuzz(runs=1)[1]["violations"][0]["run"])).actions) == 1


def test_what_is_gone_is_told_and_stays(toys: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    toys(f"flaky-{tmp_path / 'flag'}")
    write_run(Path("case/run.json"), run_of(f"flaky-{tmp_path / 'flag'}"))
    write_json(Path("case/expected.json"), {"version": 1, "expected": {"toy": "violated"}, "signature": FAIL})
    assert fuzz("--counterexamples", ".", runs=1)[1]["violations"][0]["origin"] == "case"
    toys("-")
    for _ in range(2):
        status, report = fuzz()
        assert (status, outcomes(report)) == (0, [(FAIL, "gone")])
        assert f"gone: {FAIL} (kvcheck-out/database, entry" in capsys.readouterr().out


def test_counterexamples_of_the_folder_are_replayed_and_confirmed(toys: Any) -> None:
    write_run(Path("counterexamples/one/run.json"), run_of("fail-x", "a"))
    write_json(Path("counterexamples/one/expected.json"), {"version": 1, "expected": {}, "signature": FAIL})
    write_run(Path("counterexamples/two/run.json"), run_of("a"))
    toys("-")
    status, report = fuzz()
    assert status == 1
    assert outcomes(report) == [(None, "not shown"), (FAIL, "shown")]
    assert [v["confirmed"] for v in report["violations"]] == [True]
    assert fuzz("--layout", "gptoss")[1]["earlier"] == []


def test_a_folder_without_counterexamples_is_told(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("none").mkdir()
    toys("-")
    assert fuzz("--counterexamples", "none", runs=1)[0] == 0
    assert "earlier  none holds no counterexample of level scheduler" in capsys.readouterr().out


def test_what_there_is_no_time_for_is_not_passed(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcheck.engines.clock.EARLIER_SHARE", 0.0)
    write_run(Path("counterexamples/one/run.json"), run_of("a"))
    toys("-")
    status, report = fuzz("--seconds", "20")
    assert (status, outcomes(report)) == (2, [(None, "not replayed")])
    assert [item["code"] for item in report["undetermined"]] == ["not-replayed"]


def test_what_cannot_be_replayed_is_not_passed(toys: Any) -> None:
    write_run(Path("counterexamples/one/run.json"), run_of("crash"))
    toys("-")
    status, report = fuzz()
    assert (status, outcomes(report)) == (2, [(None, "undetermined")])
    assert [item["code"] for item in report["undetermined"]] == ["worker-died"]


def test_a_database_that_cannot_be_read_is_not_passed(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    toys("fail-x")
    fuzz()
    (file,) = [
        path for path in Path("kvcheck-out/database").rglob("*") if path.is_file() and b"run" in path.read_bytes()
    ]
    file.write_bytes(b"{")
    toys("-")
    capsys.readouterr()
    status, report = fuzz()
    assert status == 2
    assert "earlier  kvcheck-out/database, entry" in capsys.readouterr().out.partition("seed ")[0]
    assert [item["code"] for item in report["undetermined"]] == ["earlier-unread"]


def test_the_database_of_the_environment_is_one_place(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCHECK_DATABASE", str(Path("my db").absolute()))
    toys("fail-x")
    fuzz(runs=1)
    assert Path("my db").is_dir()
    assert not Path("kvcheck-out/database").exists()


# ---- shards ----------------------------------------------------------------------------------------------------------


def test_shards_share_the_runs_of_a_campaign(toys: Any) -> None:
    toys("-")
    whole = fuzz(runs=12)[1]
    parts = [fuzz("--shard", f"{i}/3", runs=12)[1] for i in (1, 2, 3)]
    kinds = [sum(part["actions_by_kind"][kind] for part in parts) for kind in whole["actions_by_kind"]]
    assert kinds == list(whole["actions_by_kind"].values())
    assert [part["runs"] for part in parts] == [4, 4, 4]
    assert [part["shard"] for part in parts] == ["1/3", "2/3", "3/3"]
    assert len({part["out"] for part in parts}) == 3
    indices = [index_in_shard((which, 3), number) for which in (1, 2, 3) for number in range(4)]
    assert sorted(indices) == list(range(12))


@pytest.mark.parametrize(("shard", "runs"), [("1/4", 2), ("2/4", 1), ("3/4", 1), ("4/4", 1)])
def test_the_runs_of_all_shards_are_those_that_were_asked_for(shard: str, runs: int, toys: Any) -> None:
    toys("-")
    assert fuzz("--shard", shard, runs=5)[1]["runs"] == runs


def test_a_shard_without_runs_is_wrong_usage(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    toys("-")
    assert run(["fuzz", "--target", "toy", "--runs", "2", "--shard", "3/4"]) == 3
    assert "--shard 3/4 has no part of --runs 2" in capsys.readouterr().err


# ---- known failures --------------------------------------------------------------------------------------------------


def baseline(expires: date = TODAY, clean: int = 0, signature: str = FAIL) -> None:
    entry = {"signature": signature, "reason": "why", "issue": "#7", "expires": expires, "clean_campaigns": clean}
    write_json(Path("b.json"), {"version": 1, "known": [entry]})


def test_a_known_failure_is_no_failure_until_its_day(toys: Any, day: Any, capsys: pytest.CaptureFixture[str]) -> None:
    toys("- fail-x")
    baseline()
    before = Path("b.json").read_bytes()
    status, report = fuzz("--baseline", "b.json")
    assert (status, report["verdict"]) == (0, "passed")
    assert [(v["signature"], v["known"]) for v in report["violations"]] == [(FAIL, True)]
    shown = capsys.readouterr().out
    assert f"known: {FAIL}: why, #7, excused until 2026-03-31" in shown
    assert "no new violation (1 known) in these runs, which came to" in shown
    assert "[1]" not in shown
    day(TODAY + timedelta(days=1))
    status, report = fuzz("--baseline", "b.json")
    assert (status, report["baseline"]["expired"]) == (1, [FAIL])
    assert not report["violations"][0]["known"]
    assert Path("b.json").read_bytes() == before


def test_a_new_failure_beside_a_known_one(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    toys("fail-x fall")
    baseline()
    status, report = fuzz("--baseline", "b.json", runs=6)
    assert status == 1
    assert [(v["signature"], v["known"]) for v in report["violations"]] == [(FALL, False), (FAIL, True)]
    assert "violated: 1 violation, and 1 known" in capsys.readouterr().out


def test_a_baseline_from_nothing_to_fixed_and_back(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--baseline", "b.json", "--update-baseline")
    toys("-")
    write_run(Path("case/run.json"), run_of(f"flaky-{Path('flag').absolute()}"))
    write_json(Path("case/expected.json"), {"version": 1, "expected": {"toy": "violated"}, "signature": FAIL})
    assert fuzz(*arguments, "--counterexamples", ".")[0] == 1
    (entry,) = json.loads(Path("b.json").read_text())["known"]
    assert (entry["signature"], entry["expires"], entry["clean_campaigns"]) == (FAIL, "2026-04-30", 0)
    assert "b.json: entries added: 1, taken out: 0, in all: 1\n" in capsys.readouterr().out
    Path("flag").unlink()
    assert fuzz("--baseline", "b.json")[0] == 0
    assert Path("flag").exists()  # the toy is mended
    for count in range(1, CLEAN_CAMPAIGNS + 1):
        assert fuzz("--baseline", "b.json")[0] == 0  # this one does not count
        status, report = fuzz(*arguments)
        assert status == 0
        assert json.loads(Path("b.json").read_text())["known"][0]["clean_campaigns"] == count
        assert report["baseline"]["fixed"] == ([FAIL] if count == CLEAN_CAMPAIGNS else [])
    assert f"fixed: {FAIL}: not seen in 3 clean campaigns: take it out of b.json" in capsys.readouterr().out
    toys("fail-x")
    status, report = fuzz("--baseline", "b.json")
    assert (status, report["baseline"]["back"]) == (1, [FAIL])


def test_only_a_campaign_that_says_something_counts(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    baseline(signature=OTHER)
    write_json(Path("case/expected.json"), {"version": 1, "expected": {"toy": "violated"}, "signature": OTHER})
    replayed = ("--counterexamples", ".")

    def counted(*arguments: str) -> int:
        report = fuzz("--baseline", "b.json", "--update-baseline", *arguments)[1]
        count: int = report["baseline"]["clean_campaigns"][OTHER]
        return count

    toys("-")
    assert counted() == 0  # nobody has looked for it
    told = "0 of 3 clean campaigns; this one does not count: no run that has shown this here was replayed to its end"
    assert f"away: {OTHER}: not seen; {told}\n" in capsys.readouterr().out
    write_run(Path("case/run.json"), run_of("a"))
    assert counted("--fresh") == 0
    toys("- crash")
    assert counted(*replayed) == 0
    toys("-")
    assert counted(*replayed) == 1
    write_run(Path("case/run.json"), run_of("fall"))
    assert counted(*replayed) == 1  # it may stand behind what ends the run now
    assert "masked" in str(json.loads(Path("f.json").read_text())["earlier"])


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let something else come of campaigns; called with what changes."""
    begin = fuzz_command.work

    def let(change: Any) -> None:
        monkeypatch.setattr(fuzz_command, "work", lambda *arguments: change(begin(*arguments)))

    return let


def test_an_interrupted_campaign_changes_no_baseline(toys: Any, work: Any, capsys: pytest.CaptureFixture[str]) -> None:
    toys("fail-x")
    work(lambda result: msgspec.structs.replace(result, interrupted=True))
    assert not fuzz("--baseline", "b.json", "--update-baseline", runs=1)[1]["baseline"]["updated"]
    assert not Path("b.json").exists()
    assert "b.json is left as it was: the campaign was interrupted\n" in capsys.readouterr().out


def test_what_was_not_confirmed_is_not_called_known(toys: Any, work: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def without_time(result: CampaignResult) -> CampaignResult:
        result.buckets[0].state = "found"
        return result

    toys("fail-x")
    work(without_time)
    assert fuzz("--baseline", "b.json", "--update-baseline", runs=1)[0] == 1
    assert json.loads(Path("b.json").read_text())["known"] == []
    assert "in all: 0; not added, for want of time to shrink and replay: 1" in capsys.readouterr().out


def test_an_entry_says_how_to_see_it(toys: Any) -> None:
    toys("fail-x")
    write_json(Path("l.json"), versioned(LAYOUT))
    fuzz("--baseline", "b.json", "--update-baseline", "--layout", "l.json", "--shard", "1/2", runs=2)
    (entry,) = json.loads(Path("b.json").read_text())["known"]
    assert entry["reason"].endswith("kvcheck fuzz --target toy --seed 1 --layout l.json --shard 1/2")


# ---- reports ---------------------------------------------------------------------------------------------------------


def test_all_reports_of_one_campaign(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in them is tested in tests/unit/test_reports.py."""
    toys("fail-x fall")
    baseline()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "steps.md")
    assert fuzz("--baseline", "b.json", "--junit", "j.xml", "--sarif", "s.sarif", runs=8)[0] == 1
    (suite,) = JUnitXml.fromfile("j.xml")
    assert (suite.failures, suite.errors, suite.skipped) == (1, 0, 1)
    (log,) = json.loads(Path("s.sarif").read_text())["runs"]
    places = [result["locations"][0]["logicalLocations"][0]["name"] for result in log["results"]]
    assert places == ["fall", "fail"]
    assert Path("steps.md").read_text().startswith("### kvcheck fuzz: violated\n")


def test_a_report_that_cannot_be_written_is_not_passed(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    toys("-")
    assert fuzz("--junit", "/dev/full", "--sarif", "s.sarif")[0] == 2
    assert capsys.readouterr().err == "kvcheck: cannot write /dev/full: the disk is full\n"
    assert Path("s.sarif").exists()
    toys("fail-x")
    assert fuzz("--summary", "/dev/full")[0] == 1


def test_junit_without_its_library(toys: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "junitparser", None)
    toys("-")
    assert run(["fuzz", "--target", "toy", "--runs", "1", "--junit", "j.xml"]) == 3
    assert "the extra junit" in capsys.readouterr().err


WRONG = [
    ["--shard", "0/4"],
    ["--shard", "5/4"],
    ["--shard", "x"],
    ["--shard", "1/-1"],
    ["--baseline", "none.json"],
    ["--baseline", "."],
    ["--baseline", "bad.json"],
    ["--baseline", "b.json", "--baseline", "b.json", "--update-baseline"],
    ["--update-baseline"],
    ["--database", "ftp://x"],
    ["--database", "github:x"],
    ["--counterexamples", "none"],
    ["--counterexamples", ".", "--fresh"],
    ["--junit", "."],
    ["--sarif", "file/x"],
    ["--summary", "."],
    ["--junit", "/"],
    ["--sarif", "-"],
    ["--junit", "x", "--sarif", "./x"],
    ["--json", "x", "--summary", "x"],
    ["--html", "b.json", "--baseline", "b.json", "--update-baseline"],
]


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_wrong_usage(arguments: list[str], toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    Path("bad.json").write_text('{"version": 1, "known": [{"signature": "a"}]}')
    toys("-")
    assert run(["fuzz", "--target", "toy", "--runs", "1", *arguments]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("kvcheck: ")
    assert captured.err.count("\n") == 1
