"""Where failures are kept from one campaign to the next: an example database of Hypothesis.

DIR                        a folder
github:OWNER/REPO[/NAME]   the newest artifact of that name of a repository's GitHub workflows; only read
redis://HOST:PORT/NUMBER   a Redis server (the extra `kvcheck[redis]`)
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from hypothesis.database import (
    DirectoryBasedExampleDatabase,
    ExampleDatabase,
    GitHubArtifactDatabase,
    MultiplexedDatabase,
    ReadOnlyDatabase,
)

from kvcheck.files import InputError, encoded, one_line

ARTIFACT = "kvcheck-database"
"""How the artifact is called if nothing else is said."""
FORMS = "a folder, github:OWNER/REPO[/ARTIFACT] or redis://HOST:PORT/NUMBER"
KEPT = timedelta(days=90)
"""How long a Redis server keeps what nobody has asked for."""
ANSWER_SECONDS = 10.0
"""How long it is waited for."""
_GITHUB = "github:"
_REDIS = ("redis://", "rediss://", "unix://")


class Database:
    """Byte strings by name. ``title`` is what it is called; ``error``: the first thing that went wrong, if any did.

    Nothing that goes wrong ends a campaign.
    """

    def __init__(self, title: str, examples: ExampleDatabase) -> None:
        self.title = title
        self.error = ""
        self._examples = examples

    def fetch(self, name: str) -> list[bytes]:
        """All values of a name, in no order."""
        with warnings.catch_warnings(record=True) as complaints:
            warnings.simplefilter("always")
            try:
                values = list(self._examples.fetch(_key(name)))
            except Exception as error:  # noqa: BLE001  every kind of store fails in its own way
                self._fail(f"cannot be read: {one_line(error)}")
                return []
        if complaints:
            self._fail("; ".join(" ".join(str(complaint.message).split()) for complaint in complaints))
        return values

    def replace(self, name: str, old: Sequence[bytes], new: bytes) -> bool:
        """Save a value in the place of others; whether that could be done."""
        try:
            self._examples.save(_key(name), new)
            if new not in set(self._examples.fetch(_key(name))):  # a folder says nothing of a full disk
                self._fail("cannot be written")
                return False
            for value in old:
                self._examples.delete(_key(name), value)
        except Exception as error:  # noqa: BLE001
            self._fail(f"cannot be written: {one_line(error)}")
            return False
        return True

    def _fail(self, text: str) -> None:
        self.error = self.error or f"{self.title}: {text}"


def open_database(places: Sequence[str], folder: Path) -> Database:
    """The database that these places are, or the folder if there are none. Beside what is only read there is the
    folder too: what is found must be kept somewhere.

    Raises:
        InputError: a place is none, or a library for it is missing.
    """
    if all(place.startswith(_GITHUB) for place in places):
        places = [str(folder), *places]
    parts = [_part(place, folder) for place in places]
    return Database(", ".join(places), parts[0] if len(parts) == 1 else MultiplexedDatabase(*parts))


def _part(place: str, folder: Path) -> ExampleDatabase:
    if place.startswith(_GITHUB):
        return _github(place, folder)
    if place.startswith(_REDIS):
        return _redis(place)
    if not place or "://" in place or Path(place).is_file():
        raise InputError(f"{place!r} is no database: name {FORMS}")
    return DirectoryBasedExampleDatabase(place)


def _github(place: str, folder: Path) -> ExampleDatabase:
    """It is downloaded at most once a day, to a place beside the folder."""
    owner, _, rest = place.removeprefix(_GITHUB).partition("/")
    repository, _, artifact = rest.partition("/")
    artifact = artifact or ARTIFACT
    if not (owner and repository) or "/" in artifact:
        raise InputError(f"{place!r} is no database: name {FORMS}")
    path = folder.parent / "github-artifacts" / owner / repository / artifact
    return ReadOnlyDatabase(GitHubArtifactDatabase(owner, repository, artifact_name=artifact, path=path))


def _redis(place: str) -> ExampleDatabase:
    try:
        from hypothesis.extra.redis import RedisExampleDatabase  # noqa: PLC0415  only who wants it needs it
        from redis import Redis  # noqa: PLC0415
    except ImportError as error:
        raise InputError(f"{place}: needs the extra kvcheck[redis] ({one_line(error)})") from error
    try:
        server = Redis.from_url(place, socket_timeout=ANSWER_SECONDS, socket_connect_timeout=ANSWER_SECONDS)
        return RedisExampleDatabase(server, expire_after=KEPT, key_prefix=b"kvcheck:")
    except ValueError as error:
        raise InputError(f"{place!r} is no database: {one_line(error)}") from error


def _key(name: str) -> bytes:
    return encoded(f"kvcheck {name}")
