"""Which targets of a series are asked, and what follows from their verdicts."""

from __future__ import annotations

import pytest

from kvcheck.engines.bisect import Seen, Series, every, halving, judged, seen_of
from kvcheck.engines.judging import RunResult
from kvcheck.invariants.registry import Violation

VERDICTS = {"p": "passed", "v": "violated", "u": "undetermined"}


def series(letters: str, order: object = every) -> tuple[Series, str]:
    """The series of targets with these verdicts, and those that were asked, in order."""
    asked = []

    def judge(target: str) -> Seen:
        asked.append(target)
        return Seen(target, VERDICTS[letters[int(target)]])

    return judged([str(index) for index in range(len(letters))], judge, order), "".join(asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("letters", "first_bad", "first_good", "between", "verdict"),
    [
        ("vvpppp", "0", "2", (), "passed"),
        ("ppvvvv", "2", None, (), "violated"),
        ("ppvvpp", "2", "4", (), "passed"),
        ("pvpvpp", "1", "4", (), "passed"),
        ("pppppp", None, None, (), "passed"),
        ("puvvpp", "2", "4", ("1",), "undetermined"),
        ("ppvuup", "2", "5", ("3", "4"), "undetermined"),
        ("uuvvpp", "2", "4", ("0", "1"), "undetermined"),
        ("uuppvv", "4", None, (), "violated"),
        ("vpvvpv", "0", None, (), "violated"),
        ("vvuvpp", "0", "4", (), "passed"),
        ("pppppu", None, None, ("5",), "undetermined"),
        ("uppppp", None, None, ("0",), "undetermined"),
        ("vvvvvu", "0", None, (), "undetermined"),
    ],
)
def test_where_the_verdict_changes(
    letters: str, first_bad: str | None, first_good: str | None, between: tuple[str, ...], verdict: str
) -> None:
    found, asked = series(letters)
    assert asked == "012345"
    assert (found.first_bad, found.first_good, found.between, found.verdict) == (
        first_bad,
        first_good,
        between,
        verdict,
    )


@pytest.mark.parametrize(
    ("letters", "asked", "first_bad", "first_good", "between"),
    [
        ("ppppvvvv", "07354", "4", None, ()),
        ("vvpppppp", "07312", "0", "2", ()),
        ("pppppppp", "07", None, None, ()),
        ("pppuuvvv", "073425", "5", None, ("3", "4")),
        ("upppvvvv", "07", "7", None, ("0", "1", "2", "3", "4", "5", "6")),
    ],
)
def test_a_long_series_is_halved(
    letters: str, asked: str, first_bad: str | None, first_good: str | None, between: tuple[str, ...]
) -> None:
    found, order = series(letters, halving)
    assert len(order) <= 6
    assert (found.first_bad, found.first_good, found.between) == (first_bad, first_good, between)
    assert order == asked


def test_each_change_is_told() -> None:
    found, _ = series("vupvpp")
    assert [one.target for one in found.changes] == ["0", "2", "3", "4"]


def test_one_target_is_asked_once() -> None:
    assert series("v", halving)[1] == "0"


def test_an_interrupted_series_keeps_what_it_knows() -> None:
    def judge(target: str) -> Seen:
        if target == "2":
            raise KeyboardInterrupt
        return Seen(target, "violated")

    found = judged(["0", "1", "2", "3"], judge, every)
    assert ([one.target for one in found.seen], found.interrupted, found.verdict) == (["0", "1"], True, "undetermined")
    assert found.first_bad == "0"


def violation(signature: str, severity: str = "crash") -> Violation:
    return Violation(invariant="x", severity=severity, message="", signature=signature, index=0)


def test_a_run_that_another_violation_has_ended_says_nothing_about_the_one_that_is_asked_for() -> None:
    shows = RunResult(violations=(violation("a"), violation("b")))
    goes_on = RunResult(violations=(violation("a", "lost reuse"),))
    assert seen_of("t", shows, "b") == Seen("t", "violated", "b")
    assert seen_of("t", RunResult(violations=(violation("a b c"),)), "a b") == Seen("t", "violated", "a b c")
    assert seen_of("t", shows, None) == Seen("t", "violated", "a")
    assert seen_of("t", shows, "c") == Seen("t", "undetermined", "masked: it shows a instead")
    assert seen_of("t", goes_on, "c") == Seen("t", "passed")
    assert seen_of("t", RunResult(), "c") == Seen("t", "passed")
    assert seen_of("t", RunResult(undetermined="hung: x"), None) == Seen("t", "undetermined", "hung: x")
