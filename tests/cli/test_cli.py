"""The command line: reports, exit statuses, one-line complaints. Toy targets stand for releases."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from toys import LAYOUT, arrival, run_of

from kvcheck.cli.commands import fuzz
from kvcheck.cli.main import run
from kvcheck.files import (
    read_run,
    run_text,
    stated_signature,
    write_json,
    write_run,
    write_trace,
    write_whole,
)
from kvcheck.model.actions import Schedule
from kvcheck.model.layout import Group
from kvcheck.model.observation import Observation, Promises, Retold, TargetInfo, Trace
from kvcheck.report.console import Screen

CORE = ["version", "kvcheck", "verdict", "target", "target_resolved", "seed", "runs", "actions", "seconds",
        "interrupted", "violations", "undetermined", "witnesses", "actions_by_kind"]  # fmt: skip
TWO_GROUPS = msgspec.structs.replace(LAYOUT, groups=(*LAYOUT.groups, Group(kind="mla", block_size=2)), num_blocks=40)
VIOLATION = ["signature", "invariant", "severity", "message", "layout", "needs", "run", "actions", "times", "known",
             "reproduce"]  # fmt: skip


def report_of(path: str) -> Any:
    return json.loads(Path(path).read_text())


def test_a_campaign_that_finds_something(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    toys("- fail-x")
    assert run(["fuzz", "--target", "toy", "--runs", "10", "--seed", "7", "--jobs", "2", "--json", "f.json"]) == 1
    report = report_of("f.json")
    assert list(report)[: len(CORE)] == CORE
    assert (report["verdict"], report["seed"], report["runs"], report["target"]) == ("violated", 7, 10, "toy")
    (violation,) = report["violations"]
    assert list(violation)[: len(VIOLATION)] == VIOLATION
    assert violation["signature"] == "system.exception AssertionError fail"
    assert violation["actions"] == len(read_run(Path(violation["run"])).actions) == 1
    assert violation["reproduce"] == f"kvcheck replay {violation['run']} --target toy"
    assert violation["times"] > 1
    shown = capsys.readouterr().out
    assert "the engine dies, and every request in it" in shown
    assert violation["reproduce"] in shown
    assert re.search(r"^violated: 1 violation ", shown, re.MULTILINE)
    assert "\x1b" not in shown

    assert run(violation["reproduce"].split()[1:]) == 1
    assert "violated" in capsys.readouterr().out


def test_a_campaign_that_passes(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    toys("-")
    assert run(["fuzz", "--target", "toy", "--runs", "4", "--jobs", "1", "--json", "f.json"]) == 0
    report = report_of("f.json")
    assert (report["verdict"], report["violations"], report["undetermined"]) == ("passed", [], [])
    shown = capsys.readouterr().out
    assert f"seed     {report['seed']}" in shown
    assert "4 runs" in shown
    assert "no proof" in shown


def test_a_campaign_that_cannot_tell(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    toys("- - crash")
    assert run(["fuzz", "--target", "toy", "--runs", "6", "--seed", "1", "--jobs", "1", "--json", "f.json"]) == 2
    assert {item["code"] for item in report_of("f.json")["undetermined"]} == {"worker-died"}
    assert "passed" not in capsys.readouterr().out


def test_json_to_stdout_is_nothing_but_json(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    toys("-")
    assert run(["fuzz", "--target", "toy", "--runs", "2", "--jobs", "1", "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["verdict"] == "passed"
    assert "passed" in captured.err


def test_a_full_disk(toys: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    toys("fail-x")
    assert run(["fuzz", "--target", "toy", "--runs", "1", "--jobs", "1", "--json", "f.json"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "kvcheck: cannot write f.json: the disk is full\n"
    assert re.search(r"^undetermined: cannot-write: .*the disk is full$", captured.out, re.MULTILINE)
    toys("-")
    assert run(["fuzz", "--target", "toy", "--runs", "1", "--jobs", "1", "--json", "f.json", "--fresh"]) == 2


def test_a_full_disk_behind_stdout(
    toys: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for label, status in (("fail-x", 1), ("a", 2)):
        write_run(Path("run.json"), run_of(label))
        with Path("/dev/full").open("w", encoding="utf-8") as full, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", full)
            assert run(["replay", "run.json", "--target", "toy", "--json", "-"]) == status
        told = capsys.readouterr().err
        assert "broken" in told or status == 2
        assert told.endswith("kvcheck: cannot write to stdout: No space left on device\n")
    with Path("/dev/full").open("w", encoding="utf-8") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        assert run(["layouts", "--json", "-"]) == 2


def test_a_layout_from_a_file_that_the_target_does_not_support(toys: Any) -> None:
    toys("-")
    write_json(Path("layout.json"), TWO_GROUPS)
    arguments = ["fuzz", "--target", "toy", "--runs", "2", "--jobs", "1", "--json", "f.json", "--layout", "layout.json"]
    assert run(arguments) == 2
    assert [item["code"] for item in report_of("f.json")["undetermined"]] == ["not-supported"]


def test_a_recording_that_is_cut_off_is_not_passed(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("run.json"), run_of("-"))
    assert run(["replay", "run.json", "--target", "toy", "--record", "whole.json"]) == 0
    whole = json.loads(Path("whole.json").read_text())
    cut = {**whole, "observations": whole["observations"][:-1]}
    Path("cut.json").write_text(json.dumps(cut))
    assert run(["replay", "cut.json"]) == 2
    assert "cut-off: what the last 1 actions showed is not in the recording" in capsys.readouterr().out
    Path("twice.json").write_text(json.dumps({**whole, "observations": whole["observations"] * 2}))
    assert run(["replay", "twice.json"]) == 3
    assert "the observations are not those of its actions" in capsys.readouterr().err
    assert run(["replay", "run.json", "--target", "toy", "--record", "/dev/full"]) == 2


def test_replay_of_a_run_and_of_its_recording(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("case/run.json"), run_of("fail-x"))
    write_json(Path("case/expected.json"), {"version": 1, "expected": {"a": "passed", "toy-2": "violated"}})
    assert run(["replay", "case", "--record", "trace.json", "--json", "r.json"]) == 1
    report = report_of("r.json")
    assert list(report)[: len(CORE)] == CORE
    assert report["target"] == "toy-2"
    assert report["runs"] == 1
    capsys.readouterr()
    assert run(["replay", "trace.json"]) == 1
    assert "AssertionError" in capsys.readouterr().out


def test_replay_verdicts(toys: Any) -> None:
    for labels, status in (("a", 0), ("mistake", 2), ("crash", 2), ("hang", 1)):
        write_run(Path("run.json"), run_of(labels))
        assert run(["replay", "run.json", "--target", "toy", "--json", "r.json"]) == status, labels
    write_run(Path("run.json"), msgspec.structs.replace(run_of(), actions=()))
    assert run(["replay", "run.json", "--target", "toy", "--json", "r.json"]) == 2
    assert report_of("r.json")["undetermined"][0]["code"] == "nothing-happened"


def test_shrink(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("run.json"), run_of("a", "b", "fail-x", "c"))
    write_run(Path("found/run.json"), run_of("a", "b", "fail-x", "c"))
    assert run(["shrink", "found", "--target", "toy", "--seconds", "10", "--json", "s.json"]) == 1
    assert len(read_run(Path("found.shrunk.json")).actions) == 1
    assert run(["replay", "found.shrunk.json"]) == 1  # on the target that it was shrunk on
    assert stated_signature(Path("found.shrunk.json")) == "system.exception AssertionError fail"
    assert [file.name for file in Path("found").iterdir()] == ["run.json"]
    assert report_of("s.json")["violations"][0]["actions"] == 1
    assert "5 actions before" not in capsys.readouterr().err
    assert run(["shrink", "run.json", "--target", "toy", "--out", "/dev/full", "--json", "s.json"]) == 1
    captured = capsys.readouterr()
    assert "its run could not be written" in captured.out
    assert captured.err == "kvcheck: cannot write /dev/full: the disk is full\n"
    assert report_of("s.json")["verdict"] == "violated"
    assert run(["shrink", "run.json", "--target", "toy", "--signature", " system.exception  AssertionError"]) == 1
    assert run(["shrink", "run.json", "--target", "toy", "--signature", "system.exception Assert"]) == 3
    write_run(Path("run.json"), run_of("a"))
    assert run(["shrink", "run.json", "--target", "toy"]) == 0


def test_shrink_keeps_the_violation_that_the_counterexample_is_about(
    toys: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(Path("case/run.json"), run_of("fail-x"))
    write_json(Path("case/expected.json"), {"version": 1, "expected": {}, "signature": "another one"})
    assert run(["shrink", "case", "--target", "toy"]) == 3
    assert "shows system.exception AssertionError fail, not another one" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["targets", "layouts", "invariants", "witnesses"])
def test_lists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--json", "-"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["version"] == 1
    assert len(captured.err.splitlines()) >= len(report[command]) > 3


def test_a_layout_that_is_shown_can_be_used(capsys: pytest.CaptureFixture[str], toys: Any) -> None:
    assert run(["layouts", "show", "gptoss", "--release", "0.28.0"]) == 0
    Path("layout.json").write_text(capsys.readouterr().out)
    toys("-")
    arguments = ["fuzz", "--target", "toy", "--runs", "1", "--layout", "layout.json", "--json", "f.json"]
    assert run(arguments) == 2  # a toy has one group
    assert report_of("f.json")["layout"]["groups"][0]["kind"] == "sliding_window"


BAD_FILES = {
    "x.json": b'{"version": 1, "layout": 5}',
    "y.json": b"not json",
    "z.json": b"\xff\xfe",
    "forged.json": run_text(run_of("a\n[1] passed")).encode(),
    "vast.json": run_text(run_of("a")).replace("[1,2,3]", "[1,2,9999999999999999999999]").encode(),
    "huge.json": run_text(run_of("a")).replace('"num_blocks":20', '"num_blocks":2000000').encode(),
}
TOO_LONG = "a-name-that-is-too-long" * 20
WRONG = [
    ["nosuch"],
    ["--bad"],
    [],
    ["fuzz", "--bad"],
    ["fuzz", "--seconds", "-1"],
    ["fuzz", "--seconds", "0"],
    ["fuzz", "--seconds", "nan"],
    ["fuzz", "--seconds", "x"],
    ["fuzz", "--runs", "0"],
    ["fuzz", "--jobs", "0"],
    ["fuzz", "--target", "nonsense"],
    ["fuzz", "--target", "model+"],
    ["fuzz", "--target", "vllm==1"],
    ["fuzz", "--target", "path:."],
    ["fuzz", "--target", "path:/nonexistent"],
    ["fuzz", "--target", "path:~nobody-is-called-this/x"],
    ["replay"],
    ["replay", "x.json"],
    ["replay", "y.json"],
    ["replay", "z.json"],
    ["replay", "none.json"],
    ["replay", "."],
    ["replay", TOO_LONG],
    ["replay", "torn.json"],
    ["replay", "forged.json"],
    ["replay", "vast.json"],
    ["replay", "huge.json"],
    ["replay", "good.json", "--target", "nonsense"],
    ["replay", "good.json", "--json", "."],
    ["shrink", "good.json"],
    ["shrink", "x.json", "--target", "path:."],
    ["shrink", "good.json", "--target", "model", "--out", TOO_LONG],
    ["shrink", TOO_LONG, "--target", "model"],
    ["fuzz", "--json", TOO_LONG],
    ["fuzz", "--out", TOO_LONG],
    ["fuzz", "--counterexamples", TOO_LONG],
    ["fuzz", "--database", TOO_LONG],
    ["fuzz", "--baseline", TOO_LONG, "--update-baseline"],
    ["export", TOO_LONG, "--to", "html"],
    ["record", "good.json", "--out", "good.json"],
    ["record", "good.json", "--json", "good.json"],
    ["replay", "good.json", "--json", "./good.json"],
    ["replay", "folder", "--json", "folder/run.json"],
    ["replay", "good.json", "--target", "model", "--record", "good.json"],
    ["shrink", "good.json", "--target", "model", "--out", "good.json"],
    ["export", "good.json", "--to", "html", "--out", "good.json"],
    ["bisect", "good.json", "--json", "good.json"],
    ["fuzz", "--layout", "good.json", "--json", "good.json"],
    ["shrink", "good.json", "--target", "model", "--signature", "no.such"],
    ["export", "good.json", "--to", "pytest", "--signature", ""],
    ["bisect", "good.json", "--signature", "no.such claim"],
    ["bisect", "good.json", "--targets", ","],
    ["bisect", "good.json", "--targets", ""],
    ["layouts", "show", "nosuch"],
    ["layouts", "show", "gptoss", "--release", "x"],
]


@pytest.mark.parametrize("arguments", WRONG, ids=[" ".join(arguments) or "nothing" for arguments in WRONG])
def test_wrong_usage_is_one_line_and_status_3(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in BAD_FILES.items():
        write_whole(Path(name), content)
    write_run(Path("good.json"), run_of("a"))
    unheard_of = Observation(index=0, log=(Retold("nobody", ()),))
    write_trace(Path("torn.json"), Trace(run_of("a"), TargetInfo(spec="toy"), Promises(), (unheard_of,)))
    write_run(Path("folder/run.json"), run_of("a"))
    assert run(arguments) == 3
    assert read_run(Path("good.json")) == read_run(Path("folder")) == run_of("a")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"kvcheck: [^\n]+\n", captured.err)


def test_a_run_without_a_request_says_nothing(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("run.json"), msgspec.structs.replace(run_of(), actions=(arrival("a", ()), Schedule())))
    assert run(["replay", "run.json", "--target", "toy"]) == 2
    assert "accept no request" in capsys.readouterr().out


def test_a_layout_that_the_level_cannot_drive(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fuzz", "--target", "toy", "--layout", "gdn_mtp_unit", "--level", "manager"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_a_layout_that_nothing_is_called(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fuzz", "--target", "toy", "--layout", "nosuch"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_a_mistake_of_kvcheck_is_undetermined(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatched = fuzz.describe
    try:
        fuzz.describe = lambda spec: spec.no_such_attribute  # type: ignore[assignment]
        assert run(["fuzz", "--target", "toy"]) == 2
    finally:
        fuzz.describe = monkeypatched
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "this is a bug of kvcheck" in told
    (file,) = Path("kvcheck-out").glob("error-*.txt")
    assert "Traceback" in file.read_text()


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert re.fullmatch(r"kvcheck \d+\.\d+\.\d+\n", capsys.readouterr().out)
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in ("fuzz", "replay", "shrink", "targets", "layouts", "invariants", "witnesses"):
        assert re.search(rf"^  {name} ", shown, re.MULTILINE)
        assert run([name, "--help"]) == 0


SCRIPT = """
import functools, sys
from toys import *
from kvcheck.cli.commands import fuzz
from kvcheck.cli.main import run
from kvcheck.engines.campaign import Plan
from kvcheck.model.actions import Schedule
from kvcheck.model.layout import Group
from kvcheck.model.observation import TargetInfo
fuzz.Plan = functools.partial(Plan, loader=LOADER)
fuzz.SEARCHERS["scheduler"] = SEARCHER
fuzz.describe = lambda spec: TargetInfo(spec=spec, version="1")
begin = fuzz.Campaign.run
def begun(*arguments):
    Path("begun").touch()  # from here on an interruption is answered
    return begin(*arguments)
