"""Recordings of live servers: identities, the file, what becomes of a recording that is cut or says the unsayable."""

from __future__ import annotations

import json
import logging
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import replace
from releases import output_of

from kvcheck.cli.main import run
from kvcheck.engines import retracing
from kvcheck.engines.retracing import CUT_OFF, retraceable
from kvcheck.files import MOST_TOKEN, InputError, Stated, read_run, stated_of, write_run
from kvcheck.model.actions import Abort, Arrive, Complete, Run, Schedule
from kvcheck.model.content import Prefixes
from kvcheck.model.layout import Group, Layout
from kvcheck.model.observation import Failure
from kvcheck.targets.recording import (
    Aborted,
    Arrived,
    Closed,
    Ended,
    Opened,
    Outside,
    Planned,
    Raised,
    Sampled,
    Told,
    encode,
    is_recording,
    read_recording,
    tokens_of,
)
from kvcheck.targets.vllm import live_layout, plugin
from kvcheck.targets.vllm.identities import Identities
from kvcheck.targets.vllm.live import AtOnce, LiveRecorder
from kvcheck.targets.vllm.plugin import FileSink, Writer, record_schedulers

PROJECT = Path(__file__).parents[2]
LAYOUT = Layout(groups=(Group(kind="full", block_size=2),), num_blocks=20, max_model_len=16, token_budget=16)
OPENED = Opened(kvcheck="0.1.0", vllm="0.33.0", layout=LAYOUT)


def packed(*tokens: int) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


def arrived(request: int, **fields: object) -> Arrived:
    return Arrived(request=request, prompt=packed(5, 6, 7), max_tokens=3, **fields)  # type: ignore[arg-type]


def written(path: Path, *lines: object, tail: bytes = b"") -> Path:
    path.write_bytes(b"".join(encode(line) + b"\n" for line in lines) + tail)  # type: ignore[arg-type]
    return path


# ---- identities ------------------------------------------------------------------------------------------------------


def test_equal_prefixes_have_equal_identities_and_nothing_after_a_difference_has() -> None:
    identities, rng = Identities(), random.Random(1)
    tokens = [rng.randrange(150_000) for _ in range(300)]
    other = [*tokens[:120], tokens[120] + 1, *tokens[121:]]
    mine, theirs = tokens_of(identities.of(tokens)[0]), tokens_of(identities.of(other)[0])
    assert mine[:120] == theirs[:120]
    assert not set(mine[120:]) & set(theirs[120:])
    assert len(set(mine)) == len(tokens)


def test_identities_go_on_where_a_prompt_ended() -> None:
    identities, tokens = Identities(), list(range(100, 164))
    whole, _ = identities.of(tokens)
    head, state = identities.of(tokens[:23])
    tail, _ = identities.of(tokens[23:], 23, state)
    assert head + tail == whole
    assert identities.of([], 64, 7) == (b"", 7)


def test_another_recording_has_other_identities() -> None:
    tokens = [7] * 50
    assert not set(tokens_of(Identities().of(tokens)[0])) & set(tokens_of(Identities().of(tokens)[0]))
    assert Identities().name("tenant") != Identities().name("tenant")


# ---- the file --------------------------------------------------------------------------------------------------------


def test_a_file_that_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("mine")
    sinks = [FileSink(tmp_path / "r") for _ in range(2)]
    assert [sink.path.name for sink in sinks] == ["r.2", "r.3"]
    assert (tmp_path / "r").read_text() == "mine"


def test_in_a_folder_a_recording_is_a_new_file(tmp_path: Path) -> None:
    sinks = [FileSink(tmp_path) for _ in range(2)]
    assert [sink.path for sink in sinks] == [tmp_path / "kvcheck.jsonl", tmp_path / "kvcheck.jsonl.2"]


