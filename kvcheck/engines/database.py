"""Where failures are kept from one campaign to the next: an example database of Hypothesis.

DIR                        a folder
github:OWNER/REPO[/NAME]   the newest artifact of that name of a repository's GitHub workflows; only read
redis://HOST:PORT/NUMBER   a Redis server (the extra `kvcheck[redis]`)
"""

from __future__ import annotations

import contextlib
import os
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase, GitHubArtifactDatabase

from kvcheck.files import InputError, encoded, extra, one_line

ARTIFACT = "kvcheck-database"
"""How the artifact is called if nothing else is said."""
FORMS = "a folder, github:OWNER/REPO[/ARTIFACT] or redis://HOST:PORT/NUMBER"
KEPT = timedelta(days=90)
"""How long a Redis server keeps what nobody has asked for."""
ANSWER_SECONDS = 10.0
"""How long it is waited for."""
_GITHUB = "github:"
_REDIS = ("redis://", "rediss://", "unix://")


class Place(NamedTuple):
    """Where examples are. ``why``: what to tell, given what Hypothesis says of it; None: the place is written too."""

    title: str
    examples: ExampleDatabase
    why: Callable[[str], str] | None = None


class Database:
    """Byte strings by name, in one place or in several. ``title`` is what it is called; ``unread``: why places could
    not be read, by place; ``error``: why one could not be written, the last one.

    Nothing that goes wrong ends a campaign, or keeps another place from being read and written.
    """

    def __init__(self, *places: Place) -> None:
        self.title = ", ".join(place.title for place in places)
        self.error = ""
        self.unread: dict[str, str] = {}
        self._places = places
        self._lost: set[str] = set()

    def fetch(self, name: str) -> list[bytes]:
        """All values of a name, in no order."""
        return list({value for place in self._places for value in self._read(place, name)})

    def _read(self, place: Place, name: str) -> list[bytes]:
        values: list[bytes] = []
        with warnings.catch_warnings(record=True) as complaints, _time_to_answer():
            warnings.simplefilter("always")
            try:
                values = list(place.examples.fetch(_key(name)))
            except Exception as error:  # noqa: BLE001  every kind of store fails in its own way
                warnings.warn(one_line(error), stacklevel=1)
        if complaints:
            said = "; ".join(" ".join(str(complaint.message).split()) for complaint in complaints)
            told = place.why(said) if place.why else f"cannot be read: {said}"
            self.unread.setdefault(place.title, f"{place.title}: {told}")
        return values

    def replace(self, name: str, old: Sequence[bytes], new: bytes) -> bool:
        """Save a value in the place of others; whether that could be done wherever it should be. A place that could not
        be written once is not asked again."""
        for place in self._places:
            if place.why is None and place.title not in self._lost and not self._write(place, name, old, new):
                self._lost.add(place.title)
        return not self._lost

    def _write(self, place: Place, name: str, old: Sequence[bytes], new: bytes) -> bool:
        try:
            place.examples.save(_key(name), new)
            if new not in set(place.examples.fetch(_key(name))):  # a folder says nothing of a full disk
                self.error = f"{place.title}: cannot be written"
                return False
            for value in old:
                place.examples.delete(_key(name), value)
        except Exception as error:  # noqa: BLE001
            self.error = f"{place.title}: cannot be written: {one_line(error)}"
            return False
        return True


@contextlib.contextmanager
def _time_to_answer() -> Iterator[None]:
    """Hypothesis waits for GitHub without an end."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(ANSWER_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def open_database(places: Sequence[str], folder: Path) -> Database:
    """The database that these places are, or the folder if there are none. Beside what is only read there is the
    folder too: what is found must be kept somewhere.

    Raises:
        InputError: a place is none, or a library for it is missing.
    """
    if all(place.startswith(_GITHUB) for place in places):
        places = [str(folder), *places]
    return Database(*(_opened(place, folder) for place in places))


def _opened(place: str, folder: Path) -> Place:
    if place.startswith(_GITHUB):
        return _github(place, folder)
    if place.startswith(_REDIS):
        return Place(place, _redis(place))
    if not place or "://" in place or Path(place).is_file():
        raise InputError(f"{place!r} is no database: name {FORMS}")
    return Place(place, DirectoryBasedExampleDatabase(place))


class _Artifact(GitHubArtifactDatabase):
    """It is asked for by name: of all artifacts of a repository GitHub tells only the newest 30."""

    def _get_bytes(self, url: str) -> bytes | None:
        if url.endswith("/actions/artifacts"):
            url += f"?name={quote(self.artifact_name)}"
        return super()._get_bytes(url)


def _github(place: str, folder: Path) -> Place:
    """It is downloaded at most once a day, to a place beside the folder."""
    owner, _, rest = place.removeprefix(_GITHUB).partition("/")
    repository, _, artifact = rest.partition("/")
    artifact = artifact or ARTIFACT
    if not (owner and repository) or "/" in artifact:
        raise InputError(f"{place!r} is no database: name {FORMS}")
    path = folder.parent / "github-artifacts" / owner / repository / artifact
    examples = _Artifact(owner, repository, artifact_name=artifact, path=path)
    return Place(place, examples, partial(_why_no_artifact, artifact))


def _why_no_artifact(artifact: str, said: str) -> str:
    """What to do about an artifact that cannot be read, in the place of what Hypothesis says."""
    if "Could not connect" in said:
        why = "GitHub cannot be reached: look at the network, and try again"
    elif "invalid" in said:
        why = f"the artifact {artifact} is no zip archive: a job must upload the folder of a database"
    elif not os.environ.get("GITHUB_TOKEN"):
        why = "GITHUB_TOKEN is not set: GitHub wants a token that may read the actions of the repository"
    elif "Authorization failed" in said:
        why = "GitHub refuses the token in GITHUB_TOKEN: set one that is valid"
    elif "Could not get" in said:
        why = (
            "no such repository, a token in GITHUB_TOKEN that may not read its actions, or an artifact that has expired"
        )
    elif said.startswith("Couldn't acquire"):
        why = f"the repository has no artifact {artifact}: a job must upload one"
    else:
        return f"cannot be read: {said}"
    return f"{why}; what was downloaded before is read" if "expired artifact" in said else why


def _redis(place: str) -> ExampleDatabase:
    try:
        from hypothesis.extra.redis import RedisExampleDatabase  # noqa: PLC0415  only who wants it needs it
        from redis import Redis  # noqa: PLC0415
    except ImportError as error:
        raise InputError(f"{place}: needs {extra('redis')}: {one_line(error)}") from error
    try:
        server = Redis.from_url(place, socket_timeout=ANSWER_SECONDS, socket_connect_timeout=ANSWER_SECONDS)
        return RedisExampleDatabase(server, expire_after=KEPT, key_prefix=b"kvcheck:")
    except ValueError as error:
        raise InputError(f"{place!r} is no database: {one_line(error)}") from error


def _key(name: str) -> bytes:
    return encoded(f"kvcheck {name}")
