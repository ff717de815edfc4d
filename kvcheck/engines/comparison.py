"""The same runs on two targets: what only one of them breaks, and what the same work costs each.

Each target is in a process of its own. A run is drawn in view of one of them, in turn, and goes on until both have had
time to finish.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

from kvcheck.engines.findings import Findings
from kvcheck.engines.judging import RunResult
from kvcheck.engines.measures import WORSE, differing, percent_worse, total, worse_by
from kvcheck.engines.seeds import seed_of_run
from kvcheck.engines.shrink import complexity, shrink
from kvcheck.engines.tally import Tally, Undetermined
from kvcheck.engines.watched import HANG, Stopped, Watched, code_and_message
from kvcheck.engines.workers import WorkerDied, WorkerHung
from kvcheck.invariants.registry import Violation
from kvcheck.model.actions import Action, Arrive, Complete, Extend, Run, Schedule, Transfer
from kvcheck.model.layout import Layout
from kvcheck.model.observation import TargetInfo, Trace
from kvcheck.targets.errors import TargetError

SHRINK_SECONDS = 20.0
"""The most that the shrinking of one run may take."""
LEAST_SECONDS = 5.0
"""All shrinking together may take as long as the comparison has taken, and at least this."""
SPARE_PASSES = 4
"""So many passes, and a quarter of those of the run, are added to it: a server may need more than another."""
PATIENCE = (1, 4, 32)
"""So many times as many are added in turn, while one target finishes the run and the other is still at it."""
BASE, HEAD = 0, 1
KINDS = ("fixed", "new")
"""What a violation is called that only base, or only head, shows."""

replace = msgspec.structs.replace
Pair = tuple[RunResult, RunResult]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to compare. ``seconds``, ``runs``: None is no limit; shrinking comes on top. ``limits``: how many percent
    worse a measure may be."""

    base: str
    head: str
    seed: int
    out: Path
    infos: tuple[TargetInfo, TargetInfo]
    layout: Layout | None = None
    seconds: float | None = 60.0
    runs: int | None = None
    limits: dict[str, float] = {}


class Difference(msgspec.Struct, kw_only=True):
    """A violation of one target that the other does not show in the same run. ``times``: in how many runs. ``trace``:
    of the run, once it was shrunk."""

    violation: Violation
    run: Run
    file: Path
    times: int = 1
    trace: Trace | None = None


class Masked(msgspec.Struct, frozen=True):
    """A violation of one target in a run in which the other did not come as far. ``why``: what kept it."""

    run: Run
    why: str


