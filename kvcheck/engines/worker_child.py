"""What runs inside a worker process: it loads one target and answers one request after the other.

Started by `workers` as `python -m kvcheck.engines.worker_child FD`, never by hand.
"""

from __future__ import annotations

import faulthandler
import importlib
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from kvcheck.engines.execution import Execution
from kvcheck.engines.hit_map import measure
from kvcheck.engines.judging import judge_run, shows
from kvcheck.engines.locating import located
from kvcheck.engines.pulse import Heart, Pulse
from kvcheck.engines.random_layouts import Features
from kvcheck.engines.retracing import judge_recording
from kvcheck.engines.search import MANAGER_FEATURES, SearchResult, search_one
from kvcheck.engines.shrink import complexity, needs, shrink
from kvcheck.engines.worker_protocol import (
    Better,
    Broken,
    Hello,
    HitsMapped,
    Judge,
    Judged,
    Locate,
    Located,
    MapHits,
    Ready,
    Refused,
    Reply,
    Retrace,
    Search,
    Searched,
    Shrink,
    Shrunk,
    decode_request,
    encode,
)
from kvcheck.files import one_line
from kvcheck.model.actions import Run
from kvcheck.model.layout import Layout
from kvcheck.targets.base import Target
from kvcheck.targets.errors import TargetError
from kvcheck.targets.recording import read_recording


class Child:
    """One target and the line to whoever watches."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        hello = decode_request(connection.recv_bytes())
        assert isinstance(hello, Hello)
        self._hello = hello
        sys.path[:] = hello.sys_path
        self.pulse = Pulse()
        self._heart = Heart(self.pulse, self.send, hello.stall_seconds)

    def send(self, reply: Reply) -> None:
        """Say something; two threads do."""
        with self._lock:
            self._connection.send_bytes(encode(reply))

    def serve(self) -> None:
        """Load the target, then answer until there is nobody to ask."""
        self._heart.start()
        try:
            target: Target = _function(self._hello.loader)(self._hello.spec)
            layout = self._hello.layout
            self.send(Ready(target.info, target.supports(layout) if layout is not None else ""))
        except Exception as error:  # noqa: BLE001  whatever a strange tree raises when it is imported
            self.send(Refused(_reason(self._hello.spec, error)))
            return
        Execution.watcher = self.pulse
        while True:
            try:
                raw = self._connection.recv_bytes()
            except (EOFError, OSError):
                return
            self.pulse.forget()
            self._heart.busy = True
            self.send(self._answer(target, decode_request(raw)))
            self._heart.busy = False

    def _answer(self, target: Target, request: object) -> Reply:  # noqa: PLR0911  one for each kind of request
        try:
            match request:
                case Search():
                    return Searched(self._searched(target, request.seed))
                case Judge():
                    return Judged(judge_run(target, request.run, request.record, request.measure))
                case Retrace():
                    return Judged(judge_recording(target, read_recording(Path(request.file))))
                case Shrink():
                    return self._shrunk(target, request)
                case Locate():
                    return Located(located(target, request.run, request.signature))
                case MapHits():
                    return HitsMapped(measure(target, request.layout, request.asked))
        except Exception as error:  # noqa: BLE001  told as what it is: kvcheck's own mistake
            where = traceback.extract_tb(error.__traceback__)[-1]
            told = f"{type(error).__name__}: {one_line(error)} ({Path(where.filename).name}:{where.lineno})"
            return Broken(told, self.pulse.run())
        raise AssertionError(request)

    def _searched(self, target: Target, seed: int) -> SearchResult:
        hello = self._hello
        directed = {"topics": hello.topics} if hello.topics else {}
        result: SearchResult = _function(hello.searcher)(target, seed, hello.layout, **directed)
        return result

    def _shrunk(self, target: Target, request: Shrink) -> Shrunk:
        best = self._cut(target, request)

        def still_fails(run: Run) -> bool:
            nonlocal best
            violation = shows(target, run, request.signature)
            if violation is not None and complexity(run) < complexity(best.run):
                best = Shrunk(run, violation)
                self.send(Better(run, violation))
            return violation is not None

        shrink(best.run, still_fails, request.seconds)
        return Shrunk(best.run, best.violation, needs(best.run, still_fails))

    @staticmethod
    def _cut(target: Target, request: Shrink) -> Shrunk:
        """The run up to where it shows the violation."""
        violation = shows(target, request.run, request.signature)
        if violation is None:
            return Shrunk(request.run)
        actions = request.run.actions[: violation.index + 1]
        return Shrunk(msgspec.structs.replace(request.run, actions=actions), violation)


def search(target: Target, seed: int, layout: Layout | None) -> SearchResult:
    """The searcher that is used if none is named."""
    return search_one(target, seed, Features(), layout)


def search_manager(target: Target, seed: int, layout: Layout | None) -> SearchResult:
    """The searcher at cache-manager level."""
    return search_one(target, seed, MANAGER_FEATURES, layout, "manager")


def _function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _reason(spec: str, error: Exception) -> str:
    if isinstance(error, TargetError):
        return one_line(error)
    return f"{spec}: cannot be loaded: {type(error).__name__}: {one_line(error)}"


def main() -> None:
    """Serve the socket whose number is the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    Child(Connection(int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
