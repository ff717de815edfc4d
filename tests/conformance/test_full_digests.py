"""Every release shows the same whether it is loaded light or with all its dependencies.

Needs none of vLLM's dependencies: what full loading showed is stored, see `full/digests.py`; `scripts/nightly` looks
whether it still does.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from conformance.full.digests import DIGESTS, RUNS, UNSUPPORTED, compute, difference, read_digests, read_runs
from releases import release

from kvcheck.model.actions import Arrive, kind_of
from kvcheck.model.layout import problems
from kvcheck.targets.vllm.release import KNOWN_RELEASES

MOST_BYTES = 250_000


@pytest.mark.release
@pytest.mark.parametrize("version", KNOWN_RELEASES)
def test_light_shows_what_full_has_shown(version: str) -> None:
    release(version)
    text = difference(version, "light", compute(version, "light"), read_digests()[version])
    if text:
        pytest.fail(text, pytrace=False)


def test_there_is_a_digest_for_each_run_on_each_release() -> None:
    indices = [str(index) for index in range(len(read_runs()))]
    stored = read_digests()
    assert list(stored) == list(KNOWN_RELEASES)
    assert {version: list(digests) for version, digests in stored.items()} == dict.fromkeys(KNOWN_RELEASES, indices)
    plain = Counter(value for digests in stored.values() for value in digests.values() if len(value) != 64)
    assert set(plain) <= {UNSUPPORTED}
    assert plain[UNSUPPORTED] < sum(len(digests) for digests in stored.values()) / 8


def test_the_corpus_is_small_and_varied() -> None:
    assert RUNS.stat().st_size + DIGESTS.stat().st_size < MOST_BYTES
    runs = read_runs()
    layouts = [run.layout for run in runs]
    assert [problems(layout) for layout in layouts] == [[]] * len(runs)
    assert max(len(run.actions) for run in runs) <= 60
    there = {
        "hybrid": sum(len(layout.groups) > 1 for layout in layouts),
        "one group": sum(len(layout.groups) == 1 for layout in layouts),
        "partial hits": sum(layout.partial_hits for layout in layouts),
        "checkpoint blocks": sum(any(g.checkpoint_blocks for g in layout.groups) for layout in layouts),
        "asynchronous": sum(layout.asynchronous for layout in layouts),
        "connector": sum(layout.connector is not None for layout in layouts),
        "divergent": sum(layout.connector is not None and layout.connector.divergent for layout in layouts),
        "dcp": sum(layout.dcp > 1 for layout in layouts),
        "events": sum(layout.events for layout in layouts),
        "worker generation 1": sum(layout.worker_generation == 1 for layout in layouts),
        "worker generation 2": sum(layout.worker_generation == 2 for layout in layouts),
        "sessions": sum(any(isinstance(a, Arrive) and a.session for a in run.actions) for run in runs),
    }
    assert {name: count for name, count in there.items() if count < 2} == {}
    kinds = {kind_of(action) for run in runs for action in run.actions}
    assert kinds == {
        "arrive",
        "extend",
        "schedule",
        "complete",
        "transfer",
        "abort",
        "evict",
        "reset",
        "pause",
        "settle",
    }
    drafters = {layout.drafter.method for layout in layouts if layout.drafter}
    assert drafters == {"eagle", "eagle3", "mtp", "dflash", "dspark", "draft_model", "ngram"}
    assert {g.kind for layout in layouts for g in layout.groups} == {
        "full", "mla", "sliding_window", "chunked_local", "mamba",
    }  # fmt: skip


# ---- what a failure says ---------------------------------------------------------------------------------------------


def test_equal_digests_are_no_difference() -> None:
    assert difference("0.28.0", "light", {"0": "a"}, {"0": "a"}) == ""


def test_a_difference_names_the_first_run_and_says_how_to_look_into_it() -> None:
    found = {"0": "a", "2": "b", "10": "c"}
    text = difference("0.28.0", "light", found, {"0": "a", "2": "x", "10": "y"})
    assert text.startswith("vllm==0.28.0: 2 of 3 runs differ, the first is run 2:\n  stored: x\n  light:  b\n")
    assert "All runs that differ: 2, 10." in text
    assert "--release 0.28.0 --show 2 --mode full" in text


def test_a_missing_digest_is_a_difference() -> None:
    assert "stored: nothing" in difference("0.28.0", "light", {"0": "a"}, {})


def test_no_digests_are_stored_yet(tmp_path: Path) -> None:
    assert read_digests(tmp_path / "digests.json") == {}
