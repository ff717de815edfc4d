"""Commits of a git repository: which lie between two, and the sources of one, without touching the work tree."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from kvcheck.targets.errors import TargetError

PACKAGE = "vllm"
"""The folder of a commit that a target needs."""


def top_of(repo: Path) -> Path:
    """The top of a checkout, of any folder in it.

    Raises:
        TargetError: there is no such repository.
    """
    return repo / _git(repo, "rev-parse", "--show-cdup").stdout.decode().strip()


def commits_between(repo: Path, older: str, newer: str) -> list[str]:
    """Full names of the commits after ``older`` up to ``newer``, the oldest first, along the first parents.

    Raises:
        TargetError: there is no such repository or commit, or the one does not come before the other.
    """
    first, last = full_name(repo, older), full_name(repo, newer)
    if not is_ancestor(repo, first, last):
        raise TargetError(f"{repo}: {older} is no ancestor of {newer}")
    listed = _git(repo, "rev-list", "--reverse", "--first-parent", f"{first}..{last}").stdout
    return listed.decode().split()


def is_ancestor(repo: Path, older: str, newer: str) -> bool:
    """Whether a commit comes before another. Raises as `full_name` does."""
    first, last = full_name(repo, older), full_name(repo, newer)
    return not _git(repo, "merge-base", "--is-ancestor", first, last, statuses=(0, 1)).returncode


def full_name(repo: Path, revision: str) -> str:
    """The commit that a revision stands for.

    Raises:
        TargetError: there is no such repository or commit.
    """
    name = f"{revision}^{{commit}}"
    found = _git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", name, statuses=(0, 1))
    if found.returncode:
        raise TargetError(f"{repo}: has no commit {revision!r}")
    return found.stdout.decode().strip()


def subject(repo: Path, commit: str) -> str:
    """The first line of a commit's message."""
    return _git(repo, "log", "-1", "--format=%s", commit).stdout.decode("utf-8", "replace").strip()


def unpack(repo: Path, commit: str, folder: Path) -> None:
    """Write the package's Python sources of a commit below a folder.

    Raises:
        TargetError: the commit has no such package.
    """
    if not _git(repo, "ls-tree", commit, "--", PACKAGE).stdout:
        raise TargetError(f"the commit has no folder {PACKAGE}")
    archive = _git(repo, "archive", "--format=tar", commit, "--", PACKAGE).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        sources = [member for member in tar.getmembers() if member.isfile() and member.name.endswith(".py")]
        tar.extractall(folder, sources, filter="data")


def _git(repo: Path, *arguments: str, statuses: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[bytes]:
    try:
        line = ["git", "-C", str(repo), *arguments]
        done = subprocess.run(line, capture_output=True, check=False)  # noqa: S603  no shell; revisions are arguments
    except OSError as error:
        raise TargetError(f"git cannot be run: {error.strerror}") from error
    if done.returncode not in statuses:
        told = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise TargetError(f"{repo}: git {arguments[0]}: {told[-1] if told else f'exit status {done.returncode}'}")
    return done