fuzz.Campaign.run = begun
sys.exit(run(sys.argv[1:]))
"""


def started(labels: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """A campaign in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TOY_LABELS": labels}
    line = [sys.executable, "-c", SCRIPT, "fuzz", "--target", "toy", "--jobs", "2", *arguments]
    return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize(("labels", "status"), [("fail-x nap-0.2", 1), ("nap-0.2", 2)])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption(labels: str, status: int, number: signal.Signals) -> None:
    with started(labels, "--json", "f.json") as process:
        wait_for(lambda: Path("begun").exists())
        wait_for(lambda: status == 2 or list(Path().glob("kvcheck-out/*/*/run.json")))
        time.sleep(1.0)
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == status
    assert errors == ""
    report = report_of("f.json")
    assert report["interrupted"]
    assert len(report["violations"]) == (status == 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_after_the_search_loses_nothing(
    number: signal.Signals, toys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    show = fuzz.show_accounts

    def interrupted(*arguments: Any) -> None:
        os.kill(os.getpid(), number)
        assert report_of("f.json")["verdict"] == "violated"  # what nobody may lose is kept first
        assert Path("kvcheck-out/database").is_dir()
        show(*arguments)

    toys("fail-x")
    monkeypatch.setattr(fuzz, "show_accounts", interrupted)
    before = signal.getsignal(number)
    line = ["fuzz", "--target", "toy", "--runs", "1", "--jobs", "1", "--json", "f.json", "--sarif", "f.sarif"]
    assert run(line) == 1
    assert Path("f.sarif").exists()
    assert signal.getsignal(number) == before


def test_a_campaign_that_is_killed_has_kept_what_it_found() -> None:
    with started("fail-x nap-0.2") as process:
        wait_for(lambda: list(Path().glob("kvcheck-out/*/*/expected.json")))
        process.kill()
    (file,) = Path().glob("kvcheck-out/*/*/run.json")
    assert read_run(file).actions


@pytest.mark.parametrize(("labels", "status"), [("-", 0), ("fail-x", 1)])
def test_a_reader_that_goes_away_changes_neither_status_nor_report(labels: str, status: int) -> None:
    with started(labels, "--runs", "3", "--json", "f.json") as process:
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, errors = process.communicate(timeout=30)
    assert process.returncode == status
    assert errors == ""
    assert report_of("f.json")["verdict"] == ("violated" if status else "passed")


def test_a_screen_that_takes_no_more_is_told_once(toys: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        screen = Screen(full)
        screen.line("a")
        screen.line("b")
    assert capsys.readouterr().err == "kvcheck: cannot go on writing to the screen: No space left on device\n"


def test_colours_only_on_a_terminal() -> None:
    for arguments, coloured in (((), True), (("--no-color",), False)):
        leader, follower = pty.openpty()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TERM": "xterm-256color",
                       "TOY_LABELS": "fail-x"}  # fmt: skip
        environment.pop("NO_COLOR", None)
        line = [sys.executable, "-c", SCRIPT, "fuzz", "--target", "toy", "--runs", "2", "--jobs", "1", *arguments]
        process = subprocess.Popen(line, env=environment, stdout=follower, stderr=follower)
        os.close(follower)
        shown = _read_all(leader)
        process.wait()
        assert ("\x1b[1;31mviolated" in shown) == coloured
        assert "violated" in shown


def _read_all(descriptor: int) -> str:
    parts = []
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
    os.close(descriptor)
    return b"".join(parts).decode()


def test_a_model_that_cannot_be_imported_is_no_violation(tmp_path: Path) -> None:
    for name in ("model", "invariants", "kvcheck"):
        shutil.copytree(
            Path(__file__).parents[2] / name,
            tmp_path / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    with (tmp_path / "model" / "laws.py").open("a") as laws:
        laws.write("def (\n")
    line = [sys.executable, "-m", "kvcheck", "laws"]
    done = subprocess.run(
        line, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("kvcheck: cannot be loaded: SyntaxError: invalid syntax (laws.py, line ")
