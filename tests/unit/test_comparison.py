"""Two targets side by side: the model and the model with a fault."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import full, layout_of, mamba, replace

from kvcheck.engines import comparison
from kvcheck.engines.comparison import (
    PATIENCE,
    Comparison,
    Plan,
    Result,
    is_finished,
    is_own,
    with_time_to_finish,
)
from kvcheck.engines.judging import RunResult, judge_run
from kvcheck.engines.search import SearchResult
from kvcheck.files import read_run
from kvcheck.invariants.registry import Violation
from kvcheck.model.actions import Abort, Arrive, Complete, Run, Schedule
from kvcheck.model.layout import Drafter
from kvcheck.report import comparison as report
from kvcheck.report.comparison import markdown
from kvcheck.report.console import Screen
from kvcheck.targets.loading import describe, load_target

SOUND, FAULTY = "model", "model+replay-boundary-not-kept"
LAYOUT = layout_of(full(4), mamba(4), retention=0, num_blocks=40, max_model_len=40, token_budget=40)
ROUNDED = layout_of(
    full(2, eagle=True),
    mamba(8, 2),
    drafter=Drafter(method="eagle", tokens=2),
    num_blocks=40,
    max_model_len=40,
    max_requests=2,
)


def compared(tmp_path: Path, base: str, head: str, **fields: Any) -> Result:
    settings = {"layout": LAYOUT, "runs": 6, "seconds": None, "seed": 1, "out": tmp_path, **fields}
    plan = Plan(base=base, head=head, infos=(describe(base), describe(head)), **settings)
    return Comparison(plan).run(lambda _comparison: None)


@pytest.fixture(scope="module")
def for_the_worse(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return compared(tmp_path_factory.mktemp("worse"), SOUND, FAULTY, limits={"hit_tokens": 0})


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return compared(tmp_path_factory.mktemp("rounded"), SOUND, "model+eagle-bound-rounded", layout=ROUNDED, runs=12)


def test_a_target_is_no_worse_than_itself(tmp_path: Path) -> None:
    result = compared(tmp_path, SOUND, SOUND, limits={"hit_tokens": 0})
    assert (result.verdict, result.new, result.fixed, result.worse, result.exceeded) == ("passed", (), (), (), ())
    assert (result.runs, result.paired, result.unfinished, result.neither) == (6, 6, (0, 0), 0)
    assert result.base == result.head
    assert result.base["computed_tokens"] > 0
    assert min(result.scheduling_seconds) > 0


def test_lost_hits_are_new_and_told_with_the_shortest_run(for_the_worse: Result) -> None:
    result = for_the_worse
    assert (result.verdict, result.fixed) == ("violated", ())
    assert "hits.repeat" in {one.violation.invariant for one in result.new}
    assert result.exceeded == ("hit_tokens",)
    assert result.base["hit_tokens"] > result.head["hit_tokens"]
    worse = next(one for one in result.worse if one.measure == "hit_tokens")
    assert worse.run is not None
    assert worse.file is not None
    assert read_run(worse.file) == worse.run
    assert worse.base - worse.head == sum(base - head for _, base, head in worse.at) > 0
    targets = [load_target(spec) for spec in (SOUND, FAULTY)]
    hits = [sum(one["hit_tokens"] for one in judge_run(one, worse.run, measure=True).measures) for one in targets]
    assert hits == [worse.base, worse.head]
    whole = [judge_run(one, with_time_to_finish(worse.run), measure=True) for one in targets]
    assert all(map(is_finished, whole))
    assert [sum(one["hit_tokens"] for one in result.measures) for result in whole] == hits


def test_the_shortest_run_ends_where_a_measure_differs_last(for_the_worse: Result) -> None:
    assert for_the_worse.worse
    for one in for_the_worse.worse:
        assert one.run is not None
        assert len(one.run.actions) == one.at[-1][0] + 1


def test_the_other_way_round_the_same_is_fixed(tmp_path: Path) -> None:
    result = compared(tmp_path, FAULTY, SOUND, limits={"hit_tokens": 0})
    assert (result.verdict, result.new, result.exceeded) == ("passed", (), ())
    assert "hits.repeat" in {one.violation.invariant for one in result.fixed}
    for one in result.fixed:
        assert read_run(one.file) == one.run
        assert one.file.is_relative_to(tmp_path / "fixed")


def test_the_rounding_of_eagle_groups_shows_as_lost_hit_tokens(rounded: Result) -> None:
    assert "hit_tokens" in {one.measure for one in rounded.worse}
    assert rounded.base["registrations"] > rounded.head["registrations"]


def test_a_measure_that_is_worse_is_told_and_is_no_violation(rounded: Result) -> None:
    """As of a release that keeps less on purpose, so that nothing is broken."""
    on_purpose = replace(rounded, new=())
    assert on_purpose.worse
    assert on_purpose.verdict == "passed"
    assert replace(on_purpose, plan=replace(rounded.plan, limits={"hit_tokens": 0.1})).verdict == "violated"


def test_a_layout_that_one_does_not_have_is_undetermined(tmp_path: Path) -> None:
    group = mamba(4)
    checkpoints = type(group)(kind="mamba", block_size=4, checkpoint_blocks=1, checkpoint_alignment=1)
    layout = layout_of(full(4), checkpoints, num_blocks=40)
    result = compared(tmp_path, SOUND, SOUND, layout=layout)
    assert (result.verdict, result.runs) == ("undetermined", 0)
    assert {item.code for item in result.undetermined} == {"not-supported"}


def test_what_was_found_before_an_interrupt_is_kept(tmp_path: Path) -> None:
    infos = describe(SOUND), describe(FAULTY)
    plan = Plan(base=SOUND, head=FAULTY, infos=infos, layout=LAYOUT, seconds=None, seed=1, out=tmp_path)
    comparison = Comparison(plan)

    def interrupt(running: Comparison) -> None:
        if running.found_something:
            running.interrupt()

    result = comparison.run(interrupt)
    assert (result.verdict, result.interrupted) == ("violated", True)
    assert [item.code for item in result.undetermined] == ["interrupted"]
    assert all(read_run(one.file) == one.run for one in result.new)
    assert all(one.file is not None and read_run(one.file) == one.run for one in result.worse)


def test_a_run_has_time_to_finish_on_a_slower_server() -> None:
    run = Run(layout=LAYOUT, actions=(Arrive(label="a", prompt=(1, 2, 3), max_tokens=3), Schedule(), Abort(label="b")))
    assert not judge_run(load_target(SOUND), run, measure=True).finished
    longer = with_time_to_finish(run)
    assert longer.actions[: len(run.actions)] == run.actions
    assert judge_run(load_target(SOUND), longer, measure=True).finished
    assert longer.actions[-2:] == (Schedule(), Complete())


def violation(severity: str, index: int, signature: str = "x") -> Violation:
    return Violation(invariant="x", severity=severity, message="", signature=signature, index=index)


@pytest.mark.parametrize(
    ("other", "own"),
    [
        ((), True),
        ((violation("crash", 2, "y"),), False),
        ((violation("crash", 3, "y"),), False),
        ((violation("crash", 4, "y"),), True),
        ((violation("lost reuse", 1, "y"),), True),
        ((violation("lost reuse", 9),), False),
    ],
)
def test_a_violation_is_ones_own_if_the_other_got_as_far(other: tuple[Violation, ...], own: bool) -> None:
    assert is_own(violation("lost reuse", 3), RunResult(violations=other)) is own
    assert not is_own(violation("lost reuse", 3), RunResult(violations=other, undetermined="hung: it did"))


# ---- what the other target did not come to ---------------------------------------------------------------------------

DRAWN = Run(layout=LAYOUT, actions=(Arrive(label="a", prompt=(1, 2, 3)), *[Schedule(), Complete()] * 3))


class Told:
    """A target that draws one run, and answers what a test wants, one after the other."""

    def __init__(self, spec: str, answers: list[RunResult]) -> None:
        self.spec = spec
        self.answers = iter(answers)

    def search(self, _seed: int) -> SearchResult:
        return SearchResult(DRAWN, (), {}, (), {}, len(DRAWN.actions), 0)

    def judge(self, _run: Run, measure: bool) -> RunResult:
        return next(self.answers)

    def close(self) -> None:
        pass


def ended(*violations: Violation, finished: bool = True, undetermined: str = "") -> RunResult:
    return RunResult(violations=violations, finished=finished, undetermined=undetermined)


def told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: list[RunResult], head: list[RunResult], runs: int = 0
) -> Result:
    """A comparison of two targets that answer so, not shrunk."""
    monkeypatch.setattr(comparison, "Watched", lambda spec, **_: Told(spec, {"model": base, FAULTY: head}[spec]))
    monkeypatch.setattr(Comparison, "_shrink_all", lambda *_: None)
    return compared(tmp_path, SOUND, FAULTY, layout=None, runs=runs or len(base))


WRONG, CRASH = violation("corruption", 4, "wrong"), violation("crash", 2, "dead")


@pytest.mark.parametrize("cut", [ended(CRASH), ended(undetermined="worker-died: so it was")])
def test_what_head_breaks_where_base_did_not_come_as_far_is_undetermined(
    cut: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = told(tmp_path, monkeypatch, [cut, cut, ended()], [ended(WRONG), ended(WRONG), ended()])
    assert (result.verdict, result.new, result.both) == ("undetermined", (), {})
    (masked,) = [item for item in result.undetermined if item.code == "masked"]
    assert masked.message.startswith("wrong: ")
    assert ("dead" if cut.violations else "worker-died: so it was") in masked.message
    file = next((tmp_path / "new" / "undetermined").glob("wrong/run.json"))
    assert str(file) in masked.message
    assert read_run(file).actions == DRAWN.actions[:5]


def test_what_base_shows_in_another_run_is_on_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, head = [ended(CRASH), ended(WRONG), ended()], [ended(WRONG), ended(WRONG), ended()]
    result = told(tmp_path, monkeypatch, base, head)
    assert (result.verdict, result.new, result.both) == ("passed", (), {"wrong": (1, 2)})
    assert [one.violation.signature for one in result.fixed] == ["dead"]


def test_what_both_break_in_the_same_runs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = told(tmp_path, monkeypatch, [ended(CRASH), ended()], [ended(CRASH), ended()])
    assert (result.verdict, result.both, result.alike, result.neither) == ("passed", {}, {"dead": 1}, 1)
    report.show_comparison(Screen(sys.stdout), result)
    assert "broken by both alike: dead (1 run)" in capsys.readouterr().out


def test_what_is_new_in_one_run_is_not_undetermined_in_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = told(tmp_path, monkeypatch, [ended(CRASH), ended()], [ended(WRONG), ended(WRONG)])
    assert (result.verdict, [one.violation.signature for one in result.new]) == ("violated", ["wrong"])
    assert "masked" not in {item.code for item in result.undetermined}


def test_what_only_base_breaks_where_head_did_not_come_as_far_is_no_matter_of_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, head = [ended(WRONG), ended(CRASH), ended()], [ended(CRASH), ended(CRASH), ended()]
    result = told(tmp_path, monkeypatch, base, head)
    assert (result.verdict, result.fixed, result.both) == ("passed", (), {"dead": (1, 2)})


def test_head_that_does_not_finish_is_undetermined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 2 * len(PATIENCE)
    base, head = [ended()] * (tries + 1), [*[ended(finished=False)] * tries, ended()]
    result = told(tmp_path, monkeypatch, base, head, runs=3)
    assert (result.verdict, result.paired, result.unfinished) == ("undetermined", 1, (0, 2))
    (item,) = result.undetermined
    assert item.code == "unfinished"
    file = tmp_path / "new" / "undetermined" / "unfinished" / "run.json"
    assert str(file) in item.message
    assert read_run(file) == with_time_to_finish(DRAWN, PATIENCE[-1])


def test_head_that_finishes_later_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = told(tmp_path, monkeypatch, [ended(), ended()], [ended(finished=False), ended()], runs=1)
    assert (result.verdict, result.paired, result.unfinished) == ("passed", 1, (0, 0))


def test_base_that_does_not_finish_is_no_matter_of_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = len(PATIENCE)
    base, head = [*[ended(finished=False)] * tries, ended()], [ended()] * (tries + 1)
    result = told(tmp_path, monkeypatch, base, head, runs=2)
    assert (result.verdict, result.unfinished) == ("passed", (1, 0))


def test_a_run_that_head_ends_with_what_is_on_both_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, head = [ended(), ended(CRASH), ended()], [ended(CRASH), ended(CRASH), ended()]
    result = told(tmp_path, monkeypatch, base, head)
    assert (result.verdict, result.unfinished, result.both) == ("passed", (0, 1), {"dead": (1, 2)})


def test_what_became_of_all_runs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tries = [ended(finished=False)] * len(PATIENCE)
    unsupported = ended(undetermined="not supported: no such layout", finished=False)
    base = [ended(), ended(CRASH), ended(), ended(), ended(finished=False), unsupported]
    head = [ended(), ended(CRASH), ended(CRASH), ended(WRONG), ended(), ended()]
    base[4:5], head[4:5] = tries, [ended()] * len(PATIENCE)
    result = told(tmp_path, monkeypatch, base, head, runs=6)
    counts = (result.paired, *result.unfinished, result.neither, result.not_supported, result.not_drawn)
    assert sum(counts) == result.runs == 6
    report.show_comparison(Screen(sys.stdout), result)
    rest = "2 on base alone, 1 on head alone, 1 on neither, 1 have a layout that one has not"
    assert result.alike == {}
    line = f"6 runs: 1 came to their end on both, {rest}"
    assert line in capsys.readouterr().out.splitlines()
    assert f"\n{line}.\n" in markdown(result)


def test_a_run_that_could_not_be_drawn_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = SearchResult(replace(DRAWN, actions=()), (), {}, (), {}, 0, 0, undetermined="worker-died: so it was")
    monkeypatch.setattr(Told, "search", lambda *_: nothing)
    result = told(tmp_path, monkeypatch, [], [], runs=2)
    assert (result.verdict, result.runs, result.not_drawn) == ("undetermined", 2, 2)


def test_nothing_in_a_comment_is_taken_for_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strange = "KeyError in find_longest_cache_hit: <Request a> & <img src=x> ```\n\n# b"
    bad = Violation(invariant="x", severity="crash", message=strange, signature="x_y `z`", index=2)
    unclear = ended(undetermined=f"worker-died: {strange}")
    comment = markdown(told(tmp_path, monkeypatch, [ended(), unclear], [ended(bad), ended()]))
    title = (
        "x_y `z` (crash, 1 run): KeyError in find_longest_cache_hit: &lt;Request a&gt; &amp; &lt;img src=x&gt; ``` # b"
    )
    assert f"<summary><code>{title}</code></summary>" in comment
    assert "- `worker-died`: model: KeyError in find\\_longest\\_cache\\_hit: \\<Request a\\> \\& \\<img" in comment
    told_as_text = "\n".join(line for line in comment.splitlines() if not line.startswith("    "))  # else it is code
    assert "<img" not in told_as_text.replace("\\<", "")
    assert "\n# b" not in comment


def test_a_comment_that_is_too_long_tells_no_actions(for_the_worse: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = markdown(for_the_worse)
    monkeypatch.setattr(report, "LONGEST_COMMENT", len(whole))
    assert markdown(for_the_worse) == whole
    assert "  arrive " in whole
    for told in ("claim: ", "severity: ", "broken: ", "layout: ", "reproduce: "):
        assert whole.count(f"\n      {told}") >= len(for_the_worse.new) > 0
    monkeypatch.setattr(report, "LONGEST_COMMENT", len(whole) - 1)
    short = markdown(for_the_worse)
    assert "  arrive " not in short
    for one in (*for_the_worse.new, *for_the_worse.worse):
        assert str(one.file) in short
    assert short.count("<details>") == whole.count("<details>")