@pytest.mark.parametrize(("value", "file"), [("new/", "new/kvcheck.jsonl"), ("new", "new"), ("0", "0")])
def test_the_variable_is_a_name(value: str, file: str) -> None:
    code = """
        import sys, types
        from kvcheck.targets.vllm import plugin
        module = types.SimpleNamespace(Scheduler="Scheduler", AsyncScheduler="AsyncScheduler")
        sys.modules.update({f"vllm{name}": module for name in ("", ".v1", ".v1.core", ".v1.core.sched")})
        sys.modules["vllm.v1.core.sched.scheduler"] = sys.modules["vllm.v1.core.sched.async_scheduler"] = module
        plugin.record_schedulers = print
        plugin.register()
    """
    assert output_of(code, PYTHONPATH=str(PROJECT), KVCHECK_RECORD=value).strip() == f"{file} Scheduler AsyncScheduler"


def test_what_can_wait_is_done_in_order() -> None:
    writer, done = Writer(), []
    for number in range(5):
        writer.later(done.append, number)
    assert done == []
    writer.catch_up()
    assert done == [0, 1, 2, 3, 4]


def test_a_last_line_that_is_cut_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "r", OPENED, arrived(0), tail=b'{"line":"pla')
    assert is_recording(path)
    recording = read_recording(path)
    assert (recording.cut, len(recording.lines)) == (True, 1)


def test_every_difference_has_words() -> None:
    fields = {field for kind in (Told, Planned, Raised) for field in kind.__struct_fields__}
    assert set(retracing.WORDS) == fields - {"during"}
    failure = Failure(type="KeyError", function="free", file="", line=1, message="")
    step = retracing.Step([], Raised(during="schedule", failure=failure))
    told = retracing._parted(step, [Planned()])
    assert told == "the live server raised KeyError in free, and the release planned a step"
    told = retracing._parted(retracing.Step([], Planned(counts=[2])), [Planned(counts=[4])])
    assert told == "tokens that each request runs: 2 on the live server, 4 on the release (entry 0)"


def test_an_empty_file_has_one_complaint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "r")
    for command in ("record", "replay", "bisect"):
        assert run([command, str(path)]) == 3
        assert capsys.readouterr().err == f"kvcheck: {path}: nothing is in it\n"


@pytest.mark.parametrize("content", [b"", b"{}\n", b'{"line":"closed"}\n', b'{"line":"opened"\n'])
def test_what_is_no_recording_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_recording(tmp_path / "r")
    assert "\n" not in str(refused.value)


# ---- as a run --------------------------------------------------------------------------------------------------------


def lines_of_a_request() -> list[object]:
    return [
        arrived(0),
        Planned(who=[0], counts=[3], new=[(0, 0, ((1, 2),))]),
        Sampled(),
        arrived(1),
        Aborted(),
        Told(ended=[Ended(request=1, why="aborted"), Ended(request=0, why="aborted", sampled=packed(8))]),
    ]


def test_a_recording_is_a_run(tmp_path: Path) -> None:
    path = written(tmp_path / "r", OPENED, *lines_of_a_request(), Closed())
    found = retraceable(read_recording(path))
    assert found.undetermined == ""
    assert found.run.actions == (
        Arrive(label="r0", prompt=(5, 6, 7), max_tokens=3, sampled=(8,)),
        Schedule(),
        Complete(),
        Arrive(label="r1", prompt=(5, 6, 7), max_tokens=3),
        Abort(label="r1"),
        Abort(label="r0"),
    )


def test_a_server_that_was_killed_may_have_died_in_a_pass(tmp_path: Path) -> None:
    found = retraceable(read_recording(written(tmp_path / "r", OPENED, arrived(0))))
    assert found.undetermined == CUT_OFF
    assert found.run.actions[1:] == (Schedule(),)


@pytest.mark.parametrize("line", [Outside(why="a load that failed"), arrived(1, outside="structured output")])
def test_what_no_action_can_say_ends_the_run(line: object, tmp_path: Path) -> None:
    found = retraceable(read_recording(written(tmp_path / "r", OPENED, arrived(0), line, arrived(2))))
    assert found.undetermined.startswith("outside: ")
    assert len(found.run.actions) == 1


def test_a_server_that_no_layout_can_say_is_undetermined(tmp_path: Path) -> None:
    opened = Opened(kvcheck="0.1.0", vllm="0.33.0", layout=None, outside=("pipeline parallelism",))
    found = retraceable(read_recording(written(tmp_path / "r", opened)))
    assert (found.undetermined, found.steps) == ("outside: pipeline parallelism", [])


