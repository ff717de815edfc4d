"""kvcheck hits: what it prints and writes, comparisons, wrong usage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcheck.cli.main import run
from kvcheck.report import hits_plot

SHORT = {
    "version": 1,
    "groups": [{"kind": "mamba", "block_size": 528}, {"kind": "full", "block_size": 528}],
    "num_blocks": 20,
    "max_model_len": 512,
    "token_budget": 8192,
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def hits(*arguments: str) -> tuple[int, dict[str, Any]]:
    status = run(["hits", *arguments, "--json", "h.json"])
    return status, json.loads(Path("h.json").read_text())


def test_a_layout_whose_prompts_stay_below_its_boundary_hits_nothing_and_is_told_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("short.json").write_text(json.dumps(SHORT))
    status, report = hits("--layout", "short.json")
    assert (status, report["verdict"]) == (0, "passed")
    points = [point for case in report["cases"].values() for point in case["model"]]
    assert {point["hit"] for point in points} == {0}
    shown = capsys.readouterr().out
    assert "hits are multiples of 528 tokens: all blocks have 528 (R1.7)" in shown
    assert (
        "the same prompt again: nothing measured up to 511 shared tokens hits: hits are multiples of 528 (R3.6)"
        in shown
    )


def test_all_reasons_of_lengths_that_hit_nothing_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["hits", "--layout", "gdn", "--case", "again"]) == 0
    both = "hits are multiples of 8 (R3.6); or the last token is always computed (R4.1)"
    shown = capsys.readouterr().out.splitlines()
    assert (
        f"the same prompt again: nothing below 9 shared tokens hits: {both}; from there on 3 of 33 measured"
        in shown[-3]
    )
    assert any(line.split()[:3] == ["1", "to", "8"] and line.endswith(both) for line in shown)


def test_changes_of_a_layout_and_other_targets_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--layout", "gdn", "--case", "again", "--case", "continued", "--up-to", "17"]
    status, report = hits(*asked, "--with", "retention=0", "--compare", "model+replay-boundary-not-kept")
    assert status == 0
    assert [one["name"] for one in report["setups"]] == [
        "model",
        "model+replay-boundary-not-kept",
        "with retention=0",
    ]
    assert [(one["granularity"], one["retention"]) for one in report["setups"]] == [(8, "dense"), (8, "dense"), (8, 0)]
    assert list(report["cases"]) == ["again", "continued"]
    continued = {name: {p["shared"]: p["hit"] for p in points} for name, points in report["cases"]["continued"].items()}
    assert (continued["model"][16], continued["with retention=0"][16]) == (16, 0)
    shown = capsys.readouterr().out
    assert "  with retention=0: the same at all" in shown
    assert shown.count("retention release is dense on this target") == 2
    assert "  with retention=0: shorter hits at 2 of " in shown
    assert "16 shared: 16 becomes 0: mamba groups 0 to 2: no state after 16 tokens: retention 0 keeps only" in shown


def test_lengths_beyond_the_longest_request_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    for up_to, told in (
        ("55", "all was measured ("),
        ("56", "all was measured that fits: prompts share no more than 55"),
    ):
        assert run(["hits", "--layout", "gdn", "--case", "shared", "--up-to", up_to]) == 0
        assert told in capsys.readouterr().out


def test_a_layout_that_the_target_does_not_have_is_undetermined(capsys: pytest.CaptureFixture[str]) -> None:
    status, report = hits("--layout", "falcon", "--case", "again")
    assert (status, report["verdict"]) == (2, "undetermined")
    told = "the model has no prefill checkpoints: name a release with --target"
    assert report["undetermined"] == [{"code": "not-supported", "message": told, "times": 1}]
    assert f"undetermined: not-supported: {told}" in capsys.readouterr().out


def test_prompts_that_fit_nowhere_are_undetermined() -> None:
    status, report = hits("--layout", "gdn", "--tail", "1000")
    told = "no prompts fit into the longest request: continued, shared, third, conversation"
    assert (status, report["undetermined"]) == (2, [{"code": "nothing-fits", "message": told, "times": 4}])


def test_hits_are_drawn(tmp_path: Path) -> None:
    asked = ["--layout", "gdn", "--case", "again", "--case", "shared", "--with", "match-unit=2"]
    assert run(["hits", *asked, "--plot", "h.svg"]) == 0
    drawn = Path("h.svg").read_text()
    assert drawn.count('class="series lines"') == 2 * 3
    assert "with match-unit=2" in drawn


def test_lengths_that_were_not_measured_are_told_and_not_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    sized = {**SHORT, "groups": [{"kind": kind, "block_size": 64} for kind in ("mamba", "full")], "token_budget": 1024}
    Path("sized.json").write_text(json.dumps({**sized, "max_model_len": 2048, "num_blocks": 100}))
    assert run(["hits", "--layout", "sized.json", "--case", "shared", "--plot", "h.svg"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["2", "of", "1", "to", "63", "0", "0"] in [row[:7] for row in rows]
    assert ["258", "to", "1022", "not", "measured"] in rows
    assert any("nothing measured below" in " ".join(row) for row in rows)
    drawn = Path("h.svg").read_text()
    assert "series lines" not in drawn
    assert drawn.count('class="series dots"') == 2


def test_without_the_extra_a_drawing_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hits_plot.importlib.util, "find_spec", lambda _name: None)
    assert run(["hits", "--layout", "gdn", "--plot", "h.svg"]) == 3
    assert "pip install '.[html]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "--layout"),
        (("--layout", "random"), "one layout"),
        (("--layout", "nothing"), "neither a preset"),
        (("--layout", "gdn", "--with", "size=4"), "--with 'size=4' changes nothing"),
        (("--layout", "gdn", "--with", "block-size=0"), "breaks R1"),
        (("--layout", "gdn", "--compare", "nothing"), "names no target"),
        (("--layout", "gdn", "--compare", "model"), "--compare names a target twice"),
        (("--layout", "gdn", "--plot", "h.txt"), "a drawing is a file .svg"),
        (("--layout", "gdn", "--up-to", "0"), "--up-to"),
    ],
)
def test_wrong_usage_is_told_in_one_line(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["hits", *arguments]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
