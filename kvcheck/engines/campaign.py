"""A campaign: many random runs on several workers; what they find is sorted into buckets, shrunk and replayed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from kvcheck.engines.findings import Findings
from kvcheck.engines.search import SearchResult
from kvcheck.engines.seeds import seed_of_run
from kvcheck.engines.shrink import complexity
from kvcheck.engines.watched import HANG, Stopped, Watched, code_and_message
from kvcheck.engines.workers import Limits, WorkerDied, WorkerHung
from kvcheck.invariants.registry import Violation
from kvcheck.invariants.witnesses import WITNESSES
from kvcheck.model.actions import ACTION_KINDS, Run
from kvcheck.model.layout import Layout
from kvcheck.model.observation import TargetInfo, Trace
from kvcheck.targets.errors import TargetError

MOST_BUCKETS = 200
MOST_UNDETERMINED = 50
SHRINK_SECONDS = 20.0
"""The most that the shrinking of one bucket may take."""
CONFIRM_SECONDS = 2.0
"""What the two replays of a bucket are expected to take."""

Verdict = Literal["passed", "violated", "undetermined"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a campaign is to do. ``layout``: None is random ones. ``seconds``, ``runs``: None is no limit."""

    spec: str
    seed: int
    out: Path
    info: TargetInfo | None = None
    layout: Layout | None = None
    seconds: float | None = 60.0
    runs: int | None = None
    jobs: int = 1
    limits: Limits = Limits()
    loader: str = "kvcheck.targets.loading:load_target"
    searcher: str = "kvcheck.engines.worker_child:search"


class Bucket(msgspec.Struct, kw_only=True):
    """All that has one signature. ``run`` is the shortest known, ``index`` the run of the campaign that found it."""

    signature: str
    violation: Violation
    run: Run
    original: Run
    index: int
    found_after: float
    file: Path
    times: int = 1
    state: Literal["found", "shrinking", "shrunk", "confirmed", "lost"] = "found"
    needs: tuple[str, ...] = ()
    trace: Trace | None = None


class Undetermined(msgspec.Struct, kw_only=True):
    """Something that nothing can be said about, and how often."""

    code: str
    message: str
    times: int = 1


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a campaign is."""

    runs: int
    actions: int
    seconds: float
    reached: int
    possible: int
    buckets: tuple[tuple[str, int, str], ...]
    undetermined: int
    searching: bool


class CampaignResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a campaign."""

    plan: Plan
    info: TargetInfo
    verdict: Verdict
    runs: int
    actions: int
    skipped: int
    seconds: float
    interrupted: bool
    buckets: tuple[Bucket, ...]
    undetermined: tuple[Undetermined, ...]
    witnesses: dict[str, int]
    actions_by_kind: dict[str, int]


