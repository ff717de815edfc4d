"""`kvcheck export --to html` and `kvcheck fuzz --html`. Toy targets stand for releases."""

from __future__ import annotations

import errno
import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pages import film_in, judged
from releases import release
from toys import LAYOUT, LOADER, SEARCHER, run_of

from kvcheck.cli.commands import fuzz, replay
from kvcheck.cli.main import run
from kvcheck.engines import afterwards
from kvcheck.engines.campaign import Plan
from kvcheck.engines.watched import Watched
from kvcheck.engines.workers import Limits
from kvcheck.files import write_run, write_trace
from kvcheck.model.actions import Run
from kvcheck.model.observation import TargetInfo
from kvcheck.report.pages import run as pages_of_runs

COUNTEREXAMPLES = Path(__file__).parents[2] / "counterexamples"
LIMITS = Limits(stall_seconds=1.0)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KVCHECK_OUT", raising=False)


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let commands drive toys; called with the labels of the runs to draw."""
    monkeypatch.setattr(fuzz, "Plan", functools.partial(Plan, limits=LIMITS, loader=LOADER))
    monkeypatch.setitem(fuzz.SEARCHERS, "scheduler", SEARCHER)
    monkeypatch.setattr(replay, "Watched", functools.partial(Watched, limits=LIMITS, loader=LOADER))
    for module in (fuzz, replay):
        monkeypatch.setattr(module, "describe", lambda spec: TargetInfo(spec=spec, version="1"))
    return lambda labels: monkeypatch.setenv("TOY_LABELS", labels)


def text_of(name: str) -> str:
    return Path(name).read_text(encoding="utf-8")


# ---- export ----------------------------------------------------------------------------------------------------------


def test_a_run_that_breaks_something(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("found/run.json"), run_of("fail-x"))
    assert run(["export", "found", "--to", "html", "--target", "toy"]) == 0
    assert capsys.readouterr().out == "found.html: violated, 3 actions\n"
    assert [file.name for file in Path("found").iterdir()] == ["run.json"]
    frames = film_in(text_of("found.html"))["frames"]
    assert [bool(frame.get("broken")) for frame in frames] == [False, True, False]
    assert frames[1]["dead"]
    assert not frames[2]["ran"]
    assert "kvcheck replay found/run.json --target toy" in text_of("found.html")


def test_a_recording_needs_no_target(capsys: pytest.CaptureFixture[str]) -> None:
    example = str(COUNTEREXAMPLES / "failed-load-shared-block")
    assert run(["replay", example, "--target", "model@0.28.0", "--record", "trace.json"]) == 1
    assert run(["export", "trace.json", "--to", "html", "--out", "page.html"]) == 0
    assert capsys.readouterr().out.endswith("page.html: violated, 6 actions\n")
    assert "content.attention full complete" in text_of("page.html")


def test_a_hang_has_a_page_of_its_actions(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("hangs.json"), run_of("hang-x"))
    assert run(["export", "hangs.json", "--to", "html", "--target", "toy"]) == 0
    assert "violated" in capsys.readouterr().out
    page = text_of("hangs.html")
    assert "there is no recording of this run" in page
    assert [bool(frame.get("broken")) for frame in film_in(page)["frames"]] == [False, True, False]


def test_a_run_of_which_nothing_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    example = str(COUNTEREXAMPLES / "checkpoint-behind-partial-hit")
    assert run(["export", example, "--to", "html", "--target", "model", "--out", "page.html"]) == 2
    assert capsys.readouterr().out.startswith("page.html: undetermined")
    assert "not-supported: the model has no prefill checkpoints" in text_of("page.html")
    assert ">passed<" not in text_of("page.html")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["missing.json", "--to", "html"], "cannot read missing.json"),
        (["run.json", "--to", "pdf"], "'pdf' is not"),
        (["run.json"], "--to"),
        (["run.json", "--to", "html", "--out", "."], "it is a folder"),
        (["run.json", "--to", "html", "--target", "nothing"], "nothing"),
        (["empty.json", "--to", "html"], "no actions"),
        (["lies.json", "--to", "html"], "lies.json: the recording contradicts itself"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("run.json"), run_of("a"))
    write_run(Path("empty.json"), Run(layout=LAYOUT, actions=()))
    trace = judged(run_of("a"), "model").trace
    assert trace is not None
    lies = [msgspec.structs.replace(seen, plan=None) for seen in trace.observations]
    write_trace(Path("lies.json"), msgspec.structs.replace(trace, observations=tuple(lies)))
    assert run(["export", *arguments]) == 3
    told = capsys.readouterr().err
    assert complaint in told
    assert told.count("\n") == 1


def test_pages_need_an_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    write_run(Path("run.json"), run_of("a"))
    for arguments in (["export", "run.json", "--to", "html"], ["fuzz", "--runs", "1", "--html", "c.html"]):
        assert run(arguments) == 3
        assert capsys.readouterr().err == (
            "kvcheck: pages need the extra html (pip install '.[html]' in the clone of kvcheck)\n"
        )


@pytest.mark.release
def test_a_page_of_a_real_release(capsys: pytest.CaptureFixture[str]) -> None:
    release("0.28.0")
    example = str(COUNTEREXAMPLES / "failed-load-shared-block")
    assert run(["export", example, "--to", "html", "--target", "vllm==0.28.0", "--out", "page.html"]) == 0
    assert capsys.readouterr().out == "page.html: violated, 6 actions\n"
    reads = [read for frame in film_in(text_of("page.html"))["frames"] for read in frame.get("wrong", [])]
    assert "what a failed load left" in {read["found"] for read in reads}


# ---- fuzz ------------------------------------------------------------------------------------------------------------

FUZZ = [
    "fuzz",
    "--fresh",
    "--target",
    "toy",
    "--runs",
    "4",
    "--seed",
    "7",
    "--jobs",
    "1",
    "--html",
    "c.html",
    "--json",
    "c.json",
]


def test_a_campaign_has_a_page_and_one_for_each_violation(toys: Any) -> None:
    toys("- fail-x")
    assert run(FUZZ) == 1
    (page,) = Path("c-runs").iterdir()
    assert f'href="c-runs/{page.name}#step=0"' in text_of("c.html")
    assert "violated" in text_of("c.html")
    assert 'href="../c.html"' in text_of(str(page))
    assert any(frame.get("broken") for frame in film_in(text_of(str(page)))["frames"])


def test_pages_of_another_campaign_go_and_nothing_else(toys: Any) -> None:
    toys("- fail-x")
    assert run(FUZZ) == 1
    Path("c-runs/mine.html").write_text("mine")
    toys("- fall")
    assert run(FUZZ) == 1
    assert {one.name for one in Path("c-runs").iterdir()} == {"system.exception-ValueError-fall.html", "mine.html"}


def test_a_violation_that_was_not_replayed_is_recorded_for_its_page(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    toys("fail-x")
    monkeypatch.setattr("kvcheck.engines.campaign.Campaign._confirm", lambda _self, _watched, _bucket: None)
    assert run(FUZZ) == 1
    assert "no time to shrink and replay it" in text_of("c.html")
    (page,) = Path("c-runs").iterdir()
    assert any(frame.get("broken") for frame in film_in(text_of(str(page)))["frames"])


def test_a_run_that_no_page_can_show_is_named_all_the_same(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    toys("fail-x")
    monkeypatch.setattr(pages_of_runs, "MOST_CELLS", 1)
    assert run(FUZZ) == 1
    assert "system.exception AssertionError fail</b>" in text_of("c.html")
    assert "no page" in text_of("c.html")
    assert not Path("c-runs").exists()


def test_a_campaign_that_passes_says_so(toys: Any) -> None:
    toys("-")
    assert run(FUZZ) == 0
    assert "None was found." in text_of("c.html")
    assert not Path("c-runs").exists()


def test_pages_that_cannot_be_written_make_no_violation_undone(
    toys: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for labels, status in (("fail-x", 1), ("-", 2)):
        toys(labels)
        with monkeypatch.context() as patch:
            patch.setattr(fuzz, "recordings", lambda result: patch.setattr(os, "fsync", full) or {})
            assert run(FUZZ) == status
        assert capsys.readouterr().err == "kvcheck: cannot write c.html: the disk is full\n"
        assert Path("c.json").exists()


def test_a_target_that_is_gone_costs_pages_only(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    toys("fail-x")
    monkeypatch.setattr("kvcheck.engines.campaign.Campaign._confirm", lambda _self, _watched, _bucket: None)
    monkeypatch.setattr(afterwards, "Watched", _refused)
    assert run(FUZZ) == 1
    assert "system.exception AssertionError fail" in text_of("c.html")
    assert not Path("c-runs").exists()


def _refused(spec: str, **fields: Any) -> Watched:
    return Watched("refused", **{**fields, "expected": None})
