"""Several scopes at once, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing.synchronize import Event

from kvcheck.explorer.explore import Result, explore
from kvcheck.explorer.scope import Scope
from kvcheck.files import one_line

LOOKS_EVERY = 64
"""After how many states a search looks at the clock."""

_stop: Event | None = None


class Exploring:
    """Searches of scopes on one model, each for at most ``seconds``. ``told`` hears of each when it is over."""

    def __init__(self, spec: str, seconds: float, jobs: int, told: Callable[[Result], None]) -> None:
        self._spec, self._seconds, self._jobs, self._told = spec, seconds, jobs, told
        self._context = multiprocessing.get_context("spawn")
        self._stop = self._context.Event()
        self._names: dict[Future[Result], str] = {}
        self.results: list[Result] = []
        self.interrupted = False

    def run(self, scopes: Sequence[tuple[str, Scope]]) -> None:
        """Search each of these."""
        with ThreadPoolExecutor(self._jobs) as threads:
            with _deaf_children():
                for name, scope in scopes:
                    self._names[threads.submit(self._alone, name, scope)] = name
            for future in as_completed(self._names):
                result = _outcome(future, self._names[future])
                self.results.append(result)
                self._told(result)

    def _alone(self, name: str, scope: Scope) -> Result:
        """Search one in a process of its own, with which no other search dies."""
        with ProcessPoolExecutor(1, self._context, _begin, (self._stop,)) as process:
            return process.submit(_search, name, scope, self._spec, self._seconds).result()

    def interrupt(self) -> None:
        """End all searches soon, and begin no more."""
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


def _outcome(future: Future[Result], name: str) -> Result:
    """What came of a search; of one that has died with its process, or on a mistake of ours, nothing can be said."""
    try:
        return future.result()
    except CancelledError:
        return Result(scope=name, undetermined="interrupted before it began")
    except Exception as error:  # noqa: BLE001  the other searches go on
        return Result(scope=name, undetermined=f"{type(error).__name__}: {one_line(error)}")


def _begin(stop: Event) -> None:
    """A process begins."""
    global _stop  # noqa: PLW0603  the only way to hand something to a process of a pool
    _stop = stop


def _search(name: str, scope: Scope, spec: str, seconds: float) -> Result:
    end, count = time.monotonic() + seconds, 0

    def goes_on() -> bool:
        nonlocal count
        count += 1
        return bool(count % LOOKS_EVERY) or (time.monotonic() < end and not (_stop is not None and _stop.is_set()))

    return explore(name, scope, spec, goes_on)
