"""What a running vLLM loads: with ``KVCHECK_RECORD=FILE`` each scheduler that it makes is recorded.

Without the variable nothing is imported and nothing is touched. vLLM calls `register` in each of its processes; only
the one with the scheduler in it writes. A second scheduler writes to ``FILE.2``, and so on; no file that is there is
touched. FILE may be a folder. The writing is done by a thread beside the scheduler's, mostly while that waits for the
workers.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcheck.targets.recording import AnyLine

VARIABLE = "KVCHECK_RECORD"
NAME = "kvcheck.jsonl"
"""Of a recording in a folder."""
MOST_FILES = 1000
EVERY_SECONDS = 0.02
"""Between two looks of the writing thread for work."""

log = logging.getLogger("kvcheck.record")


def register() -> None:
    """The entry point of the group `vllm.general_plugins`."""
    name = os.environ.get(VARIABLE)
    if name:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler

        path = Path(name, NAME) if name.endswith(os.sep) else Path(name)
        record_schedulers(path, Scheduler, AsyncScheduler)


def record_schedulers(path: Path, *scheduler_classes: Any) -> None:
    """Record each scheduler that is made from now on, as soon as all of these classes that it is of have made it. Once
    for a class, however often it is called."""
    making: set[int] = set()
    for kind in scheduler_classes:
        if not hasattr(kind.__init__, "recorded"):
            kind.__init__ = _recording(kind.__init__, making, path)


def _recording(make: Callable[..., None], making: set[int], path: Path) -> Callable[..., None]:
    """What makes a scheduler, with the recorder begun at its end; not if a subclass goes on then (``making``)."""

    @functools.wraps(make)
    def made(scheduler: Any, *args: Any, **kwargs: Any) -> None:
        if id(scheduler) in making:
            make(scheduler, *args, **kwargs)
            return
        making.add(id(scheduler))
        try:
            make(scheduler, *args, **kwargs)
        finally:
            making.remove(id(scheduler))
        try:
            start(scheduler, path)
        except Exception as error:  # noqa: BLE001  a server that cannot be recorded must serve all the same
            log.warning("nothing is recorded: %s: %s", type(error).__name__, error)

    made.recorded = True  # type: ignore[attr-defined]
    return made


def start(scheduler: Any, path: Path) -> None:
    """Record this scheduler, to a new file.

    Raises:
        OSError: no file can be made.
    """
    from kvcheck.targets.vllm.live import LiveRecorder

    sink = FileSink(path)
    version = str(getattr(sys.modules.get("vllm"), "__version__", ""))
    writer = Writer()
    writer.start()
    recorder = LiveRecorder(scheduler, sink, version, writer)
    if why := "; ".join(recorder.opened.outside):
        log.warning("nothing is recorded: %s (as %s says, too)", why, sink.path)
        return
    atexit.register(recorder.close)
    log.warning("kvcheck records this scheduler in %s", sink.path)


class Writer(threading.Thread):
    """Does what can wait, in order, a few times in a blink: what a killed process takes with it is that much.

    It looks for work by itself, because waking it would cost the scheduler more than the work.
    """

    def __init__(self) -> None:
        super().__init__(name="kvcheck-record", daemon=True)
        self._work: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._one_at_a_time = threading.RLock()
        self._stopped = False

    def later(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do this after all that was to be done before it."""
        self._work.append((work, arguments))

    def run(self) -> None:
        """Work until there will be nothing more to do."""
        while not self._stopped:
            time.sleep(EVERY_SECONDS)
            self.catch_up()

    def catch_up(self) -> None:
        """Do all that is still to be done now."""
        with self._one_at_a_time:
            while self._work:
                work, arguments = self._work.popleft()
                work(*arguments)

    def stop(self) -> None:
        """There will be nothing more to do."""
        self._stopped = True


class FileSink:
    """A new file, in a folder one of our own name. Each line is handed over at once: what was written outlives the
    process.

    Raises:
        OSError: it cannot be made, or written to (the disk is full).
    """

    def __init__(self, path: Path) -> None:
        from kvcheck.targets.recording import encode

        path = path / NAME if path.is_dir() else path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._file = _new_file(path)
        self._encode = encode

    def __call__(self, line: AnyLine) -> None:
        """Write a line."""
        data = self._encode(line) + b"\n"
        if os.write(self._file, data) != len(data):
            raise OSError(f"{self.path}: the disk is full")


def _new_file(path: Path) -> tuple[Path, int]:
    """A file that was not there before, and its descriptor."""
    for number in range(1, MOST_FILES):
        free = path if number == 1 else path.with_name(f"{path.name}.{number}")
        try:
            return free, os.open(free, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
    raise FileExistsError(f"{path} and {MOST_FILES - 1} files after it are there already")
