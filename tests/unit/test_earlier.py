"""Failures of earlier campaigns: where they are kept, which are replayed, in which order."""

from __future__ import annotations

import socket
import sys
import urllib.error
import urllib.request
import zipfile
from datetime import UTC, datetime
from email.message import Message
from io import BytesIO
from pathlib import Path
from typing import Any

import fakeredis
import msgspec
import pytest
import redis
from toys import run_of

from kvcheck.engines.buckets import Bucket
from kvcheck.engines.database import ANSWER_SECONDS, ARTIFACT, open_database
from kvcheck.engines.earlier import (
    Earlier,
    Outcome,
    Replayed,
    counterexamples_in,
    family,
    in_order,
    missed,
    remember,
    stored_in,
)
from kvcheck.files import InputError, write_json, write_run
from kvcheck.invariants.registry import Violation
from kvcheck.model.actions import Run


def bucket(signature: str, run: Run, state: Any = "confirmed") -> Bucket:
    violation = Violation("system.exception", "crash", "x", signature, 0)
    more: dict[str, Any] = {"index": 0, "found_after": 0.0, "file": Path("run.json"), "needs": ("EAGLE",)}
    return Bucket(signature=signature, violation=violation, run=run, original=run, state=state, **more)


def kept_in(database: Any, name: str = "toy random scheduler") -> dict[str | None, Earlier]:
    found, complaints = stored_in(database, name)
    assert complaints == []
    assert len({one.signature for one in found}) == len(found)
    return {one.signature: one for one in found}


def test_a_folder_keeps_one_run_a_signature_and_never_one_that_was_not_shrunk_for_one_that_was(tmp_path: Path) -> None:
    name = family("toy", "random", "scheduler")
    remember(
        open_database([], tmp_path / "d"), name, [bucket("a", run_of("x", "y"), "found"), bucket("b", run_of("b"))]
    )
    assert {s: (one.run, one.shrunk) for s, one in kept_in(open_database([], tmp_path / "d")).items()} == {
        "a": (run_of("x", "y"), False),
        "b": (run_of("b"), True),
    }
    remember(open_database([], tmp_path / "d"), name, [bucket("a", run_of("x")), bucket("b", run_of("c"), "found")])
    again = kept_in(open_database([], tmp_path / "d"))
    assert {s: one.run for s, one in again.items()} == {"a": run_of("x"), "b": run_of("b")}
    assert again["a"].needs == ("EAGLE",)
    assert kept_in(open_database([], tmp_path / "d"), family("other", "random", "scheduler")) == {}


def test_campaigns_that_share_their_failures() -> None:
    assert family("path:/a", "random", "scheduler") == family("path:.", "random", "scheduler")
    different = [("vllm==0.28.0", "random", "scheduler"), ("path:.", "gptoss", "scheduler"), ("path:.", "random", "m")]
    assert len({family(*one) for one in [*different, ("path:.", "random", "scheduler")]}) == 4


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    database = open_database([], tmp_path / "d")
    for raw in (b"{", b'{"version":2}', b'{"signature":"a","run":{"layout":{},"actions":[]}}'):
        database.replace("n", [], raw)
    found, complaints = stored_in(database, "n")
    assert found == []
    assert len(complaints) == 3
    assert all("\n" not in text and "entry" in text for text in complaints)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    database = open_database([], tmp_path / "file" / "d")
    assert not remember(database, "n", [bucket("a", run_of("a"))])
    assert "cannot be written" in database.error


def test_a_redis_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = fakeredis.FakeServer()
    monkeypatch.setattr(redis.Redis, "from_url", lambda url, **_: fakeredis.FakeRedis(server=server))
    name = family("toy", "random", "scheduler")
    remember(open_database(["redis://localhost:1/0"], tmp_path), name, [bucket("a", run_of("a"))])
    remember(open_database(["redis://localhost:1/0"], tmp_path), name, [bucket("a", run_of("b"))])
    assert kept_in(open_database(["redis://localhost:1/0"], tmp_path))["a"].run == run_of("b")
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    database = open_database(["redis://127.0.0.1:1/0"], tmp_path)
    assert stored_in(database, name)[0] == []
    assert "cannot be read" in database.unread["redis://127.0.0.1:1/0"]


def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "hypothesis.extra.redis", raising=False)
    with pytest.raises(InputError, match=r"the extra redis \(pip install"):
        open_database(["redis://localhost"], tmp_path)


def test_an_artifact_is_read_and_what_is_found_goes_to_the_folder(tmp_path: Path) -> None:
    name = family("toy", "random", "scheduler")
    remember(open_database([], tmp_path / "job"), name, [bucket("a", run_of("a"))])
    folder = tmp_path / "out" / "database"
    artifact = folder.parent / "github-artifacts" / "o" / "r" / ARTIFACT
    artifact.mkdir(parents=True)
    stamp = datetime.now(UTC).isoformat().replace(":", "_")  # downloaded now: no server is asked
    with zipfile.ZipFile(artifact / f"{stamp}.zip", "w") as packed:
        for file in (path for path in (tmp_path / "job").rglob("*") if path.is_file()):
            packed.write(file, file.relative_to(tmp_path / "job"))
    database = open_database(["github:o/r"], folder)
    assert kept_in(database)["a"].run == run_of("a")
    remember(database, name, [bucket("b", run_of("b"))])
    assert set(kept_in(open_database([], folder))) == {"b"}
    assert set(kept_in(open_database(["github:o/r"], folder))) == {"a", "b"}


class NoAnswer(urllib.error.HTTPError):
    """What GitHub refuses with."""

    def __init__(self, status: int) -> None:
        super().__init__("https://api.github.com", status, "no", Message(), None)


