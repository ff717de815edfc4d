"""What an exception says: the system under test has failed, or kvcheck itself is wrong."""

from __future__ import annotations

import traceback
from pathlib import PurePath
from types import FrameType

from kvcheck.model.observation import Failure
from kvcheck.model.pool import ServerError
from kvcheck.targets.recorded import RecordedFailure


class HarnessError(Exception):
    """Something raised that is not the system under test: kvcheck itself or a stand-in is wrong."""


def failure_of(error: BaseException) -> Failure:
    """Type and place of an exception of the system under test.

    Raises:
        HarnessError: it did not come from there.
    """
    if isinstance(error, RecordedFailure):
        return error.failure
    frames = [pair for pair in traceback.walk_tb(error.__traceback__) if _package(pair[0]) in ("vllm", "kvcheck")]
    theirs = [pair for pair in frames if is_server(pair[0])]
    if not theirs or frames[-1] is not theirs[-1] or type(error).__name__ == "StandInUsed":
        raise HarnessError(f"{type(error).__name__}: {error}") from error
    last, line = theirs[-1]
    return Failure(
        type=type(error).__name__,
        function=error.kind if isinstance(error, ServerError) else last.f_code.co_name,
        file=package_path(last.f_code.co_filename),
        line=line,
        message=str(error).splitlines()[0][:300] if str(error) else "",
        stack=tuple(frame.f_code.co_name for frame, _ in theirs[-8:]),
    )


def is_server(frame: FrameType) -> bool:
    """Whether a frame is the system under test: a release, or the reference model (its shadow worker is ours)."""
    module = str(frame.f_globals.get("__name__", ""))
    return _package(frame) == "vllm" or (module.startswith("kvcheck.model.") and module not in _WORKER)


_WORKER = ("kvcheck.model.shadow", "kvcheck.model.content")


def _package(frame: FrameType) -> str:
    """The top-level package of the frame's module, by its name: folders are called `vllm` for many reasons."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def package_path(path: str) -> str:
    """A file's path from its package on."""
    parts = PurePath(path).parts
    package = next((name for name in ("vllm", "model") if name in parts), None)
    if package is None:
        return path
    return "/".join(parts[len(parts) - 1 - parts[::-1].index(package) :])
