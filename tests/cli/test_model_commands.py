"""The commands that are about the model: faults, score, and fuzz without a target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvcheck.cli.main import run
from kvcheck.engines.score import Scored, Scoring
from kvcheck.files import read_run
from kvcheck.model.faults import FAULTS


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KVCHECK_OUT", raising=False)


def test_faults_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["faults"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(FAULTS)
    assert run(["faults", "--json", "faults.json"]) == 0
    entries = json.loads(Path("faults.json").read_text())["faults"]
    assert [entry["name"] for entry in entries] == list(FAULTS)
    assert all(entry["claim"] and entry["rules"] for entry in entries)


def test_the_default_target_is_the_model_and_passes(capsys: pytest.CaptureFixture[str]) -> None:
    status = run(["fuzz", "--runs", "60", "--seed", "3", "--jobs", "1", "--json", "f.json"])
    report = json.loads(Path("f.json").read_text())
    assert (report["target"], report["violations"]) == ("model", [])
    assert {item["code"] for item in report["undetermined"]} <= {"never-reached"}
    assert status == (2 if report["undetermined"] else 0)
    assert "it says nothing about a server" in capsys.readouterr().out


def test_a_fault_is_found_and_its_run_replays(capsys: pytest.CaptureFixture[str]) -> None:
    fuzz = ["fuzz", "--target", "model+last-token-not-computed", "--runs", "20", "--seed", "3", "--jobs", "1"]
    assert run([*fuzz, "--json", "f.json"]) == 1
    assert "the reference model with faults on" in capsys.readouterr().out
    violation = json.loads(Path("f.json").read_text())["violations"][0]
    file = violation["run"]
    assert read_run(Path(file)).actions
    assert run(["replay", file, "--target", "model+last-token-not-computed"]) == 1
    assert run(["replay", file, "--target", "model"]) == 0


def test_score_tells_what_finds_a_fault_how_soon_and_how_short(capsys: pytest.CaptureFixture[str]) -> None:
    faults = ["--fault", "hit-blocks-not-counted", "--fault", "window-one-short"]
    assert run(["score", *faults, "--seconds", "30", "--seeds", "2", "--json", "s.json"]) == 0
    report = json.loads(Path("s.json").read_text())
    assert (report["verdict"], len(report["searches"])) == ("passed", 4)
    first = report["faults"][0]
    assert (first["fault"], first["searches"], first["found"]) == ("hit-blocks-not-counted", 2, 2)
    assert first["invariants"] == ["estimate.covers"]
    assert 0 < len(first["shortest"]["run"]["actions"]) == first["shortest"]["actions"] <= first["shortest"]["unshrunk"]
    assert "passed: 2 found, the slowest" in capsys.readouterr().out


def test_what_is_not_found_is_undetermined(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["score", "--fault", "diverged-lookup-ignores-dcp", "--seconds", "0.01"]) == 2
    assert "undetermined: not found by most searches: diverged-lookup-ignores-dcp" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["score", "--fault", "nonsense"],
        ["fuzz", "--target", "model+nonsense", "--runs", "1"],
        ["fuzz", "--target", "model@9.9.9", "--runs", "1"],
        ["fuzz", "--target", "model@nonsense", "--runs", "1"],
        ["fuzz", "--target", "model+", "--runs", "1"],
    ],
)
def test_unknown_faults_and_releases_are_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_interrupted_score_keeps_what_is_over_and_counts_nothing_else() -> None:
    told: list[Scored] = []

    def stop_after_one(one: Scored) -> None:
        told.append(one)
        scoring.interrupt()

    scoring = Scoring(30.0, 1, stop_after_one)
    assert scoring.run(["reset-keeps-keys", "window-one-short"], range(2)) == told
    assert [(one.fault, one.seed, one.found) for one in told] == [("reset-keeps-keys", 0, True)]


def test_the_model_has_no_manager_level(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fuzz", "--level", "manager", "--seconds", "1"]) == 3
    assert "scheduler level only" in capsys.readouterr().err


def test_so_many_actions_are_judged_and_no_more_than_a_run_of_each_worker_beyond() -> None:
    assert run(["fuzz", "--actions", "300", "--jobs", "1", "--seed", "3", "--json", "f.json"]) in {0, 2}
    assert 300 <= json.loads(Path("f.json").read_text())["actions"] < 1300
