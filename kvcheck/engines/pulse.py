"""A worker's pulse: which action it is in, and when it does not get on, where it hangs."""

from __future__ import annotations

import faulthandler
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from kvcheck.engines.execution import Execution
from kvcheck.engines.worker_protocol import Beat, Stall
from kvcheck.model.actions import Action, Run

BEAT_SECONDS = 0.5
STATUS = Path("/proc/self/status")

Frames = list[FrameType]
"""A stack, outermost first."""


class Pulse:
    """Counts the actions of this process and keeps those of the current run."""

    def __init__(self) -> None:
        self.actions = 0
        self._execution: Execution | None = None
        self._run: list[Action] = []

    def __call__(self, execution: Execution, action: Action) -> None:
        """An action begins."""
        if execution is not self._execution:
            self._execution = execution
            self._run = []
        self._run.append(action)
        self.actions += 1

    def forget(self) -> None:
        """Another request begins."""
        self._execution = None

    def run(self) -> Run | None:
        """The current run up to the action that has begun."""
        execution = self._execution
        if execution is None:
            return None
        return Run(layout=execution.layout, level=execution.level, actions=tuple(self._run))


class Heart(threading.Thread):
    """Beats as long as the process lives, and tells where it hangs when no action begins for long.

    If even this thread does not come to run (native code that keeps the interpreter's lock), a timer of
    faulthandler ends the process some time after its watcher should have.
    """

    def __init__(self, pulse: Pulse, send: Callable[[Beat], None], stall_seconds: float) -> None:
        super().__init__(name="heart", daemon=True)
        self._pulse = pulse
        self._send = send
        self._stall_seconds = stall_seconds
        self._interval = min(BEAT_SECONDS, stall_seconds / 8)
        self._main = threading.main_thread().ident or 0
        self._parent = os.getppid()
        self.busy = False

    def run(self) -> None:
        """Beat until the process that watches is gone."""
        known, since, common = -1, time.monotonic(), None
        while os.getppid() == self._parent:
            faulthandler.dump_traceback_later(3 * self._stall_seconds + 30, exit=True)
            actions = self._pulse.actions
            if actions != known or not self.busy:
                known, since, common = actions, time.monotonic(), None
            else:
                common = common_frames(common, frames_of(sys._current_frames().get(self._main)))  # noqa: SLF001
            stalled = time.monotonic() - since > self._stall_seconds / 2
            try:
                self._send(Beat(actions, memory_mb(), self._stall(common) if stalled and common else None))
            except OSError:
                break
            time.sleep(self._interval)
        os._exit(1)

    def _stall(self, common: Frames) -> Stall:
        names = tuple(frame.f_code.co_name for frame in common)
        theirs = [frame for frame in common if _module_of(frame).partition(".")[0] == "vllm"]
        if not theirs:
            return Stall(stack=names[-8:], run=self._pulse.run())
        code = theirs[-1].f_code
        return Stall(code.co_name, _module_of(theirs[-1]), names[-8:], self._pulse.run(), code.co_firstlineno)


def frames_of(frame: FrameType | None) -> Frames:
    """The stack that ends in a frame, outermost first."""
    found: Frames = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found[::-1]


def common_frames(before: Frames | None, now: Frames) -> Frames:
    """What two looks at a stack have in common: a loop's own frame stays, each call that it makes has another one."""
    if before is None:
        return now
    same = []
    for one, other in zip(before, now, strict=False):
        if one is not other:
            break
        same.append(one)
    return same


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def memory_mb() -> int:
    """The most memory that this process has held."""
    status = STATUS.read_text() if STATUS.exists() else ""
    for line in status.splitlines():  # what Linux tells by getrusage includes what the parent held before this process
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // (1 << 20) if sys.platform == "darwin" else peak // 1024
