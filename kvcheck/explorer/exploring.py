"""Several scopes at once, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from types import FrameType

from kvcheck.explorer.explore import Result, explore
from kvcheck.explorer.scope import Scope
from kvcheck.files import one_line

GRACE = 30
"""Seconds after its time in which a search ends: a state may have many moves, and what was found is replayed."""
INTERRUPTED = "interrupted"
LONGEST = 1e9
"""Seconds that a timer can wait for."""

_stop: Event | None = None


class Exploring:
    """Searches of scopes on one model, each for at most ``seconds``. ``told`` hears of each when it is over."""

    def __init__(self, spec: str, seconds: float, jobs: int, told: Callable[[Result], None]) -> None:
        self._spec, self._seconds, self._jobs, self._told = spec, seconds, jobs, told
        self._context = multiprocessing.get_context("spawn")
        self._stop = self._context.Event()
        self._names: dict[Future[Result], str] = {}
        self.results: list[Result] = []
        self.interrupted = self._over = False

    def run(self, scopes: Sequence[tuple[str, Scope]]) -> None:
        """Search each of these."""
        with ThreadPoolExecutor(self._jobs) as threads:
            with _deaf_children():
                for name, scope in scopes:
                    self._names[threads.submit(self._alone, name, scope)] = name
            for future in as_completed(self._names):
                result = self._outcome(future, self._names[future])
                self.results.append(result)
                self._told(result)
        self._over = True
        self.interrupted &= any(INTERRUPTED in result.undetermined or result.left for result in self.results)

    def _alone(self, name: str, scope: Scope) -> Result:
        """Search one in a process of its own, with which no other search dies."""
        with ProcessPoolExecutor(1, self._context, _begin, (self._stop,)) as process:
            return process.submit(_search, name, scope, self._spec, self._seconds).result()

    def _outcome(self, future: Future[Result], name: str) -> Result:
        """What came of a search; of one that died with its process, or on a mistake of ours, nothing can be said."""
        try:
            return future.result()
        except CancelledError:
            return Result(scope=name, undetermined=f"{INTERRUPTED} before it began")
        except Exception as error:  # noqa: BLE001  the other searches go on
            why = INTERRUPTED if self.interrupted else f"{type(error).__name__}: {one_line(error)}"
            return Result(scope=name, undetermined=why)

    def interrupt(self) -> None:
        """End all searches soon, and begin no more."""
        if self._over:
            return
        self.interrupted = True
        self._stop.set()
        for future in self._names:
            future.cancel()

    def kill(self) -> None:
        """End all processes at once."""
        for child in multiprocessing.active_children():
            child.kill()

    @property
    def found_something(self) -> bool:
        """Whether a violation was found that replays."""
        return any(result.verdict == "violated" for result in self.results)


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes that are started meanwhile, and by threads that are, never hear Ctrl-C: it is for this one to hear."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(stop: Event) -> None:
    """A process begins."""
    global _stop  # noqa: PLW0603  the only way to hand something to a process of a pool
    _stop = stop


def _search(name: str, scope: Scope, spec: str, seconds: float) -> Result:
    end = time.monotonic() + seconds

    def goes_on() -> bool:
        return time.monotonic() < end and not (_stop is not None and _stop.is_set())

    signal.signal(signal.SIGALRM, _too_late)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, LONGEST) + GRACE)
    try:
        return explore(name, scope, spec, goes_on)
    except _TooLate as late:
        return Result(scope=name, undetermined=str(late))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class _TooLate(BaseException):
    """A search did not look at the clock. No exception of the model's own, which would be taken for a violation."""


def _too_late(_number: int, frame: FrameType | None) -> None:
    assert frame is not None
    place = f"{frame.f_code.co_qualname} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
    raise _TooLate(
        f"it did not end {GRACE} s after its time, and was in {place}: an endless loop, or a state too large"
    )
