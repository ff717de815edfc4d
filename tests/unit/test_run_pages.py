"""Pages: what a run's page says is what was recorded; nothing in it is taken for markup; nothing is fetched."""

from __future__ import annotations

import importlib.util
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers import Worker, full, layout_of, mamba, new
from pages import film_in, judged, long_run, page_of

from kvcheck.engines.campaign import Progress
from kvcheck.engines.judging import RunResult
from kvcheck.files import InputError, read_run
from kvcheck.invariants.registry import Violation
from kvcheck.model.actions import Arrive, Complete, Run, Schedule
from kvcheck.model.content import POISON
from kvcheck.model.observation import Asked, End, Lookup, Take
from kvcheck.report.describe import event_text
from kvcheck.report.history import MOST_POINTS, History
from kvcheck.report.pages import render, run
from kvcheck.report.pages.charts import line_chart, stairs
from kvcheck.report.pages.contents import Contents

FOLDERS = sorted(path.parent for path in (Path(__file__).parents[2] / "counterexamples").glob("*/run.json"))
MAPS = ("tables", "requests", "refs", "keys", "content", "outside")

# ---- a run's page ----------------------------------------------------------------------------------------------------


def last_state(frames: list[dict[str, Any]]) -> dict[str, Any]:
    """What the script comes to at the last step."""
    state: dict[str, Any] = {name: {} for name in MAPS}
    for frame in frames:
        for name in MAPS:
            merged = state[name] | frame.get(name, {})
            state[name] = {key: value for key, value in merged.items() if value is not None}
        state |= {name: frame[name] for name in ("free", "running", "waiting") if name in frame}
    return state


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_page_of_every_counterexample(folder: Path) -> None:
    """On the model with the faults of 0.28.0; a run that it does not support has a page of its actions alone."""
    example = read_run(folder)
    result = judged(example)
    page = page_of(example, result)
    film = film_in(page)
    assert len(film["frames"]) == len(example.actions)
    assert [violation.signature for violation in result.violations] == [
        broken["signature"] for frame in film["frames"] for broken in frame.get("broken", [])
    ]
    for violation in result.violations:
        assert violation.signature in [one["signature"] for one in film["frames"][violation.index]["broken"]]
    seen = result.trace.observations if result.trace else ()
    assert [frame.get("ran", True) for frame in film["frames"]] == [i < len(seen) for i in range(len(example.actions))]
    views = [observation.view for observation in seen if observation.view is not None]
    if views:
        state, view = last_state(film["frames"]), views[-1]
        assert {label: tuple(map(tuple, tables)) for label, tables in state["tables"].items()} == view.tables
        assert state["refs"] == {str(block): count for block, count in enumerate(view.refs) if count}
        assert (tuple(state["free"]), tuple(state["waiting"])) == (view.free, view.waiting)
        assert sum(map(len, state["keys"].values())) == len(view.keys)


def test_a_wrong_read_is_told_with_what_should_have_been_there() -> None:
    example = read_run(next(folder for folder in FOLDERS if folder.name == "failed-load-shared-block"))
    result = judged(example)
    film = film_in(page_of(example, result))
    (read,) = film["frames"][result.violations[0].index]["wrong"]
    assert (read["label"], read["what"], read["position"], read["block"]) == ("b", "forward", 1, 1)
    assert (read["found"], read["expected"]) == ("what a failed load left", "the content of a's first 2 tokens")


def test_a_long_run() -> None:
    """Contents are told once, and each frame holds changes only."""
    example = long_run(300)
    result = judged(example, "model")
    film = film_in(page_of(example, result))
    assert len(film["frames"]) == 300
    texts = [tuple(content) for content in film["contents"]]
    assert len(set(texts)) == len(texts) > 50
    assert sum("free" in frame for frame in film["frames"]) < 300
    assert len(film["labels"]) == sum(isinstance(action, Arrive) for action in example.actions)


MARKUP = "<b>&\"'</script><script>alert(1)</script>"


def test_nothing_is_taken_for_markup() -> None:
    example = read_run(FOLDERS[0])
    actions = [
        msgspec.structs.replace(action, label=MARKUP) if hasattr(action, "label") else action
        for action in example.actions
    ]
    marked = msgspec.structs.replace(example, actions=tuple(actions), note=MARKUP)
    result = judged(marked)
    page = page_of(marked, result, target=MARKUP, reproduce=MARKUP, why=MARKUP, needs=(MARKUP,))
    assert MARKUP not in page
    assert len(re.findall(r"<script\b", page)) == len(re.findall(r"</script>", page)) == 2
    film = film_in(page)
    assert MARKUP in film["labels"]


def test_a_page_asks_for_nothing_from_elsewhere() -> None:
    example = read_run(FOLDERS[0])
    page = page_of(example, judged(example))
    assert "default-src 'none'" in page
    assert re.findall(r"(?:src|href)=\"(?!data:|#)", page) == []
    assert not re.search(r"https?://|@import|url\(", page)