@pytest.mark.parametrize(
    ("token", "answer", "told"),
    [
        ("", NoAnswer(401), "GITHUB_TOKEN is not set: GitHub wants a token"),
        ("t", NoAnswer(401), "GitHub refuses the token in GITHUB_TOKEN"),
        ("t", NoAnswer(404), "no such repository, a token in GITHUB_TOKEN"),
        ("t", urllib.error.URLError("no route"), "GitHub cannot be reached"),
        ("t", TimeoutError("timed out"), "GitHub cannot be reached"),
        ("t", b'{"artifacts": []}', f"the repository has no artifact {ARTIFACT}"),
        ("t", b"<html>", "cannot be read: Expecting value"),
        ("t", ConnectionResetError(), "cannot be read: ConnectionResetError"),
    ],
    ids=str,
)
def test_an_artifact_that_cannot_be_read_is_told_in_one_line_and_the_folder_is_read(
    token: str, answer: Any, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", token)
    asked_for = []

    def asked(request: Any) -> Any:
        asked_for.append((request.full_url, socket.getdefaulttimeout()))
        if isinstance(answer, Exception):
            raise answer
        return BytesIO(answer)

    monkeypatch.setattr(urllib.request, "urlopen", asked)
    folder = tmp_path / "out" / "database"
    name = family("toy", "random", "scheduler")
    assert remember(open_database([], folder), name, [bucket("a", run_of("a"))])
    database = open_database(["github:o/r"], folder)
    found, (complaint,) = stored_in(database, name)
    assert [one.signature for one in found] == ["a"]
    assert complaint.startswith(f"github:o/r: {told}")
    assert "\n" not in complaint
    assert "Hypothesis" not in complaint
    assert "Disabling" not in complaint
    address = f"https://api.github.com/repos/o/r/actions/artifacts?name={ARTIFACT}"
    assert asked_for == [(address, ANSWER_SECONDS)]
    assert socket.getdefaulttimeout() is None
    assert remember(database, name, [bucket("b", run_of("b"))])


def test_a_place_that_fails_keeps_no_other_from_being_read_and_written(tmp_path: Path) -> None:
    name = family("toy", "random", "scheduler")
    database = open_database(["redis://127.0.0.1:1/0", str(tmp_path / "d")], tmp_path)
    assert not remember(database, name, [bucket("a", run_of("a")), bucket("b", run_of("b"))])
    assert database.error.startswith("redis://127.0.0.1:1/0: cannot be written")
    assert set(kept_in(open_database([str(tmp_path / "d")], tmp_path))) == {"a", "b"}
    assert {one.signature for one in stored_in(database, name)[0]} == {"a", "b"}


def test_each_place_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    places = ["redis://127.0.0.1:1/0", "redis://127.0.0.1:1/1"]
    found, complaints = stored_in(open_database(places, tmp_path), family("toy", "random", "scheduler"))
    assert found == []
    assert [text.partition(": ")[0] for text in complaints] == places


@pytest.mark.parametrize("place", ["", "github:", "github:o", "github:o/r/a/b", "ftp://x", __file__])
def test_what_is_no_database(place: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        open_database([place], tmp_path)


def test_counterexamples_of_a_folder(tmp_path: Path) -> None:
    for name, run in (("a", run_of("a")), ("b", msgspec.structs.replace(run_of("b"), level="manager"))):
        write_run(tmp_path / name / "run.json", run)
    write_json(tmp_path / "a" / "expected.json", {"version": 1, "expected": {"t": "violated"}, "signature": "s"})
    (tmp_path / "README.md").touch()
    (one,) = counterexamples_in(tmp_path, "t", "scheduler")
    assert (one.signature, one.was_shown, one.run) == ("s", True, run_of("a"))
    assert not counterexamples_in(tmp_path, "other", "scheduler")[0].was_shown
    (other,) = counterexamples_in(tmp_path, "t", "manager")
    assert (other.signature, other.was_shown) == (None, False)
    with pytest.raises(InputError):
        counterexamples_in(tmp_path / "none", "t", "scheduler")


def test_a_failure_is_missed_if_every_run_that_showed_it_was_replayed_up_to_there() -> None:
    came = {"a": "gone", "b": "shown", "c": "masked", "d": "not shown", "e": "not replayed", "f": "not supported"}
    replayed = [Replayed(Earlier(run=run_of(), origin="", signature=s), Outcome(o)) for s, o in came.items()]
    assert missed(replayed) == {"a"}
    again = Replayed(Earlier(run=run_of("a"), origin="", signature="a"), Outcome.MASKED)
    any_violation = Replayed(Earlier(run=run_of(), origin=""), Outcome.GONE)
    assert missed([*replayed, again, any_violation]) == set()
    elsewhere = Replayed(Earlier(run=run_of("a"), origin="", signature="a", was_shown=False), Outcome.NOT_SHOWN)
    assert missed([*replayed, elsewhere]) == {"a"}


def test_the_shortest_come_first_and_hangs_last() -> None:
    long, short = Earlier(run=run_of("a", "b"), origin="long"), Earlier(run=run_of("a"), origin="short")
    hang = Earlier(run=run_of(), origin="hang", signature="system.hang f")
    assert in_order([hang, long, short]) == (short, long, hang)


def test_a_run_from_two_places_is_replayed_once_with_what_both_know() -> None:
    stored = Earlier(run=run_of("a"), origin="database", signature="s", shrunk=False)
    example = Earlier(run=run_of("a"), origin="folder", signature="s", was_shown=False)
    (one,) = in_order([stored, example])
    assert (one.origin, one.was_shown, one.shrunk) == ("database", True, True)
