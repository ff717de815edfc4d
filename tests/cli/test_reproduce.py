"""`kvcheck reproduce`, on the model with faults in the place of a release."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from releases import release

from kvcheck.cli.main import run
from kvcheck.engines import campaign
from kvcheck.files import read_run

FAULT = "model+failed-load-several-groups"
REPORT = "ServerError: several groups, after a failed load, in failed_load"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KVCHECK_OUT", raising=False)
    monkeypatch.setattr(campaign, "SHRINK_SECONDS", 3.0)


def reproduce(*arguments: str) -> int:
    common = ["--seed", "1", "--jobs", "1", "--seconds", "60", "--json", "r.json"]
    return run(["reproduce", "--layout", "gptoss", "--target", FAULT, *common, *arguments])


def report() -> dict[str, object]:
    found: dict[str, object] = json.loads(Path("r.json").read_text(encoding="utf-8"))
    return found


def test_a_crash_is_shown_shrunk_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce("--crash", "ServerError after invalid blocks") == 1
    told = capsys.readouterr().out
    assert "more of  failed load" in told
    assert "this run has a connector" in told
    found = report()
    (violation,) = found["violations"]  # type: ignore[misc]
    assert found["verdict"] == "violated"
    assert violation["confirmed"]
    assert len(read_run(Path(violation["run"])).actions) == violation["actions"] < 10
    assert Path(violation["run"]).with_name("account.txt").is_file()
    kept = Path(violation["run"]).read_text(encoding="utf-8")
    assert reproduce("--crash", "ServerError in another_place", "--seconds", "4") == 2
    assert Path(violation["run"]).read_text(encoding="utf-8") == kept
    assert "    unlike: the layout that was given, this run has " in capsys.readouterr().out


def test_a_report_is_read_from_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("ServerError\nafter a load error\n"))
    assert reproduce("--crash", "-") == 1
    assert "crash    ServerError wherever it is raised" in capsys.readouterr().out


def test_what_was_tried_is_told_when_it_does_not_come_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce("--crash", "KeyError in mamba_step", "--seconds", "2") == 2
    told = capsys.readouterr().out
    assert "mentioned, and nothing of it in the layout: mamba" in told
    assert "situations reached: " in told
    assert "situations never reached: " in told
    assert "KeyError in mamba_step: not seen" in told
    assert report()["verdict"] == "undetermined"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--crash", "it is slow"), "--crash names neither an exception"),
        (("--crash", "EngineDeadError"), "give the traceback of the engine"),
        (("--crash", "KeyError", "--layout", "none-such"), "neither a preset"),
        (("--crash", "KeyError", "--target", "model+none-such"), "none-such"),
        (("--crash", "KeyError", "--seconds", "0"), "seconds above 0"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(*arguments) == 3
    told = capsys.readouterr().err
    assert complaint in told
    assert told.count("\n") == 1


@pytest.mark.release
def test_what_a_release_cannot_show_is_not_searched_for(capsys: pytest.CaptureFixture[str]) -> None:
    release("0.28.0")
    assert reproduce("--target", "vllm==0.28.0", "--crash", "KeyError in execute_model") == 3
    assert "has no function execute_model in its bookkeeping" in capsys.readouterr().err
    assert not Path("kvcheck-out").exists()