def test_a_run_without_a_recording() -> None:
    """As of a hang: its actions, and where it breaks."""
    example = read_run(FOLDERS[0])
    violation = Violation("system.hang", "stall", "no end", "system.hang f", len(example.actions) - 1)
    film = film_in(page_of(example, RunResult(violations=(violation,))))
    assert [frame["ran"] for frame in film["frames"]] == [False] * len(example.actions)
    assert film["frames"][-1]["broken"][0]["signature"] == "system.hang f"
    assert film["contents"] == []


def test_runs_that_no_page_can_show(monkeypatch: pytest.MonkeyPatch) -> None:
    example = read_run(FOLDERS[0])
    empty = msgspec.structs.replace(example, actions=())
    with pytest.raises(InputError, match="no actions"):
        page_of(empty, RunResult())
    monkeypatch.setattr(run, "MOST_CELLS", 10)
    with pytest.raises(InputError, match="too much for a page"):
        page_of(example, RunResult())


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    render.require_extra()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(InputError, match=r"pip install '\.\[html\]'"):
        render.require_extra()


# ---- what blocks hold ------------------------------------------------------------------------------------------------


def test_contents_in_words() -> None:
    layout = layout_of(full(4), mamba(8))
    worker = Worker(layout)
    contents = Contents(worker)
    untouched = contents.of(3)
    worker.run(new("a", (5, 6, 7, 8, 9, 5), ((1, 2), (3,))), fresh=(1, 2, 3))
    worker.run(new("b", (5, 6, 9), ((4,), (5,))), fresh=(4, 5))
    contents.learn()
    told = [contents.all[contents.of(block)] for block in (1, 2, 3, 4, 5)]
    assert contents.labels == ["a", "b"]
    assert contents.all[untouched] == (-1, "never written")
    assert told == [
        (0, "group 0: a 0..3"),
        (0, "group 0: a 4..5, 2 not written since handed out"),
        (0, "group 1: the state of a after 6 tokens"),
        (1, "group 0: a 0..1, b 2, 1 not written since handed out"),
        (1, "group 1: the state of b after 3 tokens"),
    ]
    worker.cells[1] = POISON
    assert contents.all[contents.of(1)] == (-2, "not written since handed out")
    worker.cells[1] = 12345
    assert contents.all[contents.of(1)] == (-5, "not known")


def test_a_session_that_goes_on_with_other_tokens_is_learned_anew() -> None:
    worker = Worker(layout_of(full(4)))
    contents = Contents(worker)
    worker.arrive("a", (5, 6, 7), "", 0)
    contents.learn()
    worker.prefixes["a"].truncate(2)
    worker.prefixes["a"].extend((8, 9))
    contents.learn()
    worker.cells[1, :4] = [worker.cell(0, "a", length) for length in (1, 2, 3, 4)]
    assert contents.all[contents.of(1)] == (0, "group 0: a 0..3")


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Take("a", 1, (3, 4)), "take a: group 1 blocks 3 4"),
        (End("a", done=False), "end a: not done"),
        (Asked("a", 4, None, asynchronous=True), "asked a: local 4 external - asynchronous"),
        (
            Lookup("a", 8, 4, (4, 8), ((1,), (2, 3)), 0, "agreed"),
            "lookup a: cap 8 length 4 lengths 4 8 blocks [1] [2 3] junction 0 how agreed",
        ),
    ],
)
def test_events_in_words(event: Any, text: str) -> None:
    assert event_text(event) == text


# ---- a campaign's history --------------------------------------------------------------------------------------------


def progress(seconds: int) -> Progress:
    return Progress(
        runs=seconds, actions=0, seconds=seconds, reached=0, possible=0, buckets=(), undetermined=0, searching=True
    )


def test_a_history_stays_small_and_keeps_both_ends() -> None:
    history = History()
    assert history.whole() == []
    for seconds in range(5 * MOST_POINTS):
        history(progress(seconds))
    times = [int(point.seconds) for point in history.whole()]
    assert len(times) <= MOST_POINTS + 1
    assert (times[0], times[-1]) == (0, 5 * MOST_POINTS - 1)
    assert times == sorted(set(times))
    assert max(later - earlier for earlier, later in pairwise(times)) <= 8


def test_charts() -> None:
    assert stairs([(0, 0), (1, 0), (2, 3), (4, 3)]) == [(0, 0), (2, 0), (2, 3), (4, 3)]
    chart = line_chart([(0.0, 0.0), (1.0, 5.0)], "seconds", "runs")
    assert chart.startswith('<svg viewBox="0 0 ')
    assert "currentColor" in chart
    assert line_chart([(0.0, 0.0), (1.0, 0.0)], "seconds", "runs") == ""
    assert line_chart([(0.0, 1.0)], "seconds", "runs") == ""
    assert line_chart([], "seconds", "runs") == ""


def test_a_page_is_the_same_every_time() -> None:
    example = Run(
        layout=layout_of(full(2)), actions=(Arrive(label="a", prompt=(1, 2, 3), max_tokens=1), Schedule(), Complete())
    )
    assert page_of(example, judged(example)) == page_of(example, judged(example))