@pytest.mark.parametrize(
    "line",
    [
        Sampled(),
        Told(),
        Told(log=[("asked", (0,))]),
        Arrived(request=1, prompt=b"abc", max_tokens=3),
        Arrived(request=1, prompt=b"\xff" * 4, max_tokens=3),
        Closed(),
    ],
)
def test_a_recording_that_contradicts_itself_is_refused(line: object, tmp_path: Path) -> None:
    path = written(tmp_path / "r", OPENED, line, Closed())
    with pytest.raises(InputError, match="contradicts itself") as refused:
        retraceable(read_recording(path))
    assert str(refused.value).startswith(f"{path}: ")


@pytest.mark.parametrize("end", [Closed(), Outside(why="a load that failed"), arrived(1)])
@pytest.mark.parametrize("opened", [OPENED, replace(OPENED, layout=None)])
def test_two_recordings_in_one_file_are_refused(opened: Opened, end: object, tmp_path: Path) -> None:
    path = written(tmp_path / "r", opened, arrived(0), end, OPENED, arrived(0), Closed())
    with pytest.raises(InputError, match="two recordings in one file"):
        read_recording(path)


@pytest.mark.parametrize(
    ("layout", "line"),
    [
        (replace(LAYOUT, groups=()), Closed()),
        (replace(LAYOUT, groups=(Group(kind="full", block_size=0),)), Closed()),
        (replace(LAYOUT, num_blocks=1), Closed()),
        (LAYOUT, arrived(1, priority=2**70)),
        (LAYOUT, Arrived(request=1, prompt=b"", max_tokens=-1)),
    ],
)
def test_a_recording_of_a_run_that_replay_would_refuse_is_refused(
    layout: Layout, line: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "r", replace(OPENED, layout=layout), line)
    assert run(["record", str(path), "--out", str(tmp_path / "run.json")]) == 3
    assert capsys.readouterr().err.startswith(f"kvcheck: {path}: ")
    assert not (tmp_path / "run.json").exists()


def test_a_request_without_an_end_of_its_own_can_be_told(tmp_path: Path) -> None:
    path = written(tmp_path / "r", OPENED, Arrived(request=0, prompt=packed(1), max_tokens=2**63 - 1))
    assert retraceable(read_recording(path)).run.actions[0] == Arrive(label="r0", prompt=(1,), max_tokens=MOST_TOKEN)


def test_a_recorded_answer_is_what_sampling_gives() -> None:
    arrive = Arrive(label="a", prompt=(1, 2), sampled=(9, 9))
    told = Prefixes(arrive.sequence).token_list(5)
    assert told[:4] == [1, 2, 9, 9]
    assert told[4] in (1, 2, 3, 4)


def test_what_only_the_live_server_has_is_a_difference() -> None:
    live = {"scheduler.a": 1, "scheduler.b": None, "scheduler.c": 3}
    made = {"scheduler.a": 2, "scheduler.c": 3, "scheduler.d": 4, "scheduler.hook": "set"}
    assert live_layout.differing(live, made) == [
        "scheduler.a is 1 and not 2",
        "scheduler.b is None and not absent",
    ]
    assert live_layout.differing(live, live) == []


# ---- commands --------------------------------------------------------------------------------------------------------


def test_the_command_says_how_and_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["record"]) == 0
    assert "KVCHECK_RECORD=FILE vllm serve" in capsys.readouterr().out
    path = written(tmp_path / "r", OPENED, *lines_of_a_request(), Closed())
    out = tmp_path / "run.json"
    assert run(["record", str(path), "--out", str(out)]) == 0
    assert "2, 1 passes, 2 aborted" in capsys.readouterr().out
    assert len(read_run(out).actions) == 6
    assert run(["record", str(tmp_path / "nothing")]) == 3
    assert run(["record", "--out", str(out)]) == 3


