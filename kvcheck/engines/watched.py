"""A target behind a watched worker process: whatever it does, an answer comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from kvcheck.engines.hit_map import Measured, Question
from kvcheck.engines.judging import RunResult
from kvcheck.engines.search import SearchResult
from kvcheck.engines.shrink import complexity, shrink
from kvcheck.engines.worker_protocol import (
    Answer,
    Better,
    Broken,
    HitsMapped,
    Judge,
    Judged,
    Locate,
    Located,
    MapHits,
    Request,
    Retrace,
    Search,
    Searched,
    Shrink,
    Shrunk,
    Stall,
)
from kvcheck.engines.workers import Limits, Worker, WorkerDied, WorkerHung
from kvcheck.invariants.registry import Severity, Violation
from kvcheck.model.actions import Run
from kvcheck.model.layout import Layout
from kvcheck.model.observation import TargetInfo
from kvcheck.targets.errors import TargetError
from kvcheck.targets.places import Place, place_of_function

HANG = "system.hang"
_SHRINKING_STALL_SECONDS = 2.0
Result = TypeVar("Result", RunResult, SearchResult)
_CODES = {"harness": "harness-error", "not supported": "not-supported"}


class Stopped(Exception):
    """The target was stopped from another thread."""


class Watched:
    """Code under test in a worker process that is replaced when it hangs, dies or grows too big.

    Undetermined results are told as "code: message". ``expected``: what the target was found to be before. Every
    method that asks raises a TargetError if the target cannot be loaded or is not that any more.
    """

    def __init__(
        self,
        spec: str,
        *,
        limits: Limits | None = None,
        layout: Layout | None = None,
        loader: str = "kvcheck.targets.loading:load_target",
        searcher: str = "kvcheck.engines.worker_child:search",
        topics: tuple[str, ...] = (),
        expected: TargetInfo | None = None,
    ) -> None:
        self.spec = spec
        self._expected = expected
        self._limits = limits or Limits()
        self._layout = layout
        self._loader = loader
        self._searcher = searcher
        self._topics = topics
        self._worker: Worker | None = None
        self._helper: Watched | None = None
        self._stopped = False
        self._lock = threading.RLock()  # a signal handler may stop it while its own thread holds the lock

    def start(self) -> TargetInfo:
        """Load the target, if it is not loaded, and say what it is.

        Raises:
            TargetError: it cannot be loaded.
            WorkerDied, WorkerHung: the worker did not survive the attempt.
        """
        with self._watching():
            return self._info(self._living())

    def unsupported(self) -> str:
        """Why the target cannot express the layout of all searches; empty if it can. Raises as `start` does."""
        self.start()
        return self._living().unsupported

    def search(self, seed: int) -> SearchResult:
        """Draw a run from a seed and judge it."""
        try:
            answer = self._ask(Search(seed))
        except WorkerHung as hung:
            return self._hung_search(hung.stall)
        except WorkerDied as death:
            return _nothing_found(f"worker-died: {death}")
        if isinstance(answer, Broken):
            return _nothing_found(f"harness-error: {answer.message}", answer.run)
        assert isinstance(answer, Searched)
        return _without_exhaustion(answer.result)

    def judge(self, run: Run, record: bool = False, measure: bool = False) -> RunResult:
        """Judge a run; if it hangs, twice."""
        try:
            return self._judge_once(run, record, measure)
        except WorkerHung as hung:
            return self._judge_hang(run, hung.stall)

    def retrace(self, file: Path) -> RunResult:
        """Retrace the recording in this file. A release that hangs where the live server did not accuses nobody."""
        try:
            return self._judged(Retrace(str(file)))
        except WorkerHung as hung:
            where = hung.stall.function or "a place that cannot be told"
            return RunResult(
                undetermined=f"hung: the release hangs in {where}: replay the run that the recording gives"
            )

    def shrink(self, run: Run, signature: str, seconds: float) -> Shrunk:
        """The simplest run found in that time, or until Ctrl-C or the worker's end, that shows the same violation."""
        if signature.startswith(HANG):
            return self._shrunk_hang(run, signature, seconds)
        best = Shrunk(run)

        def keep(better: Better) -> None:
            nonlocal best
            best = Shrunk(better.run, better.violation)

        try:
            answer = self._ask(Shrink(run, signature, seconds), keep)
        except (WorkerHung, WorkerDied):
            return best
        except KeyboardInterrupt:
            self.renew()
            return best
        return answer if isinstance(answer, Shrunk) else best

    def locate(self, run: Run, signature: str) -> Place | None:
        """Where in the server a violation comes from; None if it cannot be told."""
        try:
            answer = self._ask(Locate(run, signature))
        except WorkerHung as hung:
            stall = hung.stall
            return place_of_function(stall.module, stall.function, stall.line) if stall.function else None
        except WorkerDied:
            return None
        return answer.place if isinstance(answer, Located) else None

    def map_hits(self, layout: Layout, asked: Question) -> Measured:
        """How long hits are on servers with this layout."""
        try:
            answer = self._ask(MapHits(layout, asked))
        except WorkerHung as hung:
            return Measured(undetermined=f"hung: no end in {hung.stall.function or 'an unknown place'}")
        except WorkerDied as death:
            return Measured(undetermined=f"worker-died: {death}")
        if isinstance(answer, Broken):
            return Measured(undetermined=f"harness-error: {answer.message}")
        assert isinstance(answer, HitsMapped)
        return answer.measured

    def renew(self) -> None:
        """Go on with a new worker."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()

    close = renew

    @property
    def stopped(self) -> bool:
        """Whether nothing starts any more."""
        return self._stopped

    def stop(self) -> None:
        """From another thread: end the worker, and let nothing start any more."""
        with self._lock:
            self._stopped = True
            worker, helper = self._worker, self._helper
        if worker is not None:
            worker.stop()
        if helper is not None:
            helper.stop()

    # ---- the worker ----------------------------------------------------------------------------------------------

    def _living(self) -> Worker:
        if self._worker is not None and self._worker.too_big:
            self.renew()
        with self._lock:
            if self._stopped:
                raise Stopped
            if self._worker is None:
                self._worker = Worker(
                    self.spec,
                    limits=self._limits,
                    layout=self._layout,
                    loader=self._loader,
                    searcher=self._searcher,
                    topics=self._topics,
                )
            return self._worker

    def _ask(self, request: Request, better: Callable[[Better], None] | None = None) -> Answer:
        with self._watching():
            worker = self._living()
            self._info(worker)
            return worker.ask(request, better)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Whatever ends a worker makes room for the next one."""
        try:
            yield
        except (WorkerHung, WorkerDied):
            with self._lock:
                self._worker = None
                if self._stopped:
                    raise Stopped from None
            raise

    def _info(self, worker: Worker) -> TargetInfo:
        info = worker.loaded()
        if self._expected is not None and info != self._expected:
            raise TargetError(f"{self.spec}: its sources have changed since the work began")
        self._expected = info
        return info

    # ---- hangs ---------------------------------------------------------------------------------------------------

    def _judge_once(self, run: Run, record: bool = False, measure: bool = False) -> RunResult:
        return self._judged(Judge(run, record, measure))

    def _judged(self, question: Judge | Retrace) -> RunResult:
        try:
            answer = self._ask(question)
        except WorkerDied as death:
            return RunResult(undetermined=f"worker-died: {death}")
        if isinstance(answer, Broken):
            return RunResult(undetermined=f"harness-error: {answer.message}")
        assert isinstance(answer, Judged)
        return _without_exhaustion(answer.result)

    def _judge_hang(self, run: Run, first: Stall) -> RunResult:
        """A hang counts if it comes again, in the same function of the system, in a new process."""
        try:
            result = self._judge_once(run)
        except WorkerHung as hung:
            return self._verdict_on_hang(first, hung.stall)
        if not result.violations and not result.undetermined:
            result.undetermined = "hung-once: the run hung, and did not when it was judged again"
        return result

    def _verdict_on_hang(self, first: Stall, again: Stall) -> RunResult:
        if again.run is None or not again.function or again.function != first.function:
            where = ", ".join(again.stack[-3:]) or "unknown"
            return RunResult(undetermined=f"hung: no progress, twice, but not in one place of the system ({where})")
        return RunResult(violations=(self._violation(again),), actions=len(again.run.actions))

    def _violation(self, stall: Stall) -> Violation:
        return Violation(
            invariant=HANG,
            severity=str(Severity.STALL),
            message=f"no end within {self._limits.stall_seconds:g} s: it hangs in {stall.function} ({stall.module})",
            signature=f"{HANG} {stall.function}",
            index=len(stall.run.actions) - 1 if stall.run is not None else 0,
        )

    def _hung_search(self, stall: Stall) -> SearchResult:
        if stall.run is None:
            return _nothing_found("hung: a run made no progress and cannot be told")
        result = self._judge_hang(stall.run, stall)
        found = _nothing_found(result.undetermined, stall.run)
        return msgspec.structs.replace(found, violations=result.violations)

    def _shrunk_hang(self, run: Run, signature: str, seconds: float) -> Shrunk:
        patience = min(self._limits.stall_seconds, _SHRINKING_STALL_SECONDS)
        limits = msgspec.structs.replace(self._limits, stall_seconds=patience)
        impatient = Watched(self.spec, limits=limits, loader=self._loader, searcher=self._searcher)
        with self._lock:
            if self._stopped:
                raise Stopped
            self._helper = impatient

        best = Shrunk(run)

        def still_hangs(candidate: Run) -> bool:
            nonlocal best
            try:
                impatient._judge_once(candidate)
            except WorkerHung as hung:
                violation, reached = self._violation(hung.stall), hung.stall.run or candidate
                if violation.signature == signature and complexity(reached) < complexity(best.run):
                    best = Shrunk(reached, violation)
                return violation.signature == signature
            return False

        try:
            if still_hangs(run):  # what comes after the action that hangs is gone with that
                shrink(best.run, still_hangs, seconds)
        except KeyboardInterrupt:
            pass  # the best so far is told
        finally:
            impatient.close()
        return best


def code_and_message(undetermined: str) -> tuple[str, str]:
    """The two parts of what an undetermined result says."""
    code, colon, message = undetermined.partition(": ")
    return (_CODES.get(code, code), message) if colon else ("undetermined", undetermined)


_EMPTY_RUN = Run(layout=Layout(groups=(), num_blocks=1, max_model_len=1, token_budget=1), actions=())


def _nothing_found(undetermined: str, run: Run | None = None) -> SearchResult:
    return SearchResult(
        run=run or _EMPTY_RUN,
        violations=(),
        witnesses={},
        possible=(),
        actions_by_kind={},
        actions=len(run.actions) if run else 0,
        skipped=0,
        undetermined=undetermined,
    )


def _without_exhaustion(result: Result) -> Result:
    """Memory that ran out in the worker is no mistake of the system's, nor of kvcheck's."""
    if "MemoryError" in " ".join([result.undetermined, *(v.signature for v in result.violations)]):
        result.violations, result.undetermined = (), "worker-died: MemoryError"
    return result
