"""A campaign: many random runs on several workers; what they find is sorted into buckets, shrunk and replayed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from kvcheck.engines.buckets import MOST_BUCKETS, Bucket, Buckets
from kvcheck.engines.clock import Clock
from kvcheck.engines.crash import Crash
from kvcheck.engines.earlier import Earlier, Replayed
from kvcheck.engines.findings import Findings
from kvcheck.engines.replaying import Replays
from kvcheck.engines.seeds import index_in_shard, seed_of_run
from kvcheck.engines.tally import Tally, Undetermined
from kvcheck.engines.watched import HANG, Stopped, Watched, code_and_message
from kvcheck.engines.workers import Limits, WorkerDied, WorkerHung
from kvcheck.model.actions import Run
from kvcheck.model.layout import Layout
from kvcheck.model.observation import TargetInfo, Trace
from kvcheck.targets.errors import TargetError

SHRINK_SECONDS = 20.0
"""The most that the shrinking of one bucket may take."""
CONFIRM_SECONDS = 2.0
"""What the replays of a bucket are expected to take."""

Verdict = Literal["passed", "violated", "undetermined"]
Task = Callable[[Watched], None]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a campaign is to do. ``layout``: None is random ones. ``seconds``, ``runs``, ``actions``: None is no limit;
    ``runs`` are those of all shards together. ``shard``: which part of the runs, from 1, and of how many. ``earlier``:
    what is replayed first; ``unread``: why some of that could not be read. ``known``: signatures of violations that are
    no failure. ``wanted``: the one thing that is looked for; all else that is found is kept as it is. ``topics``: what
    the searcher is directed by."""

    spec: str
    seed: int
    out: Path
    info: TargetInfo | None = None
    layout: Layout | None = None
    seconds: float | None = 60.0
    runs: int | None = None
    actions: int | None = None
    jobs: int = 1
    shard: tuple[int, int] = (1, 1)
    earlier: tuple[Earlier, ...] = ()
    unread: tuple[str, ...] = ()
    known: frozenset[str] = frozenset()
    limits: Limits = Limits()
    loader: str = "kvcheck.targets.loading:load_target"
    searcher: str = "kvcheck.engines.worker_child:search"
    wanted: Crash | None = None
    topics: tuple[str, ...] = ()


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a campaign is. ``buckets``: signature, how often, state."""

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
    earlier: tuple[Replayed, ...] = ()

    @property
    def failures(self) -> tuple[Bucket, ...]:
        """What was found and is not known."""
        return tuple(bucket for bucket in self.buckets if not bucket.known)

    @property
    def known(self) -> tuple[Bucket, ...]:
        """What was found and is known."""
        return tuple(bucket for bucket in self.buckets if bucket.known)


class Campaign:
    """One campaign. ``run`` blocks, with a thread for each worker process; ``interrupt``, ``kill`` and
    ``found_something`` are for signal handlers."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.interrupted = False
        self._findings = Findings(plan.out, plan.spec)
        self._buckets = Buckets(self._findings, plan.wanted.is_shown_by if plan.wanted else None, plan.known)
        self._tally = Tally()
        self._earlier = Replays(plan.earlier, self._buckets, self._tally)
        self._clock = Clock(plan.seconds)
        self._tasks = threading.Condition()
        self._next_index = 0
        self._busy = 0
        self._on_found = 0
        self._seconds_on_found = 0.0
        self._stopping = False
        self._error: BaseException | None = None
        self._info = plan.info
        self._watched: list[Watched] = []

    def run(self, watch: Callable[[Progress], None] | None = None, every: float = 0.25) -> CampaignResult:
        """Work until a limit is reached, and tell ``watch`` how far it is.

        Raises:
            TargetError: the target cannot be loaded.
        """
        threads = [threading.Thread(target=self._work, name=f"worker-{i}", daemon=True) for i in range(self.plan.jobs)]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                _join(threads, every)
                if watch is not None:
                    watch(self.progress())
                if self.interrupted or self._error or time.monotonic() > self._clock.hard_end:
                    self.kill()
        finally:
            self.kill()
            _join(threads, 10.0)
        if self._error is not None and not self._tally.runs:
            raise self._error
        return self._result()

    def interrupt(self) -> None:
        """Stop soon; what was found so far is reported."""
        self.interrupted = True

    def kill(self) -> None:
        """End all workers at once."""
        self._stopping = True
        for watched in list(self._watched):
            watched.stop()

    @property
    def found_something(self) -> bool:
        """Whether there is a violation to report that is not known."""
        return self._buckets.any()

    def progress(self) -> Progress:
        """How far it is now."""
        witnesses = self._tally.witnesses
        return Progress(
            runs=self._tally.runs,
            actions=self._tally.actions,
            seconds=self._clock.elapsed,
            reached=sum(1 for count in witnesses.values() if count),
            possible=len(witnesses),
            buckets=tuple((b.signature, b.times, b.state) for b in self._buckets.all()),
            undetermined=sum(item.times for item in self._tally.undetermined),
            searching=not self._clock.search_is_over,
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
            topics=plan.topics,
            expected=plan.info,
        )
        self._watched.append(watched)
        try:
            if not self._stopping and self._begin(watched):
                while (task := self._next_task()) is not None:
                    self._do(task, watched)
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001  raised again where the campaign was started
            self._error = self._error or error
        finally:
            watched.close()

    def _begin(self, watched: Watched) -> bool:
        """Load the target; False if nothing can be done with it."""
        try:
            info, unsupported = watched.start(), watched.unsupported()
        except (WorkerDied, WorkerHung) as error:
            self._tally.note("worker-died", f"a worker did not survive loading the target: {error}")
            return False
        self._info = info
        self._clock.begin_search()
        if unsupported:
            self._tally.note("not-supported", unsupported)
        return not unsupported

    def _next_task(self) -> Task | None:
        """What to do next; None if there will be nothing any more."""
        with self._tasks:
            while not self._stopping:
                task = self._choose_task()
                if task is not None:
                    self._busy += 1
                    return task
                if not self._busy:
                    return None
                self._tasks.wait(0.2)
        return None

    def _do(self, task: Task, watched: Watched) -> None:
        try:
            task(watched)
        finally:
            with self._tasks:
                self._busy -= 1
                self._tasks.notify_all()

    def _choose_task(self) -> Task | None:
        """Earlier failures come first. What was found is shrunk and replayed before the search goes on, as far as that
        may be."""
        if not self._clock.earlier_is_over and (number := self._earlier.take()) is not None:
            return lambda watched: self._earlier.replay(watched, number)
        may_search = self._may_search()
        if (not may_search or self._may_work_on_found()) and (task := self._choose_found()) is not None:
            self._on_found += 1
            return lambda watched: self._work_on_found(watched, task)
        if may_search:
            index = index_in_shard(self.plan.shard, self._next_index)
            self._next_index += 1
            return lambda watched: self._search(watched, index)
        return None

    def _choose_found(self) -> Task | None:
        """Of what was found: replaying what is short comes before shrinking, and what was replayed is shrunk last."""
        if (shrunk := self._buckets.take("shrunk", "confirming")) is not None:
            return lambda watched: self._confirm(watched, shrunk)
        seconds = self._seconds_to_shrink()
        if (found := self._buckets.take("found", "shrinking")) is not None:
            return lambda watched: self._shrink(watched, found, seconds)
        if (shown := self._buckets.take("shown", "shortening")) is not None:
            return lambda watched: self._shorten(watched, shown, seconds)
        return None

    def _may_search(self) -> bool:
        plan = self.plan
        if plan.runs is not None and index_in_shard(plan.shard, self._next_index) >= plan.runs:
            self._clock.end_search()
        if plan.actions is not None and self._tally.actions >= plan.actions:
            self._clock.end_search()
        if plan.wanted is not None and self._buckets.any():
            return False  # it is shrunk and replayed; if it does not show again, the search goes on
        return not self._clock.search_is_over

    def _may_work_on_found(self) -> bool:
        """While the search goes on, shrinking and replaying get half of the workers at most, and half of the time."""
        if self._on_found >= max(1, self.plan.jobs // 2):
            return False
        return self._seconds_on_found <= self._clock.elapsed * self.plan.jobs / 2

    def _seconds_to_shrink(self) -> float:
        share = self._clock.left * self.plan.jobs / max(1, self._buckets.waiting())
        return max(1.0, min(SHRINK_SECONDS, share - CONFIRM_SECONDS))

    # ---- what a worker is given to do ------------------------------------------------------------------------------

    def _search(self, watched: Watched, index: int) -> None:
        result = watched.search(seed_of_run(self.plan.seed, index))
        self._tally.count(result)
        for violation in {v.signature: v for v in result.violations}.values():
            self._buckets.sort(violation, result.run, index)
        if result.undetermined:
            self._note_run(*code_and_message(result.undetermined), result.run, index)

    def _work_on_found(self, watched: Watched, task: Task) -> None:
        began = time.monotonic()
        try:
            task(watched)
        finally:
            with self._tasks:
                self._on_found -= 1
                self._seconds_on_found += time.monotonic() - began

    def _shrink(self, watched: Watched, bucket: Bucket, seconds: float) -> None:
        shrunk = watched.shrink(bucket.original, bucket.signature, seconds)
        bucket.run, bucket.needs, bucket.violation = shrunk.run, shrunk.needs, shrunk.violation or bucket.violation
        self._findings.save(bucket.signature, bucket.run)
        bucket.state = "shrunk"

    def _confirm(self, watched: Watched, bucket: Bucket) -> None:
        """Replay the shrunk run in a new process, and if that shows nothing, the run as it was found."""
        traces: tuple[Trace, ...] = ()
        for run in (bucket.run, bucket.original) if bucket.run != bucket.original else (bucket.run,):
            traces = self._replays(watched, bucket, run)
            if bucket.state == "confirmed":
                self._findings.save(bucket.signature, run, traces[:1])
                return
        self._findings.discard(bucket.signature)
        file = self._findings.save_undetermined(bucket.signature, bucket.original, traces)
        self._tally.note("not-reproducible", f"{bucket.signature}: not seen when its run was replayed ({file})")
        bucket.lost += 1
        bucket.state = "lost"  # last: from here on another thread may put another run into its place

    def _shorten(self, watched: Watched, bucket: Bucket, seconds: float) -> None:
        """Shrink what was replayed before: if the shorter run does not show it again, or there is no time, it stays."""
        shrunk = watched.shrink(bucket.run, bucket.signature, seconds)
        traces = self._replays(watched, bucket, shrunk.run) if shrunk.run != bucket.run else ()
        if shrunk.run == bucket.run:
            bucket.needs = shrunk.needs
        if traces and shrunk.run == bucket.run:
            self._findings.save(bucket.signature, bucket.run, traces[:1])
        bucket.state = "confirmed"

    def _replays(self, watched: Watched, bucket: Bucket, run: Run) -> tuple[Trace, ...]:
        """Two replays, of a hang one, because it was judged twice when it was found; what they recorded. What else they
        show is sorted too: whoever replays this run next will see it."""
        watched.renew()
        results = [watched.judge(run, record=True) for _ in range(1 if bucket.signature.startswith(HANG) else 2)]
        traces = tuple(result.trace for result in results if result.trace is not None)
        shown = [{violation.signature: violation for violation in result.violations} for result in results]
        for signature, violation in {**shown[-1], **shown[0]}.items():
            if signature != bucket.signature:
                again = {"state": "shown", "trace": traces[0]} if traces and all(signature in s for s in shown) else {}
                self._buckets.sort(violation, run, bucket.index, origin=bucket.origin, **again)
        if all(bucket.signature in seen for seen in shown):
            if run != bucket.run:
                bucket.run, bucket.needs = run, ()
            bucket.violation, bucket.state = shown[0][bucket.signature], "confirmed"
            bucket.trace = traces[0] if traces else None
            if len({msgspec.msgpack.encode(trace.observations) for trace in traces}) > 1:
                self._note_run("disagrees-with-itself", f"{bucket.signature}: two replays differ", run, bucket.index)
        return traces

    def _note_run(self, code: str, message: str, run: Run, index: int | None) -> None:
        if self._tally.note(code, message) and run.actions:
            self._findings.save_undetermined(f"{code}-run-{'earlier' if index is None else index}", run)

    # ---- the end ---------------------------------------------------------------------------------------------------

    def _result(self) -> CampaignResult:
        self._note_the_rest()
        buckets, undetermined = self._buckets.all(), self._tally.undetermined
        return CampaignResult(
            plan=self.plan,
            info=self._info or TargetInfo(spec=self.plan.spec),
            verdict=_verdict(buckets, undetermined),
            runs=self._tally.runs,
            actions=self._tally.actions,
            skipped=self._tally.skipped,
            seconds=self._clock.elapsed,
            interrupted=self.interrupted,
            buckets=buckets,
            undetermined=undetermined,
            witnesses=self._tally.witnesses,
            actions_by_kind=self._tally.actions_by_kind,
            earlier=self._earlier.results(),
        )

    def _note_the_rest(self) -> None:
        """Whatever keeps the campaign as a whole from saying that all is well."""
        tally = self._tally
        if self._error is not None:
            code = "target-lost" if isinstance(self._error, TargetError) else "harness-error"
            tally.note(code, f"{type(self._error).__name__}: {self._error}")
        if self.interrupted:
            tally.note("interrupted", "the campaign was interrupted")
        if self._findings.error:
            tally.note("cannot-write", self._findings.error)
        if self._buckets.full:
            tally.note("too-many-violations", f"of more than {MOST_BUCKETS} different ones the rest is not kept")
        for complaint in self.plan.unread:
            tally.note("earlier-unread", complaint)
        self._earlier.note_the_rest()
        if not tally.actions and not tally.undetermined:
            tally.note("no-runs", "no run was made")
        tally.note_unreached()


def _verdict(buckets: tuple[Bucket, ...], undetermined: tuple[Undetermined, ...]) -> Verdict:
    if any(not bucket.known for bucket in buckets):
        return "violated"
    return "undetermined" if undetermined else "passed"


def _join(threads: list[threading.Thread], seconds: float) -> None:
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