class Worse(msgspec.Struct, kw_only=True):
    """A measure that is worse on head in some runs: in how many, better in how many. ``run``: the shortest such run
    known, with its ``base`` and ``head`` and the actions (index, base, head) at which they differ. ``ends``: so many of
    its actions do all the work. Once it was shrunk it ends where they differ last."""

    measure: str
    times: int = 0
    better: int = 0
    run: Run | None = None
    file: Path | None = None
    base: int = 0
    head: int = 0
    at: tuple[tuple[int, int, int], ...] = ()
    ends: int = 0

    def keep(self, run: Run, results: Pair) -> None:
        """Take this run for the shortest."""
        self.run = run
        self.base, self.head = (total(result.measures)[self.measure] for result in results)
        busy = [index for result in results for index, one in enumerate(result.measures) if any(one.values())]
        self.ends = max(busy, default=0) + 1 + run.layout.steps_in_flight
        self.at = tuple(differing(self.measure, *(result.measures for result in results)))


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it.

    ``both``: signatures that one target shows in runs where the other does not, which shows them in other runs: in how
    many base does, and head. ``alike``: signatures that both show in the same runs: in how many. ``paired``: runs that
    both brought to their end, of which the totals and the ``scheduling_seconds`` (base, head) are. ``unfinished``: runs
    that only the other one (base, head) has finished. ``neither``: runs that none of them has finished.
    ``not_supported``: runs with a layout that one of them does not have. ``not_drawn``: runs that there are not,
    because the target that should draw them did not survive it.
    """

    plan: Plan
    new: tuple[Difference, ...]
    fixed: tuple[Difference, ...]
    both: dict[str, tuple[int, int]]
    alike: dict[str, int]
    worse: tuple[Worse, ...]
    base: Counter[str]
    head: Counter[str]
    scheduling_seconds: tuple[float, float]
    runs: int
    paired: int
    unfinished: tuple[int, int]
    neither: int
    not_supported: int
    not_drawn: int
    seconds: float
    interrupted: bool
    undetermined: tuple[Undetermined, ...]

    @property
    def exceeded(self) -> tuple[str, ...]:
        """Measures that are worse by more than they may be."""
        limits = self.plan.limits.items()
        return tuple(name for name, limit in limits if percent_worse(name, self.base, self.head) > limit)

    @property
    def verdict(self) -> str:
        """Violated: head breaks what base does not, or a measure is worse by more than it may be."""
        if self.new or self.exceeded:
            return "violated"
        return "undetermined" if self.undetermined else "passed"


class Comparison:
    """Two watched targets side by side. ``run`` blocks; ``interrupt``, ``kill`` and ``found_something`` are for signal
    handlers."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.interrupted = False
        self.runs = self.paired = 0
        self._targets = tuple(
            Watched(spec, layout=plan.layout, expected=info)
            for spec, info in zip((plan.base, plan.head), plan.infos, strict=True)
        )
        self._threads = ThreadPoolExecutor(2)
        self._findings = (Findings(plan.out / KINDS[BASE], plan.base), Findings(plan.out / KINDS[HEAD], plan.head))
        self._shown: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._own: tuple[dict[str, Difference], dict[str, Difference]] = ({}, {})
        self._masked: tuple[dict[str, Masked], dict[str, Masked]] = ({}, {})
        self._unexplained = 0
        self._shortest_unexplained: Run | None = None
        self._worse = {measure: Worse(measure=measure) for measure in WORSE}
        self._totals: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._seconds = [0.0, 0.0]
        self._unfinished = [0, 0]
        self._neither = self._not_supported = self._not_drawn = 0
        self._tally = Tally()

    def run(self, watch: Callable[[Comparison], None]) -> Result:
        """Compare until a limit is reached or it is interrupted, then shrink; ``watch`` is told after each run.

        Raises:
            TargetError: a target cannot be loaded.
        """
        began = time.monotonic()
        try:
            if not self._unsupported():
                while not self._over(began):
                    self._compare(self.runs)
                    self.runs += 1
                    watch(self)
                self._shrink_all(time.monotonic() + max(LEAST_SECONDS, time.monotonic() - began))
        except Stopped:
            pass  # what was found is told
        except TargetError as error:
            if not self.runs:
                raise
            self._tally.note("target-lost", str(error))
        finally:
            self._save_worse()
            for target in self._targets:
                target.close()
            self._threads.shutdown()
        self._note_the_rest()
        return self._result(time.monotonic() - began)

    def interrupt(self) -> None:
        """End soon; what was found so far is reported."""
        self.interrupted = True
        self.kill()

    def kill(self) -> None:
        """End both targets at once."""
        for target in self._targets:
            target.stop()

    @property
    def found_something(self) -> bool:
        """Whether there is a violation to report."""
        return any(not self._shown[BASE][signature] for signature in list(self._own[HEAD]))

    # ---- comparing -----------------------------------------------------------------------------------------------

    def _unsupported(self) -> bool:
        """Whether a target does not have the layout of all runs, or cannot say so."""
        if self.plan.layout is None:
            return False
        for target in self._targets:
            try:
                if why := target.unsupported():
                    self._tally.note("not-supported", f"{target.spec}: {why}")
            except (WorkerDied, WorkerHung) as error:
                self._tally.note("worker-died", f"{target.spec}: a worker did not survive loading it: {error}")
        return bool(self._tally.undetermined)

    def _over(self, began: float) -> bool:
        plan = self.plan
        late = plan.seconds is not None and time.monotonic() - began >= plan.seconds
        return late or (plan.runs is not None and self.runs >= plan.runs)

    def _compare(self, index: int) -> None:
        """One run, which the targets draw in turn, on both."""
        found = self._targets[index % 2].search(seed_of_run(self.plan.seed, index))
        if not found.run.actions:
            self._tally.note(*code_and_message(found.undetermined))
            self._not_drawn += 1
            return
        run, results = self._both_to_the_end(found.run)
        if any(result.undetermined.startswith("not supported") for result in results):
            self._not_supported += 1
            return
        for spec, result in zip((self.plan.base, self.plan.head), results, strict=True):
            if result.undetermined:
                code, message = code_and_message(result.undetermined)
                self._tally.note(code, f"{spec}: {message}")
        for side in (BASE, HEAD):
            self._shown[side].update(violation.signature for violation in results[side].violations)
            self._sort(side, run, results)
        self._measure(run, results)

    def _both_to_the_end(self, drawn: Run) -> tuple[Run, Pair]:
        """The run with as much time to finish as it takes, within bounds."""
        for patience in PATIENCE:
            run = with_time_to_finish(drawn, patience)
            results = self._both(run)
            base, head = map(is_finished, results)
            if base == head or any(map(is_cut, results)):
                break
        return run, results

    def _both(self, run: Run) -> Pair:
        first, second = self._threads.map(lambda target: target.judge(run, measure=True), self._targets)
        return first, second

    def _sort(self, side: int, run: Run, results: Pair) -> None:
        """What this side breaks and the other does not, or did not come to."""
        other = results[1 - side]
        for violation in results[side].violations:
            cut = replace(run, actions=run.actions[: violation.index + 1])
            verdict, why = other.said_of(violation.signature, violation.index)
            if verdict == "passed":
                self._keep_own(side, violation, cut)
            elif verdict == "undetermined":
                self._keep_masked(side, violation, Masked(cut, why))

    def _keep_own(self, side: int, violation: Violation, run: Run) -> None:
        signature = violation.signature
        known = self._own[side].get(signature)
        if known is not None:
            known.times += 1
        if known is None or complexity(run) < complexity(known.run):
            file = self._findings[side].save(signature, run)
            times = known.times if known is not None else 1
            self._own[side][signature] = Difference(violation=violation, run=run, file=file, times=times)

    def _keep_masked(self, side: int, violation: Violation, masked: Masked) -> None:
        known = self._masked[side].get(violation.signature)
        if known is None or complexity(masked.run) < complexity(known.run):
            self._masked[side][violation.signature] = masked

    def _measure(self, run: Run, results: Pair) -> None:
        ended = [is_finished(result) for result in results]
        if not all(ended):
            for side in (BASE, HEAD):
                self._unfinished[side] += not ended[side] and ended[1 - side]
            self._neither += not any(ended)
            if ended[BASE] and not is_cut(results[HEAD]):
                self._keep_unexplained(run)
            return
        self.paired += 1
        base, head = (total(result.measures) for result in results)
        self._totals[BASE].update(base)
        self._totals[HEAD].update(head)
        for side, result in enumerate(results):
            self._seconds[side] += result.scheduling_seconds
        for measure, worse in self._worse.items():
            by = worse_by(measure, base, head)
            worse.better += by < 0
            worse.times += by > 0
            if by > 0 and (worse.run is None or complexity(run) < complexity(worse.run)):
                worse.keep(run, results)

    def _keep_unexplained(self, run: Run) -> None:
        """Head breaks nothing in it and does not finish it, and base does: it may stand still."""
        self._unexplained += 1
        if self._shortest_unexplained is None or complexity(run) < complexity(self._shortest_unexplained):
            self._shortest_unexplained = run

    # ---- shrinking -----------------------------------------------------------------------------------------------

    def _shrink_all(self, end: float) -> None:
        """Each that is told in full has an equal share of the time that is left when its turn comes."""
        tasks: list[Callable[[float], None]] = [
            *self._differences_to_shrink(HEAD),
            *[partial(self._shrink_worse, worse) for worse in self._told()],
            *self._differences_to_shrink(BASE),
        ]
        for number, task in enumerate(tasks):
            share = (end - time.monotonic()) / (len(tasks) - number)
            task(max(1.0, min(SHRINK_SECONDS, share)))

    def _differences_to_shrink(self, side: int) -> Iterator[Callable[[float], None]]:
        yield from (partial(self._shrink_difference, side, signature) for signature in self._alone(side))

    def _alone(self, side: int) -> list[str]:
        """Signatures that only this side shows, in all runs."""
        return [signature for signature in self._own[side] if not self._shown[1 - side][signature]]

    def _told(self) -> list[Worse]:
        """Measures whose total is worse, and lost hits wherever there are some."""
        base, head = self._totals
        return [
            worse
            for name, worse in self._worse.items()
            if worse.times and (name == "hit_tokens" or worse_by(name, base, head) > 0)
        ]

    def _shrink_difference(self, side: int, signature: str, seconds: float) -> None:
        difference = self._own[side][signature]
        seen_again = False

        def still(run: Run) -> bool:
            nonlocal seen_again
            result = self._targets[side].judge(run, record=True)
            shown = next((one for one in result.violations if one.signature == signature), None)
            if shown is None or not is_own(shown, self._targets[1 - side].judge(run)):
                return False
            if not seen_again or complexity(run) < complexity(difference.run):
                difference.run, difference.violation, difference.trace = run, shown, result.trace
            seen_again = True
            return True

        try:
            if still(difference.run) and not signature.startswith(HANG):  # a hang is cut to the action that hangs
                shrink(difference.run, still, seconds)
        finally:
            traces = (difference.trace,) if difference.trace is not None else ()
            difference.file = self._findings[side].save(signature, difference.run, traces)
        if not seen_again:
            del self._own[side][signature]
            self._findings[side].discard(signature)
            file = self._findings[side].save_undetermined(signature, difference.run)
            self._tally.note("not-reproducible", f"{signature}: not seen when its run was replayed ({file})")

    def _shrink_worse(self, worse: Worse, seconds: float) -> None:
        def still(run: Run) -> bool:
            results = self._both(run)
            if not all(map(is_finished, results)):
                return False
            if worse_by(worse.measure, *(total(result.measures) for result in results)) <= 0:
                return False
            if worse.run is None or complexity(run) < complexity(worse.run):
                worse.keep(run, results)
            return True

        for shorter in (_cut_at_difference, _cut_at_end):
            still(shorter(worse))
        assert worse.run is not None
        shrink(worse.run, still, seconds)
        cut = _cut_behind_difference(worse)
        results = self._both(cut)
        if worse_by(worse.measure, *(total(result.measures) for result in results)) > 0:
            worse.keep(cut, results)

    def _save_worse(self) -> None:
        for worse in self._told():
            assert worse.run is not None
            worse.file = self._findings[HEAD].save_run(self.plan.out / "worse" / worse.measure, worse.run)

    # ---- the end -------------------------------------------------------------------------------------------------

    def _note_the_rest(self) -> None:
        """Whatever keeps the comparison as a whole from saying that all is well."""
        if self.interrupted:
            self._tally.note("interrupted", "the comparison was interrupted")
        self._note_masked()
        self._note_unfinished()
        for findings in self._findings:
            if findings.error:
                self._tally.note("cannot-write", findings.error)
        if not self.paired and not self._tally.undetermined:
            self._tally.note("no-runs", "no run came to its end on both")

    def _note_masked(self) -> None:
        """What head breaks, and base had no chance to break in any run."""
        for signature, masked in self._masked[HEAD].items():
            if signature in self._own[HEAD] or self._shown[BASE][signature]:
                continue
            file = self._findings[HEAD].save_undetermined(signature, masked.run)
            self._tally.note("masked", f"{signature}: head breaks it where base says nothing: {masked.why} ({file})")

    def _note_unfinished(self) -> None:
        if self._shortest_unexplained is None:
            return
        file = self._findings[HEAD].save_undetermined("unfinished", self._shortest_unexplained)
        message = f"base finishes {self._unexplained} of the runs, and head does not, though it breaks nothing ({file})"
        self._tally.note("unfinished", message)

    def _result(self, seconds: float) -> Result:
        base, head = self._shown
        apart = {**self._own[BASE], **self._own[HEAD], **self._masked[BASE], **self._masked[HEAD]}
        both = [signature for signature in apart if base[signature] and head[signature]]
        return Result(
            plan=self.plan,
            new=tuple(self._own[HEAD][signature] for signature in self._alone(HEAD)),
            fixed=tuple(self._own[BASE][signature] for signature in self._alone(BASE)),
            both={signature: (base[signature], head[signature]) for signature in both},
            alike={
                signature: count
                for signature, count in base.items()
                if signature not in apart and head[signature] == count
            },
            worse=tuple(self._told()),
            base=self._totals[BASE],
            head=self._totals[HEAD],
            scheduling_seconds=(self._seconds[BASE], self._seconds[HEAD]),
            runs=self.runs,
            paired=self.paired,
            unfinished=(self._unfinished[BASE], self._unfinished[HEAD]),
            neither=self._neither,
            not_supported=self._not_supported,
            not_drawn=self._not_drawn,
            seconds=seconds,
            interrupted=self.interrupted,
            undetermined=self._tally.undetermined,
        )


