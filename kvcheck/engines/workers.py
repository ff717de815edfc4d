"""Worker processes, seen from outside: started, asked, watched, killed.

A worker is an interpreter of its own (not a fork), so that it can hold one release, get PYTHONHASHSEED before it
starts, hang, crash or leak without harm.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Pipe
from pathlib import Path

import msgspec

import kvcheck
from kvcheck.engines.worker_protocol import (
    Answer,
    Beat,
    Better,
    Hello,
    Ready,
    Refused,
    Reply,
    Request,
    Stall,
    decode_reply,
    encode,
)
from kvcheck.model.layout import Layout
from kvcheck.model.observation import TargetInfo
from kvcheck.targets.errors import TargetError

LOAD_SECONDS = 180.0
"""How long a target may take to load; fetching it is over by then."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """When a worker is given up: no action begun for so long, or so much memory held. A worker that is over the memory
    limit between two requests is replaced; at twice the limit it is killed in the middle of one."""

    stall_seconds: float = 10.0
    memory_mb: int = 1500


class WorkerHung(Exception):
    """The worker made no progress and was killed."""

    def __init__(self, stall: Stall) -> None:
        super().__init__("the worker made no progress")
        self.stall = stall


class WorkerDied(Exception):
    """The worker ended before it answered; the message says how."""


class Worker:
    """One worker process with one target.

    ``loader`` and ``searcher`` are names of functions (`module:function`) that the worker calls.
    """

    def __init__(
        self,
        spec: str,
        *,
        limits: Limits,
        layout: Layout | None = None,
        loader: str = "kvcheck.targets.loading:load_target",
        searcher: str = "kvcheck.engines.worker_child:search",
        topics: tuple[str, ...] = (),
    ) -> None:
        self.limits = limits
        self._memory_mb = 0
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  closed by kill()
        self._connection, theirs = Pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter and module
                [sys.executable, "-P", "-m", "kvcheck.engines.worker_child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment_of_workers(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._complaints,
                process_group=0,  # Ctrl-C is for whoever watches
            )
        finally:
            theirs.close()
        self._say(Hello(spec, loader, searcher, list(sys.path), limits.stall_seconds, layout, topics))
        self.ready: Ready | None = None

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    @property
    def too_big(self) -> bool:
        """Whether it holds so much memory that another one should go on."""
        return self._memory_mb > self.limits.memory_mb

    def loaded(self) -> TargetInfo:
        """What was loaded; waits for it.

        Raises:
            TargetError: it cannot be loaded.
            WorkerDied: the worker did not survive the attempt.
        """
        if self.ready is None:
            reply = self._next_reply(LOAD_SECONDS)
            if isinstance(reply, Refused):
                self.kill()
                raise TargetError(reply.message)
            assert isinstance(reply, Ready)
            self.ready = reply
        return self.ready.info

    @property
    def unsupported(self) -> str:
        """Why the target cannot express the layout of all searches; empty if it can."""
        self.loaded()
        return self.ready.unsupported if self.ready else ""

    def ask(self, request: Request, better: Callable[[Better], None] | None = None) -> Answer:
        """The answer to a request. ``better`` is told of interim results.

        Raises:
            TargetError: the target cannot be loaded.
            WorkerHung: the worker made no progress and was killed.
            WorkerDied: it ended, by itself or because it held too much memory.
        """
        self.loaded()
        self._say(request)
        while True:
            reply = self._next_reply(self.limits.stall_seconds)
            if isinstance(reply, Better):
                if better is not None:
                    better(reply)
                continue
            assert not isinstance(reply, Beat | Ready | Refused)
            return reply

    def stop(self) -> None:
        """End it at once; whoever awaits an answer in another thread gets a WorkerDied."""
        self._process.kill()

    def kill(self) -> None:
        """End it at once and give up the line to it."""
        self._process.kill()
        self._process.wait()
        self._connection.close()
        self._complaints.close()

    # ---- the line ------------------------------------------------------------------------------------------------

    def _say(self, request: Request) -> None:
        # a worker that is gone is noticed, with the reason, when its answer is awaited
        with contextlib.suppress(OSError):
            self._connection.send_bytes(encode(request))

    def _next_reply(self, patience: float) -> Reply:
        """The next message that is no mere sign of life."""
        known, since, stall = -1, time.monotonic(), Stall()
        while True:
            reply = self._receive(0.2)
            if reply is not None and not isinstance(reply, Beat):
                return reply
            if reply is not None:
                self._memory_mb = reply.memory_mb
                stall = reply.stall or Stall()
                if reply.actions != known:
                    known, since = reply.actions, time.monotonic()
                if reply.memory_mb > 2 * self.limits.memory_mb:
                    self.kill()
                    raise WorkerDied(f"it held {reply.memory_mb} MB of memory")
            if time.monotonic() - since > patience:
                self.kill()
                raise WorkerHung(stall)

    def _receive(self, seconds: float) -> Reply | None:
        try:
            if not self._connection.poll(seconds):
                return None
            return decode_reply(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerDied(self._how_it_ended()) from error

    def _how_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.poll()
        how = f"killed by {_signal_name(-code)}" if code is not None and code < 0 else f"exit status {code}"
        last = "" if self._complaints.closed else self._last_complaint()
        self.kill()
        return f"{how}: {last}" if last else how

    def _last_complaint(self) -> str:
        """The line of the worker's error output that says most: the last one that is no traceback's detail."""
        self._complaints.seek(0)
        lines = self._complaints.read()[-20_000:].decode(errors="replace").splitlines()
        told = [line for line in lines if line.strip() and not line.startswith((" ", "\t", "Extension modules"))]
        fatal = [line for line in told if line.startswith("Fatal Python error")]
        return (fatal or told or [""])[-1][:200]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def environment_of_workers() -> dict[str, str]:
    """Keys of the system under test are the same in each process, and kvcheck is found wherever it was found here."""
    package = str(Path(kvcheck.__file__).parent.parent)
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(paths)}