def test_the_command_tells_what_the_server_raised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failure = Failure(type="KeyError", function="free", file="vllm/pool.py", line=7, message="")
    path = written(tmp_path / "r", OPENED, arrived(0), Raised(during="schedule", failure=failure), Closed())
    out = str(tmp_path / "run.json")
    assert run(["record", str(path), "--json", str(tmp_path / "report.json"), "--out", out]) == 0
    assert stated_of(Path(out)) == Stated(target="vllm==0.33.0", signature="system.exception KeyError free")
    told = "the server raised KeyError in free (vllm/pool.py:7)"
    assert told in capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["ended_in_order"], report["raised"]) == (False, told)


@pytest.mark.parametrize("arguments", [["record", "--out"], ["record", "--json"], ["replay", "--json"]])
def test_a_recording_is_not_overwritten(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "r", OPENED, *lines_of_a_request(), Closed())
    before = path.read_bytes()
    command, option = arguments
    assert run([command, str(path), option, str(path)]) == 3
    assert "it is what is read" in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    [["shrink", "--target", "model"], ["bisect"], ["replay", "--record", "x"], ["export", "--to", "pytest"]],
)
def test_what_needs_a_run_tells_how_a_recording_becomes_one(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "r", OPENED, *lines_of_a_request(), Closed())
    assert run([arguments[0], str(path), *arguments[1:]]) == 3
    assert f"becomes a run first: kvcheck record {path} --out RUN" in capsys.readouterr().err


def test_a_run_is_no_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run.json", Run(layout=LAYOUT, actions=()))
    assert run(["record", str(tmp_path / "run.json")]) == 3
    assert "not a recording of a live server, but a run or a trace" in capsys.readouterr().err


def test_a_recording_of_no_known_version_needs_a_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "r", Opened(kvcheck="0.1.0", vllm="", layout=LAYOUT), arrived(0))
    out = str(tmp_path / "run.json")
    assert run(["record", str(path), "--out", out]) == 0
    for recorded in (str(path), out):
        assert run(["replay", recorded]) == 3
        assert "--target path:DIR" in capsys.readouterr().err


def test_a_broken_recording_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "r", OPENED, tail=b"nonsense\n")
    assert run(["replay", str(path)]) == 3
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


# ---- off unless asked ------------------------------------------------------------------------------------------------


def test_without_the_variable_the_plugin_imports_and_touches_nothing() -> None:
    code = """
        import sys
        from kvcheck.targets.vllm.plugin import register
        register()
        print(sorted(name for name in sys.modules if name.startswith(("vllm", "numpy", "msgspec", "kvcheck."))))
    """
    environment = {"PYTHONPATH": str(PROJECT), "KVCHECK_RECORD": ""}
    names = ["kvcheck.targets", "kvcheck.targets.vllm", "kvcheck.targets.vllm.plugin"]
    assert output_of(code, **environment).strip() == str(names)
    assert os.environ.get("KVCHECK_RECORD") is None


# ---- a scheduler that cannot be recorded, or no more -----------------------------------------------------------------


class Pool:
    """As much of a block pool as is hooked."""

    def get_new_blocks(self, num_blocks: int) -> list[Any]:
        return [SimpleNamespace(block_id=number, is_null=False, ref_cnt=1) for number in range(num_blocks)]

    def touch(self, blocks: Any) -> None: ...

    def free_blocks(self, blocks: Any) -> None: ...

    def evict_blocks(self, blocks: Any) -> None: ...

    def reset_prefix_cache(self) -> bool:
        return True


class Scheduler:
    """As much of a scheduler as is hooked."""

    connector = None

    def __init__(self) -> None:
        self.kv_cache_manager = SimpleNamespace(block_pool=Pool())

    def schedule(self) -> None: ...

    def add_request(self, request: Any) -> None: ...

    def update_from_output(self, planned: Any, output: Any) -> None: ...

    def update_draft_token_ids(self, drafts: Any) -> None: ...

    def finish_requests(self, labels: Any, status: Any) -> None: ...

    def set_pause_state(self, state: Any) -> None: ...

    def reset_prefix_cache(self) -> bool:
        return True

    def _free_request(self, request: Any) -> None: ...

    def shutdown(self) -> None: ...


METHODS = [
    (owner, name)
    for owner in (Pool, Scheduler)
    for name in vars(owner)
    if hasattr(getattr(owner, name), "__code__") and name != "__init__"
]