def _cut_at_difference(worse: Worse) -> Run:
    """The run up to where the measure differs first, with time to finish what has begun."""
    assert worse.run is not None
    return with_time_to_finish(replace(worse.run, actions=worse.run.actions[: worse.at[0][0] + 1]))


def _cut_at_end(worse: Worse) -> Run:
    """The run without the actions behind all work."""
    assert worse.run is not None
    return replace(worse.run, actions=worse.run.actions[: worse.ends])


def _cut_behind_difference(worse: Worse) -> Run:
    """The run up to where the measure differs last: both finish it alike from there."""
    assert worse.run is not None
    return replace(worse.run, actions=worse.run.actions[: worse.at[-1][0] + 1])


def with_time_to_finish(run: Run, patience: int = 1) -> Run:
    """The run with passes behind it, and with all that these may wait for: a server that is done ignores them.

    ``patience``: so many times as many as usual.
    """
    awaited: list[Action] = []
    for arrival in run.actions:
        if isinstance(arrival, Arrive):
            awaited += [Extend(label=arrival.label)] if arrival.session else []
            awaited += [Transfer(label=arrival.label)] if arrival.answers else []
            awaited += [Transfer(label=arrival.label, what="store")] if arrival.store else []
    passes = patience * (SPARE_PASSES + sum(isinstance(action, Schedule) for action in run.actions) // 4)
    flush = [Complete()] * (run.layout.steps_in_flight - 1)
    return replace(run, actions=(*run.actions, *flush, *[*awaited, Schedule(), Complete()] * passes))


def is_finished(result: RunResult) -> bool:
    """Whether all requests of the run have come to their end."""
    return result.finished and not is_cut(result)


def is_cut(result: RunResult) -> bool:
    """Whether something was broken that makes the rest of the run meaningless, or nothing can be said of it."""
    return not result.sound or bool(result.undetermined)


def is_own(violation: Violation, other: RunResult) -> bool:
    """Whether the other target got as far and did not show it."""
    return other.said_of(violation.signature, violation.index)[0] == "passed"
