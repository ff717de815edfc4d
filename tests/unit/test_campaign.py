"""Campaigns on toy targets: buckets, shrinking, replays, verdicts, limits."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from toys import LAYOUT, LOADER, SEARCHER, run_of

from kvcheck.engines.buckets import MOST_LOST, Buckets
from kvcheck.engines.campaign import Campaign, CampaignResult, Plan, Progress
from kvcheck.engines.findings import Findings, folder_name
from kvcheck.engines.judging import RunResult
from kvcheck.engines.seeds import seed_of_run
from kvcheck.engines.tally import MOST_UNDETERMINED, Tally
from kvcheck.engines.worker_protocol import Shrunk
from kvcheck.engines.workers import Limits
from kvcheck.files import Stated, expected_verdicts, read_run, stated_of, stated_signature
from kvcheck.invariants.registry import Violation
from kvcheck.model.observation import Promises, TargetInfo, Trace
from kvcheck.report.console import Screen
from kvcheck.report.verdict import show_where_undetermined
from kvcheck.targets.errors import TargetError


@pytest.fixture
def labels(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda text: monkeypatch.setenv("TOY_LABELS", text)


def campaign(out: Path, **changes: Any) -> Campaign:
    plan = Plan(
        spec="toy",
        seed=1,
        out=out,
        seconds=None,
        runs=12,
        jobs=2,
        limits=Limits(stall_seconds=1.0),
        loader=LOADER,
        searcher=SEARCHER,
    )
    return Campaign(msgspec.structs.replace(plan, **changes))


def codes(result: CampaignResult) -> set[str]:
    return {item.code for item in result.undetermined}


def test_nothing_found(tmp_path: Path, labels: Any) -> None:
    labels("-")
    result = campaign(tmp_path).run()
    assert result.verdict == "passed"
    assert result.runs == 12
    assert result.witnesses == {"seen": 12}
    assert result.actions == sum(result.actions_by_kind.values())
    assert not list(tmp_path.iterdir())


def test_the_same_runs_whatever_the_number_of_workers(tmp_path: Path, labels: Any) -> None:
    labels("- fail-x - -")
    results = [campaign(tmp_path / str(jobs), jobs=jobs, runs=20).run() for jobs in (1, 3)]
    one, other = results
    assert (one.runs, one.actions, one.actions_by_kind) == (other.runs, other.actions, other.actions_by_kind)
    assert [b.times for b in one.buckets] == [b.times for b in other.buckets]
    assert len({seed_of_run(1, i) for i in range(1000)} | {seed_of_run(2, i) for i in range(1000)}) == 2000


def test_a_violation_is_bucketed_shrunk_replayed_and_kept(tmp_path: Path, labels: Any) -> None:
    labels("- fail-x")
    result = campaign(tmp_path, runs=20).run()
    assert result.verdict == "violated"
    (bucket,) = result.buckets
    assert bucket.signature == "system.exception AssertionError fail"
    assert bucket.state == "confirmed"
    assert bucket.times > 1
    assert len(bucket.run.actions) == 1
    assert bucket.violation.index == 0
    assert bucket.trace is not None
    assert read_run(bucket.file) == bucket.run
    assert expected_verdicts(bucket.file) == {"toy": "violated"}
    assert stated_signature(bucket.file) == bucket.signature


def test_a_hang_in_a_campaign(tmp_path: Path, labels: Any) -> None:
    labels("- - - hang")
    result = campaign(tmp_path, runs=6).run()
    assert "system.hang spin" in {bucket.signature for bucket in result.buckets}


def test_what_does_not_happen_again_is_undetermined(tmp_path: Path, labels: Any) -> None:
    labels(f"flaky-{tmp_path / 'flag'}")
    result = campaign(tmp_path / "out", runs=1).run()
    assert result.verdict == "undetermined"
    assert codes(result) == {"not-reproducible"}
    assert len(list((tmp_path / "out" / "undetermined").rglob("trace-*.json"))) == 2
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["undetermined"]


def test_a_bucket_whose_run_does_not_happen_again_takes_another(tmp_path: Path) -> None:
    buckets = Buckets(Findings(tmp_path, "toy"))
    violation = Violation("system.exception", "crash", "x", "system.exception AssertionError fail", 0)
    for index in range(MOST_LOST + 2):
        buckets.sort(violation, run_of(f"fail-{index}"), index)
        bucket = buckets.take("found", "shrinking")
        if bucket is not None:
            assert bucket.index == index
            bucket.state, bucket.lost = "lost", bucket.lost + 1
    assert index == MOST_LOST + 1
    assert bucket is None
    assert buckets.all() == ()


def test_replaying_what_earlier_campaigns_found_leaves_time_for_the_search(tmp_path: Path) -> None:
    one = campaign(tmp_path, jobs=2)
    for name in "abc":
        violation = Violation("system.exception", "crash", "x", f"system.exception {name}", 0)
        one._buckets.sort(violation, run_of(name), None, state="shrunk")
    assert one._choose_task()
    assert one._choose_task()
    assert [bucket.state for bucket in one._buckets.all()].count("confirming") == 1
    assert one._next_index == 1


def test_a_run_that_is_found_while_another_is_given_up_is_not_deleted_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = campaign(tmp_path)
    violation = Violation("system.exception", "crash", "x", "system.exception AssertionError fail", 0)
    one._buckets.sort(violation, run_of("a"), 0)
    bucket = one._buckets.take("found", "confirming")
    assert bucket is not None
    for name in ("discard", "save_undetermined"):
        begin = getattr(Findings, name)

        def found_meanwhile(*arguments: Any, begin: Any = begin) -> Any:
            one._buckets.sort(violation, run_of("b", "c"), 1)
            return begin(*arguments)

        monkeypatch.setattr(Findings, name, found_meanwhile)
    one._confirm(Mock(judge=Mock(return_value=RunResult())), bucket)
    assert all(reported.file.is_file() for reported in one._buckets.all())
    one._buckets.sort(violation, run_of("d"), 2)
    assert read_run(one._buckets.all()[0].file) == run_of("d")


def breaks(*names: str) -> RunResult:
    violations = tuple(Violation("system.exception", "crash", "x", f"system.exception {name}", 0) for name in names)
    trace = Trace(target=TargetInfo(spec="toy"), run=run_of("a"), promises=Promises(), observations=())
    return RunResult(violations=violations, trace=trace)


def test_all_that_a_replayed_run_shows_is_found(tmp_path: Path) -> None:
    one = campaign(tmp_path)
    for name in "abe":
        one._buckets.sort(breaks(name).violations[0], run_of(name), 7)
    bucket = one._buckets.take("found", "confirming")
    assert bucket is not None
    bucket.run = run_of("short")
    one._confirm(Mock(judge=Mock(side_effect=[breaks("a", "b", "c"), breaks("a", "b", "c", "d")])), bucket)
    found = {bucket.signature[-1]: bucket for bucket in one._buckets.all()}
    assert {name: (b.state, b.confirmed) for name, b in found.items()} == {
        "a": ("confirmed", True),
        "b": ("shown", True),
        "c": ("shown", True),
        "d": ("found", False),  # one of two replays has shown it
        "e": ("found", False),
    }
    assert all(found[name].run == read_run(found[name].file) == run_of("short") for name in "abcd")
    assert (found["c"].index, found["c"].trace) == (7, breaks("a").trace)


@pytest.mark.parametrize(("again", "kept"), [("c", "shorter"), ("x", "short")])
def test_what_was_replayed_is_shrunk_last_and_stays_confirmed(again: str, kept: str, tmp_path: Path) -> None:
    one = campaign(tmp_path)
    one._clock.end_search()
    one._buckets.sort(breaks("c").violations[0], run_of("short"), 7, state="shown")
    one._buckets.sort(breaks("a").violations[0], run_of("a"), 8)
    shrunk = Mock(shrink=Mock(return_value=Shrunk(run_of("shorter"))), judge=Mock(side_effect=[breaks("a")] * 2))
    for _ in range(2):  # what was not replayed is shrunk and replayed
        task = one._choose_task()
        assert task is not None
        task(shrunk)
    task = one._choose_task()
    assert task is not None
    confirmed = {bucket.signature[-1]: bucket for bucket in one._buckets.all()}
    assert confirmed["a"].state == "confirmed"
    assert confirmed["c"].confirmed  # even if there is no time for more
    task(Mock(shrink=Mock(return_value=Shrunk(run_of("shorter"))), judge=Mock(side_effect=[breaks(again)] * 2)))
    assert confirmed["c"].state == "confirmed"
    assert confirmed["c"].run == read_run(confirmed["c"].file) == run_of(kept)


def test_what_is_known_and_was_replayed_is_left_as_it_is(tmp_path: Path) -> None:
    known = breaks("a").violations[0]
    one = campaign(tmp_path, known=frozenset((known.signature,)))
    one._clock.end_search()
    one._buckets.sort(known, run_of("a"), None, state="shown")
    assert one._choose_task() is None
    assert one._buckets.waiting() == 0


def test_a_worker_that_dies_does_not_end_the_campaign(tmp_path: Path, labels: Any) -> None:
    labels("- - - crash mistake")
    result = campaign(tmp_path, runs=20).run()
    assert result.verdict == "undetermined"
    assert result.runs == 20
    assert codes(result) == {"worker-died", "harness-error"}


def test_a_target_that_never_loads(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="no such toy"):
        campaign(tmp_path, spec="refused").run()
    result = campaign(tmp_path, spec="dies").run()
    assert result.verdict == "undetermined"
    assert codes(result) == {"worker-died"}


def test_a_layout_that_is_not_supported(tmp_path: Path) -> None:
    layout = msgspec.structs.replace(LAYOUT, groups=LAYOUT.groups * 2)
    result = campaign(tmp_path, layout=layout).run()
    assert result.verdict == "undetermined"
    assert codes(result) == {"not-supported"}
    assert result.runs == 0


def test_the_time_limit(tmp_path: Path, labels: Any) -> None:
    labels("- fail-x")
    result = campaign(tmp_path, runs=None, seconds=2.0).run()
    assert result.runs > 2
    assert result.seconds < 2.0 + 10.0 + 3.0


def test_an_interruption_reports_what_was_found(tmp_path: Path, labels: Any) -> None:
    labels("fail-x - - nap-0.2")
    one = campaign(tmp_path, runs=None)

    def interrupt_what_has_found_something(progress: Progress) -> None:
        if progress.buckets:
            one.interrupt()

    result = one.run(interrupt_what_has_found_something)
    assert result.interrupted
    assert result.verdict == "violated"
    assert result.buckets[0].file.is_file()

    labels("-")
    other = campaign(tmp_path, runs=None)
    threading.Timer(2.0, other.interrupt).start()
    assert other.run().verdict == "undetermined"


def test_a_folder_that_cannot_be_written(tmp_path: Path, labels: Any) -> None:
    labels("fail-x")
    (tmp_path / "file").touch()
    result = campaign(tmp_path / "file" / "out", runs=1).run()
    assert result.verdict == "violated"
    assert codes(result) == {"cannot-write"}


def test_undetermined_results_are_bounded() -> None:
    tally = Tally()
    for i in range(3 * MOST_UNDETERMINED):
        tally.note("code", f"message {i}")
    assert len(tally.undetermined) == MOST_UNDETERMINED + 1
    assert sum(item.times for item in tally.undetermined) == 3 * MOST_UNDETERMINED


def test_names_of_folders() -> None:
    assert folder_name("content.attention full complete") == "content.attention-full-complete"
    strange = ["a/b", "a:b", "../x", ".", "x" * 300, "x" * 301, "é"]
    names = [folder_name(name) for name in strange]
    assert len(set(names)) == len(names)
    assert all(len(name) < 100 and "/" not in name and not name.startswith(".") for name in names)


def test_nothing_is_left_beside_a_run_that_is_of_another(tmp_path: Path) -> None:
    findings = Findings(tmp_path, "toy")
    trace = Trace(target=TargetInfo(spec="toy"), run=run_of("a"), promises=Promises(), observations=())
    for kept in (findings.save, findings.save_undetermined):
        folder = kept("a b", run_of("a"), (trace, trace)).parent
        (folder / "account.txt").touch()
        file = kept("a b", run_of("c"), (trace,))
        assert {one.name for one in folder.iterdir()} - {"expected.json", "undetermined"} == {"run.json", "trace.json"}
        kept("a b", run_of("d"))
        assert {one.name for one in folder.iterdir()} - {"expected.json", "undetermined"} == {"run.json"}
        assert read_run(file) == run_of("d")
    assert stated_of(file) == Stated(target="toy")
    text = io.StringIO()
    show_where_undetermined(Screen(text, no_color=True), tmp_path)
    assert text.getvalue() == f"runs of which nothing can be said: {tmp_path / 'undetermined'}\n"


def test_a_discarded_finding_leaves_nothing(tmp_path: Path) -> None:
    findings = Findings(tmp_path, "toy")
    findings.save("a b", run_of("a"))
    findings.discard("a b")
    assert not list(tmp_path.iterdir())
