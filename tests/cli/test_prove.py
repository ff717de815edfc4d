"""kvcheck prove and kvcheck laws."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kvcheck.cli.main import run
from kvcheck.engines.judging import judge_run
from kvcheck.model.actions import Run
from kvcheck.prover.law import all_laws
from kvcheck.prover.lookups import LAYOUTS
from kvcheck.report.describe import layout_lines
from kvcheck.targets.loading import load_target

IDS = [law.id for law in all_laws()]
QUICK = "windows.asked"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def report_of(*arguments: str) -> tuple[int, dict[str, object]]:
    status = run(["prove", *arguments, "--json", "p.json"])
    return status, json.loads(Path("p.json").read_text())


def test_laws_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["laws"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == IDS
    assert run(["laws", "--json", "laws.json"]) == 0
    entries = json.loads(Path("laws.json").read_text())["laws"]
    assert [entry["law"] for entry in entries] == IDS
    assert all(entry["claim"] and entry["rules"] and entry["scope"] for entry in entries)


def test_all_laws_of_the_model_are_proved(capsys: pytest.CaptureFixture[str]) -> None:
    status, report = report_of()
    assert (status, report["verdict"], report["target"]) == (0, "passed", "model")
    laws = report["laws"]
    assert isinstance(laws, list)
    assert [(law["law"], law["result"], law["counterexample"]) for law in laws] == [(i, "proved", None) for i in IDS]
    told = capsys.readouterr().out
    assert f"passed: {len(IDS)} proved ({len(IDS)} laws, " in told
    assert "nothing checks that" in told


def test_a_fault_is_refuted_told_and_replays(capsys: pytest.CaptureFixture[str]) -> None:
    status, report = report_of(QUICK, "--target", "model+window-one-short")
    assert (status, report["verdict"]) == (1, "violated")
    (law,) = report["laws"]  # type: ignore[misc]
    assert law["result"] == "refuted"
    counterexample = law["counterexample"]
    assert counterexample["numbers"] == {"block": 2, "window": 2, "boundary": 2}
    shown = msgspec.convert(counterexample["run"], Run)
    signatures = [v.signature for v in judge_run(load_target("model+window-one-short"), shown).violations]
    assert counterexample["signature"] in signatures
    assert run(counterexample["reproduce"].split()[1:]) == 1
    told = capsys.readouterr().out
    assert "counterexample: block 2, window 2, boundary 2" in told
    assert f"reproduce:      {counterexample['reproduce']}" in told
    assert "arrive a" in told
    assert "violated: 1 refuted (1 laws" in told


def test_a_law_that_is_shown_by_another_tells_the_numbers_of_that(capsys: pytest.CaptureFixture[str]) -> None:
    status, report = report_of("agreement.finders", "--target", "model+window-one-short")
    assert status == 1
    told = capsys.readouterr().out
    assert "counterexample: layout (" in told
    assert "of:             agreement.valid: layout (" in told
    assert "all others 0, false or empty" in told
    numbers = report["laws"][0]["counterexample"]["numbers"]  # type: ignore[index]
    assert next(iter(layout_lines(LAYOUTS[numbers["layout"]]))) in told


def test_what_cannot_be_kept_is_told_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    assert run(["prove", QUICK, "--target", "model+window-one-short", "--out", "file"]) == 1
    told = capsys.readouterr().out
    assert "not kept: " in told
    assert "its run could not be written" in told


def test_a_fault_that_no_law_is_about_is_undetermined(capsys: pytest.CaptureFixture[str]) -> None:
    status, report = report_of(QUICK, "--target", "model+junction-not-kept")
    assert (status, report["verdict"], report["not_covered"]) == (2, "undetermined", ["junction-not-kept"])
    assert "none of these laws is about junction-not-kept" in capsys.readouterr().out


def test_all_faults_of_a_release_are_on(capsys: pytest.CaptureFixture[str]) -> None:
    status, report = report_of("divergence.valid", "capability.exact", "--target", "model@0.27.1")
    assert status == 1
    assert [law["result"] for law in report["laws"]] == ["proved", "refuted"]  # type: ignore[attr-defined]
    assert "violated: 1 proved, 1 refuted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nonsense"], "no such law: nonsense (see kvcheck laws)"),
        (["--target", "vllm==0.28.0"], "only the model can be proved"),
        (["--target", "path:."], "only the model can be proved"),
        (["--target", "model+nonsense"], "no such fault"),
        (["--target", "model@9.9.9"], "9.9.9"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prove", *arguments]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_laws_are_listed_without_loading_z3() -> None:
    code = (
        "import sys; from kvcheck.cli.main import run; status = run(['laws']); sys.exit(status or 'z3' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