@pytest.fixture
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_layout, "layout_of", lambda _scheduler: LAYOUT)
    monkeypatch.setattr(live_layout, "settings_of", lambda _scheduler: {})


@pytest.mark.usefixtures("_known")
@pytest.mark.parametrize(("owner", "name"), METHODS)
def test_a_scheduler_without_a_method_that_is_hooked_is_left_as_it_is(
    owner: type, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(owner, name)
    kind = type("Recorded", (Scheduler,), {})
    record_schedulers(tmp_path / "r", kind)
    with caplog.at_level(logging.WARNING):
        scheduler = kind()
    assert list(vars(scheduler)) == ["kv_cache_manager"]
    assert vars(scheduler.kv_cache_manager.block_pool) == {}
    found = retraceable(read_recording(tmp_path / "r"))
    assert found.undetermined.startswith("outside: its scheduler is not known here")
    assert name in found.undetermined
    assert f"nothing is recorded: {found.undetermined.removeprefix('outside: ')}" in caplog.text


def test_a_scheduler_is_looked_at_when_its_subclass_has_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and again where the first attempt to make it failed."""
    base = type("Base", (Scheduler,), {})

    class Later(base):  # type: ignore[misc, valid-type]
        def __init__(self, fail: bool = False) -> None:
            super().__init__()
            if fail:
                raise ValueError("no")
            self.set_later = True

    seen: list[bool] = []
    monkeypatch.setattr(plugin, "start", lambda scheduler, _: seen.append(hasattr(scheduler, "set_later")))
    for _ in range(2):
        record_schedulers(tmp_path / "r", base, Later)
    with pytest.raises(ValueError, match="no"):
        Later(fail=True)
    Later()
    base()
    assert seen == [True, False]


class Waiting(AtOnce):
    """What a recorder has asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def later(self, work: Any, *arguments: Any) -> None:
        self.asked.append("later")
        work(*arguments)

    def catch_up(self) -> None:
        self.asked.append("catch up")

    def stop(self) -> None:
        self.asked.append("stop")


def whatever_happens(scheduler: Any) -> None:
    """To a server and its pool."""
    pool = scheduler.kv_cache_manager.block_pool
    pool.free_blocks(pool.get_new_blocks(2))
    pool.touch(pool.get_new_blocks(1))
    pool.evict_blocks({1})
    pool.reset_prefix_cache()
    scheduler.add_request(SimpleNamespace())
    scheduler.schedule()
    scheduler._free_request(SimpleNamespace())
    scheduler.reset_prefix_cache()


@pytest.mark.usefixtures("_known")
def test_a_recording_that_has_ended_asks_for_nothing_more() -> None:
    scheduler, lines, pace = Scheduler(), [], Waiting()
    recorder = LiveRecorder(scheduler, lines.append, pace=pace)
    recorder.outside("a load that failed")
    assert pace.asked[-2:] == ["stop", "catch up"]
    before = len(lines), len(pace.asked)
    whatever_happens(scheduler)
    assert (len(lines), len(pace.asked)) == before


@pytest.mark.usefixtures("_known")
def test_a_recording_that_cannot_begin_asks_for_nothing() -> None:
    def full(_line: object) -> None:
        raise OSError("the disk is full")

    scheduler, pace = Scheduler(), Waiting()
    with pytest.raises(OSError, match="disk is full"):
        LiveRecorder(scheduler, full, pace=pace)
    whatever_happens(scheduler)
    assert pace.asked == []


def test_the_writer_ends_with_the_recording() -> None:
    writer = Writer()
    writer.start()
    writer.stop()
    writer.join(timeout=60)
    assert not writer.is_alive()


class Made:
    """An object like the server's: a default of its class, an attribute from a helper, and one that is computed."""

    default = 1

    def __init__(self) -> None:
        self.own = 3
        self.default = 2
        self.helped()

    def helped(self) -> None:
        self.more = None

    @property
    def computed(self) -> int:
        return self.own


class MadeToo(Made):
    """One more, from a subclass."""

    def __init__(self) -> None:
        super().__init__()
        self.last = "x"


def test_attributes_are_known_without_the_dictionary_of_an_object() -> None:
    made = MadeToo()
    assert dict(live_layout._attributes(made)) == vars(made)
