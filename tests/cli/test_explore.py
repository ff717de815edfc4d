"""kvcheck explore and kvcheck scopes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvcheck.cli.main import run
from kvcheck.explorer import exploring
from kvcheck.explorer.scope import FOLDER, names, scope_of
from kvcheck.files import read_run

SMALL, POOL = "retention", "pool"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def report_of(*arguments: str) -> tuple[int, dict[str, object]]:
    status = run(["explore", *arguments, "--json", "e.json"])
    return status, json.loads(Path("e.json").read_text())


def test_scopes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scopes"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == names()
    assert run(["scopes", "--json", "scopes.json"]) == 0
    entries = json.loads(Path("scopes.json").read_text())["scopes"]
    assert [(entry["scope"], entry["kills"]) for entry in entries] == [(n, list(scope_of(n).kills)) for n in names()]


def test_scopes_that_are_seen_completely_pass(capsys: pytest.CaptureFixture[str]) -> None:
    status, report = report_of("--scope", POOL, "--scope", SMALL)
    assert (status, report["verdict"], report["target"], report["interrupted"]) == (0, "passed", "model", False)
    scopes = report["scopes"]
    assert isinstance(scopes, list)
    assert [(one["scope"], one["complete"], one["violations"]) for one in scopes] == [
        (POOL, True, []),
        (SMALL, True, []),
    ]
    assert sum(scopes[1]["actions_by_kind"].values()) == scopes[1]["transitions"]
    assert scopes[1]["witnesses"]["hit"] > 0
    told = capsys.readouterr().out
    assert "passed: 2 of 2 scopes complete" in told
    assert "not reached:" in told


def test_what_is_found_is_kept_as_a_run_that_replays() -> None:
    target = "model+replay-boundary-not-kept"
    status, report = report_of("--scope", SMALL, "--target", target)
    assert (status, report["verdict"]) == (1, "violated")
    (found,) = report["scopes"][0]["violations"]  # type: ignore[index]
    assert found["signature"] == "hits.repeat full+mamba schedule"
    assert (found["actions"], found["replays"], len(found["moves"])) == (3, True, 3)
    assert len(read_run(Path(found["run"])).actions) == 3
    assert run(found["reproduce"].split()[1:]) == 1


def test_what_is_found_in_the_pool_is_told_in_moves(capsys: pytest.CaptureFixture[str]) -> None:
    status, report = report_of("--scope", POOL, "--target", "model+unregistered-blocks-age")
    assert status == 1
    (found,) = report["scopes"][0]["violations"]  # type: ignore[index]
    assert (found["moves"], found["replays"]) == (["request 0: take", "request 0: give back"], True)
    assert "request 0: give back" in capsys.readouterr().out


def test_a_fault_that_does_not_show_is_undetermined(capsys: pytest.CaptureFixture[str]) -> None:
    status, report = report_of("--scope", SMALL, "--target", "model+drop-repeated")
    assert (status, report["verdict"], report["not_covered"]) == (2, "undetermined", ["drop-repeated"])
    assert "none of these scopes shows drop-repeated" in capsys.readouterr().out


def test_a_search_that_is_cut_is_undetermined(capsys: pytest.CaptureFixture[str]) -> None:
    status, report = report_of("--scope", "connector", "--seconds", "0.2")
    assert (status, report["verdict"]) == (2, "undetermined")
    assert "undetermined: 0 of 1 scopes complete" in capsys.readouterr().out


def test_a_scope_of_ones_own_is_read_from_its_file() -> None:
    Path("mine.json").write_text((FOLDER / f"{SMALL}.json").read_text())
    status, report = report_of("--scope", "mine.json")
    assert (status, report["scopes"][0]["scope"]) == (0, "mine.json")  # type: ignore[index]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--scope", "nothing"), "neither a scope"),
        (("--target", "vllm==0.28.0"), "only the model can be explored"),
        (("--target", "model+nothing"), "no such fault"),
        (("--seconds", "0"), "seconds"),
        (("--jobs", "0"), "jobs"),
    ],
)
def test_wrong_usage_is_told_in_one_line(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explore", *arguments]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_what_cannot_be_kept_is_reported_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    target = "model+replay-boundary-not-kept"
    assert run(["explore", "--scope", SMALL, "--target", target, "--out", "file"]) == 1
    told = capsys.readouterr().out
    assert "not kept: " in told
    assert "hits.repeat full+mamba schedule" in told


def test_a_search_that_does_not_look_at_the_clock_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object) -> None:
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(exploring, "explore", endless)
    monkeypatch.setattr(exploring, "GRACE", 0.2)
    result = exploring._search("a", scope_of(POOL), "model", 0.1)
    assert result.verdict == "undetermined"
    assert "endless (test_explore.py:" in result.undetermined


@pytest.mark.parametrize(("seconds", "times"), [(0.7, 1), (1.2, 1), (3.0, 1), (3.0, 2)])
def test_an_interrupt_of_the_whole_group_ends_the_searches_and_reports_them(seconds: float, times: int) -> None:
    """At any time: also while the processes that search begin. A second one does not wait for them."""
    command = [sys.executable, "-m", "kvcheck", "explore", "--seconds", "60", "--json", "e.json"]
    scopes = ["--scope", "connector", "--scope", "three-groups", "--scope", "copy-on-write", "--jobs", "1"]
    child = subprocess.Popen(
        [*command, *scopes], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    time.sleep(seconds)
    for _ in range(times):
        os.killpg(child.pid, signal.SIGINT)
        time.sleep(0.02)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, err.strip()) in ((2, ""), (2, "kvcheck: interrupted"))  # before it had begun
    if not err:
        assert "interrupted" in out
        report = json.loads(Path("e.json").read_text())
        assert report["interrupted"] is True
        assert [one["scope"] for one in report["scopes"]] == scopes[1:6:2]
        assert not all(one["complete"] for one in report["scopes"])