class Campaign:
    """One campaign. ``run`` blocks; ``interrupt`` may be called from a signal handler."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.interrupted = False
        self._findings = Findings(plan.out, plan.spec)
        self._lock = threading.Condition()
        self._began = time.monotonic()
        self._search_end = self._began + plan.seconds if plan.seconds is not None else float("inf")
        self._next_index = 0
        self._busy = 0
        self._shrinking = 0
        self._shrink_seconds = 0.0
        self._search_over_at: float | None = None
        self._stopping = False
        self._error: BaseException | None = None
        self._info = plan.info
        self._watched: list[Watched] = []
        self._buckets: dict[str, Bucket] = {}
        self._undetermined: dict[tuple[str, str], Undetermined] = {}
        self._runs = self._actions = self._skipped = 0
        self._witnesses: Counter[str] = Counter()
        self._possible: set[str] = set()
        self._kinds: Counter[str] = Counter()

    def run(self, watch: Callable[[Progress], None] = lambda progress: None, every: float = 0.25) -> CampaignResult:
        """Work until a limit is reached, and tell ``watch`` how far it is.

        Raises:
            TargetError: the target cannot be loaded.
        """
        threads = [threading.Thread(target=self._work, name=f"worker-{i}", daemon=True) for i in range(self.plan.jobs)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self._wait(threads, every)
            watch(self.progress())
            if self.interrupted or self._error or time.monotonic() > self._hard_end():
                self._stop()
        if self._error is not None and (not isinstance(self._error, TargetError) or not self._runs):
            raise self._error
        return self._result()

    def interrupt(self) -> None:
        """Stop soon; what was found so far is reported."""
        self.interrupted = True

    @property
    def found_something(self) -> bool:
        """Whether there is a violation to report."""
        return any(bucket.state != "lost" for bucket in list(self._buckets.values()))

    def kill(self) -> None:
        """End all workers at once."""
        self._stop()

    def progress(self) -> Progress:
        """How far it is now."""
        with self._lock:
            reached = sum(1 for name in self._possible if self._witnesses[name])
            return Progress(
                runs=self._runs,
                actions=self._actions,
                seconds=time.monotonic() - self._began,
                reached=reached,
                possible=len(self._possible),
                buckets=tuple((b.signature, b.times, b.state) for b in self._buckets.values()),
                undetermined=sum(u.times for u in self._undetermined.values()),
                searching=self._search_over_at is None,
            )

    # ---- threads: each drives one worker process -------------------------------------------------------------------

    def _work(self) -> None:
        plan = self.plan
        watched = Watched(
            plan.spec,
            limits=plan.limits,
            layout=plan.layout,
            loader=plan.loader,
            searcher=plan.searcher,
            expected=plan.info,
        )
        try:
            with self._lock:
                self._watched.append(watched)
                if self._stopping:
                    return
            if self._begin(watched):
                while (task := self._next_task()) is not None:
                    self._do(task, watched)
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001  raised again where the campaign was started
            self._error = self._error or error
        finally:
            watched.close()

    def _begin(self, watched: Watched) -> bool:
        """Load the target; False if this campaign cannot be."""
        try:
            info, unsupported = watched.start(), watched.unsupported()
        except (WorkerDied, WorkerHung) as error:
            self._note("worker-died", f"a worker did not survive loading the target: {error}")
            return False
        self._info = info
        if unsupported:
            self._note("not-supported", unsupported, times=0)
        return not unsupported

    def _next_task(self) -> Callable[[Watched], None] | None:
        with self._lock:
            while not self._stopping:
                task = self._choose_task()
                if task is not None:
                    self._busy += 1
                    return task
                if not self._busy:
                    return None
                self._lock.wait(0.2)
        return None

    def _do(self, task: Callable[[Watched], None], watched: Watched) -> None:
        try:
            task(watched)
        finally:
            with self._lock:
                self._busy -= 1
                self._lock.notify_all()

    def _choose_task(self) -> Callable[[Watched], None] | None:
        shrunk = next((b for b in self._buckets.values() if b.state == "shrunk"), None)
        if shrunk is not None:
            shrunk.state = "shrinking"
            return lambda watched: self._confirm(watched, shrunk)
        found = next((b for b in self._buckets.values() if b.state == "found"), None)
        if found is not None and self._may_shrink():
            found.state = "shrinking"
            self._shrinking += 1
            seconds = self._seconds_to_shrink()
            return lambda watched: self._shrink(watched, found, seconds)
        if self._may_search():
            index, self._next_index = self._next_index, self._next_index + 1
            return lambda watched: self._search(watched, index)
        return None

    def _may_search(self) -> bool:
        within = self.plan.runs is None or self._next_index < self.plan.runs
        if within and time.monotonic() < self._search_end:
            return True
        if self._search_over_at is None:
            self._search_over_at = time.monotonic()
        return False

    def _may_shrink(self) -> bool:
        """Shrinking takes no more than half of the workers, and of a single worker half the time, while others search."""
        if not self._may_search():
            return True
        if self._shrinking >= max(1, self.plan.jobs // 2):
            return False
        elapsed = (time.monotonic() - self._began) * self.plan.jobs
        return self._shrink_seconds <= elapsed / 2

    def _seconds_to_shrink(self) -> float:
        waiting = 1 + sum(b.state == "found" for b in self._buckets.values())
        left = self._hard_end() - time.monotonic()
        if left == float("inf"):
            return SHRINK_SECONDS
        return max(1.0, min(SHRINK_SECONDS, left * self.plan.jobs / waiting - CONFIRM_SECONDS))

    def _hard_end(self) -> float:
        """When even shrinking and replaying has to stop: some time after the search."""
        if self._search_over_at is None and self.plan.seconds is None:
            return float("inf")
        over = self._search_over_at if self._search_over_at is not None else self._search_end
        seconds = self.plan.seconds if self.plan.seconds is not None else over - self._began
        return over + min(60.0, max(10.0, seconds / 2))

    # ---- what a worker is given to do ------------------------------------------------------------------------------

    def _search(self, watched: Watched, index: int) -> None:
        result = watched.search(seed_of_run(self.plan.seed, index))
        with self._lock:
            self._count(result)
            for violation in {v.signature: v for v in result.violations}.values():
                self._sort(violation, result.run, index)
        if result.undetermined:
            self._note_run(*code_and_message(result.undetermined), result.run, index)

    def _count(self, result: SearchResult) -> None:
        self._runs += 1
        self._actions += result.actions
        self._skipped += result.skipped
        self._witnesses.update(result.witnesses)
        self._possible.update(result.possible)
        self._kinds.update(result.actions_by_kind)

    def _sort(self, violation: Violation, run: Run, index: int) -> None:
        signature = violation.signature
        bucket = self._buckets.get(signature)
        if bucket is not None:
            bucket.times += 1
            if bucket.state != "found" or complexity(run) >= complexity(bucket.run):
                return
            bucket.run = bucket.original = run
            bucket.violation, bucket.index = violation, index
        elif len(self._buckets) >= MOST_BUCKETS:
            self._note("too-many-buckets", f"more than {MOST_BUCKETS} different violations: the rest is not kept")
            return
        file = self._findings.save(signature, run)
        if bucket is None:
            self._buckets[signature] = Bucket(
                signature=signature,
                violation=violation,
                run=run,
                original=run,
                index=index,
                found_after=time.monotonic() - self._began,
                file=file,
            )

    def _shrink(self, watched: Watched, bucket: Bucket, seconds: float) -> None:
        began = time.monotonic()

        def better(run: Run) -> None:
            bucket.run = run

        try:
            shrunk = watched.shrink(bucket.original, bucket.signature, seconds, better)
            bucket.run, bucket.needs = shrunk.run, shrunk.needs
        finally:
            with self._lock:
                self._shrinking -= 1
                self._shrink_seconds += time.monotonic() - began
        self._findings.save(bucket.signature, bucket.run)
        bucket.state = "shrunk"

    def _confirm(self, watched: Watched, bucket: Bucket) -> None:
        """Replay the shrunk run twice in a new process, and if that shows nothing, the run as it was found."""
        traces = self._replays(watched, bucket, bucket.run)
        if bucket.state != "confirmed" and bucket.run != bucket.original:
            traces = self._replays(watched, bucket, bucket.original)
            if bucket.state == "confirmed":
                bucket.run, bucket.needs = bucket.original, ()
        if bucket.state == "confirmed":
            self._findings.save(bucket.signature, bucket.run, traces[:1])
            return
        bucket.state = "lost"
        self._findings.discard(bucket.signature)
        file = self._findings.save_undetermined(bucket.signature, bucket.original, traces)
        self._note("not-reproducible", f"{bucket.signature}: seen once, not when its run was replayed ({file})")

    def _replays(self, watched: Watched, bucket: Bucket, run: Run) -> tuple[Trace, ...]:
        watched.renew()
        results = [watched.judge(run, record=True) for _ in range(1 if bucket.signature.startswith(HANG) else 2)]
        traces = tuple(result.trace for result in results if result.trace is not None)
        found = [next((v for v in r.violations if v.signature == bucket.signature), None) for r in results]
        if all(found):
            assert found[0] is not None
            bucket.violation, bucket.state = found[0], "confirmed"
            bucket.trace = traces[0] if traces else None
            if len({msgspec.msgpack.encode(trace.observations) for trace in traces}) > 1:
                self._note_run("disagrees-with-itself", f"{bucket.signature}: two replays differ", run, bucket.index)
        return traces

    # ---- what nothing can be said about ----------------------------------------------------------------------------

    def _note(self, code: str, message: str, times: int = 1) -> bool:
        """Keep it; False if it was known. ``times`` 0: the same told by several workers counts once."""
        with self._lock:
            known = self._undetermined.get((code, message))
            if known is not None:
                known.times += times
                return False
            if len(self._undetermined) >= MOST_UNDETERMINED:
                code, message = "more", "more undetermined results than are kept"
                self._undetermined.setdefault((code, message), Undetermined(code=code, message=message))
                return False
            self._undetermined[code, message] = Undetermined(code=code, message=message)
            return True

    def _note_run(self, code: str, message: str, run: Run, index: int) -> None:
        if self._note(code, message) and run.actions:
            self._findings.save_undetermined(f"{code}-run-{index}", run)

    # ---- the end ---------------------------------------------------------------------------------------------------

    def _wait(self, threads: list[threading.Thread], seconds: float) -> None:
        end = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _stop(self) -> None:
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
            watched = list(self._watched)
        for one in watched:
            one.stop()

    def _result(self) -> CampaignResult:
        if self._error is not None:
            self._note("target-lost", str(self._error))
        if not self._runs and not self._undetermined:
            self._note("no-runs", "no run was made")
        if self._findings.error:
            self._note("cannot-write", self._findings.error)
        for name in sorted(n for n in self._possible if not self._witnesses[n]):
            self._note("never-reached", f"{name}: {WITNESSES[name].description}" if name in WITNESSES else name)
        assert self._info is not None
        buckets = tuple(b for b in self._buckets.values() if b.state != "lost")
        verdict: Verdict = "violated" if buckets else "undetermined" if self._undetermined else "passed"
        return CampaignResult(
            plan=self.plan,
            info=self._info,
            verdict=verdict,
            runs=self._runs,
            actions=self._actions,
            skipped=self._skipped,
            seconds=time.monotonic() - self._began,
            interrupted=self.interrupted,
            buckets=buckets,
            undetermined=tuple(self._undetermined.values()),
            witnesses={name: self._witnesses[name] for name in sorted(self._possible | set(self._witnesses))},
            actions_by_kind={kind: self._kinds[kind] for kind in ACTION_KINDS},
        )
