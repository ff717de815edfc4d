"""Reading and writing runs, traces and layouts."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import msgspec
import pytest
from toys import LAYOUT, run_of

from kvcheck.files import (
    InputError,
    OutputError,
    Stated,
    append_text,
    expected_verdicts,
    read_layout,
    read_run,
    read_run_or_trace,
    require_apart,
    require_writable,
    run_text,
    stated_of,
    write_json,
    write_run,
    write_trace,
    write_whole,
)
from kvcheck.model.actions import Complete, Run
from kvcheck.model.observation import Observation, Promises, TargetInfo, Trace

RUN = run_of("a", "b")
TRACE = Trace(RUN, TargetInfo(spec="toy"), Promises(), (Observation(index=0, skipped="nothing"),))


def test_a_run_comes_back_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "run.json"
    run = msgspec.structs.replace(RUN, actions=(*RUN.actions, Complete(accepted={"a": 1})), note="a note")
    write_run(file, run)
    assert read_run(file) == run
    assert read_run(file.parent) == run
    assert read_layout(file) == run.layout


def test_a_run_without_actions_comes_back(tmp_path: Path) -> None:
    write_run(tmp_path / "run.json", msgspec.structs.replace(RUN, actions=()))
    assert read_run(tmp_path).actions == ()


def test_run_files_state_their_version_and_have_one_action_a_line() -> None:
    text = run_text(RUN)
    plain = msgspec.json.decode(text)
    assert plain["version"] == plain["layout"]["version"] == 1
    assert sum('"type"' in line for line in text.splitlines()) == len(RUN.actions)


def test_a_trace_is_told_by_its_content(tmp_path: Path) -> None:
    write_trace(tmp_path / "any.json", TRACE)
    assert read_run_or_trace(tmp_path / "any.json") == TRACE
    assert read_run(tmp_path / "any.json") == RUN
    assert read_layout(tmp_path / "any.json") == LAYOUT


def test_a_layout_file(tmp_path: Path) -> None:
    write_json(tmp_path / "layout.json", LAYOUT)
    assert read_layout(tmp_path / "layout.json") == LAYOUT
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    with pytest.raises(InputError, match="not a layout; of a model's config, kvcheck layouts from-config makes one"):
        read_layout(tmp_path / "config.json")


BAD = {
    "not json": "malformed",
    "": "nothing is in it",
    '"text"': "Expected `object`",
    "{}": "neither a run nor a trace",
    '{"version": 1, "kvcheck": "1", "verdict": "passed", "actions": 7}': "a report, and not a run",
    '{"version": 1, "layout": 5}': "Expected `object`, got `int`",
    '{"version": 2, "layout": {}, "actions": []}': "version 2 is not known",
    '{"version": "1", "actions": []}': "Expected `int`",
    '{"actions": [{"type": "dance"}], "layout": {"groups": [], "num_blocks": 1, "max_model_len": 1, '
    '"token_budget": 1}}': "dance",
    '{"actions": [], "layout": {"groups": [], "num_blocks": 9, "max_model_len": 1, "token_budget": 1}}': "R1",
    '{"actions": [], "layout": {"groups": [], "num_blocks": 9, "max_model_len": 1, "token_budget": 1, "colour": 1}}': (
        "unknown field `colour`"
    ),
    '{"line":"opened","version":1}\n{"line":"closed"}': "becomes a run first: kvcheck record",
    '{"version": 1, "kvcheck": "0.1.0", "verdict": "violated", "layout": null}': "a report",
    '{"observations": 1, "run": 2}': "Expected `array`",
    "[" * 100_000: "",
    '{"actions": ' + "[" * 100_000: "",
}


@pytest.mark.parametrize(("text", "told"), BAD.items(), ids=[text[:30] for text in BAD])
def test_bad_input_is_told_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read_run_or_trace(file)
    assert told in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    for raw in (b"\xff\xfe", b'{"version": 1, "note": "\xff", "actions": []}', b"\x00" * 10):
        (tmp_path / "x.json").write_bytes(raw)
        with pytest.raises(InputError):
            read_run(tmp_path / "x.json")


def test_what_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path, tmp_path / "x" / "y"):
        with pytest.raises(InputError, match="No such file"):
            read_run(path)


def test_expected_verdicts(tmp_path: Path) -> None:
    assert expected_verdicts(tmp_path) == {}
    write_json(tmp_path / "expected.json", {"version": 1, "expected": {"vllm==1.2.3": "violated"}})
    assert expected_verdicts(tmp_path) == expected_verdicts(tmp_path / "run.json") == {"vllm==1.2.3": "violated"}
    (tmp_path / "expected.json").write_text('{"expected": 3}')
    with pytest.raises(InputError):
        expected_verdicts(tmp_path)


def test_what_is_said_of_a_run_travels_in_its_file(tmp_path: Path) -> None:
    stated = Stated(expected={"vllm==1.2.3": "violated"}, signature="system.exception A b")
    write_run(tmp_path / "run.json", RUN, stated)
    write_json(tmp_path / "expected.json", {"version": 1, "expected": {"model": "violated"}})
    assert read_run(tmp_path / "run.json") == RUN
    assert stated_of(tmp_path / "run.json") == stated
    write_run(tmp_path / "run.json", RUN)
    assert expected_verdicts(tmp_path) == {"model": "violated"}
    (tmp_path / "run.json").write_text(run_text(RUN).replace('"version"', '"target": 3, "version"', 1))
    with pytest.raises(InputError):
        read_run(tmp_path)


def test_a_full_disk_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.json"
    write_whole(file, b"before")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"cannot write .*run.json: the disk is full"):
        write_whole(file, b"after")
    assert file.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_is_followed_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_whole(tmp_path / "link", b"text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"text"
    write_whole(Path(os.devnull), b"text")


def test_names_that_are_no_text_are_escaped(tmp_path: Path) -> None:
    name = os.fsdecode(b"o\xff \xc3\xa4")
    write_json(tmp_path / "x.json", {name: [name, 1.5, None]})
    assert json.loads((tmp_path / "x.json").read_bytes()) == {name: [name, 1.5, None]}
    append_text(tmp_path / "x.md", name)
    assert (tmp_path / "x.md").read_text(encoding="utf-8") == "o\\udcff \u00e4"


def test_what_cannot_be_written_is_known_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    require_writable(tmp_path / "new" / "deep" / "x.json")
    for path in (tmp_path, tmp_path / "file" / "x.json"):
        with pytest.raises(InputError):
            require_writable(path)
    with pytest.raises(InputError, match="it is a folder"):
        require_writable(Path("/"))
    with pytest.raises(InputError, match="only --json goes to stdout"):
        require_writable(Path("-"))
    with pytest.raises(InputError, match="File name too long"):
        require_writable(tmp_path / ("x" * 300))
    if Path("/proc").is_dir():  # takes no files, and who may do all is told that it does
        with pytest.raises(InputError):
            require_writable(Path("/proc/x.json"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_no_file_is_written_twice(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "x.json")
    require_apart(tmp_path / "x.json", None, str(tmp_path / "y.json"), None, os.devnull, Path(os.devnull))
    for other in (tmp_path / "x.json", str(tmp_path / "a" / ".." / "x.json"), tmp_path / "link"):
        with pytest.raises(InputError, match="two options name it"):
            require_apart(tmp_path / "x.json", other)


def test_a_file_is_replaced_in_its_folder_and_added_to_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(os, "access", lambda path, _mode: path != tmp_path)
    with pytest.raises(InputError, match="no permission"):
        require_writable(file)
    require_writable(file, appended=True)
    require_writable(Path(os.devnull))
    with pytest.raises(InputError, match="no permission"):
        require_writable(tmp_path / "new", appended=True)


def test_every_kind_of_action_comes_back(tmp_path: Path) -> None:
    plain = {
        "layout": msgspec.to_builtins(LAYOUT),
        "actions": [
            {"type": "arrive", "label": "a", "prompt": [1, 2], "answers": [{"holds": None}, {"asynchronous": True}]},
            {"type": "extend", "label": "a"},
            {"type": "schedule"},
            {"type": "complete", "proposed": {"a": 0}},
            {"type": "transfer", "label": "a", "what": "store"},
            {"type": "abort", "label": "a"},
            {"type": "evict", "group": 0, "label": "a", "prefix": 2},
            {"type": "reset"},
            {"type": "pause", "what": "new"},
            {"type": "settle"},
        ],
    }
    run = msgspec.convert(plain, Run)
    write_run(tmp_path / "run.json", run)
    assert read_run(tmp_path) == run


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"priority": 10**20}, "a number in it is too large"),
        ({"adapter": -(10**20)}, "a number in it is too large"),
        ({"answers": [{"holds": 2**40}]}, "an answer or a number of drafts"),
        ({"answers": [{"holds": 3, "arrives": -1}]}, "an answer or a number of drafts"),
    ],
)
def test_numbers_that_no_run_has_are_refused(tmp_path: Path, fields: dict[str, object], told: str) -> None:
    layout = {"groups": [{"kind": "full", "block_size": 2}], "num_blocks": 8, "max_model_len": 4, "token_budget": 4}
    action = {"type": "arrive", "label": "a", "prompt": [1], **fields}
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"version": 1, "layout": layout, "actions": [action]}))
    with pytest.raises(InputError, match=told):
        read_run(file)
