"""What a report may mention: the vocabulary, and what it does to layouts and runs."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from helpers import full, layout_of, window

from kvcheck.engines.directed import search, varied_settings
from kvcheck.engines.random_runs import Emphasis
from kvcheck.engines.source import RandomSource
from kvcheck.engines.topics import TOPICS, emphasis_of, mentioned, missing, with_topics
from kvcheck.layouts.presets import all_presets
from kvcheck.model.actions import Arrive
from kvcheck.model.layout import Layout, problems
from kvcheck.targets.loading import load_target

GUIDE = Path(__file__).parents[2] / "docs" / "reported-crash.md"
PLAIN = layout_of(full(4), window(4, 8), num_blocks=30)
SAID = {
    "preemption": "it happens when requests are preempted",
    "connector": "with the NixlConnector",
    "failed load": "in _update_requests_with_invalid_blocks",
    "store": "after finished_sending",
    "abort": "when the client disconnects",
    "eagle": "with EAGLE-3",
    "mtp": "with qwen3_next_mtp",
    "parallel drafts": "with DSpark",
    "drafts": "speculative decoding",
    "mamba": "MambaManager",
    "sliding window": "SlidingWindowManager",
    "chunked local": "ChunkedLocalAttentionManager",
    "overlapping steps": "--async-scheduling",
    "priority": "--scheduling-policy priority",
    "eviction": "evicted",
    "reset": "reset_prefix_cache",
    "pause": "paused",
    "session": "streaming input",
    "match unit": "--prefix-match-unit 16",
    "chunked prefill": "chunked prefill",
    "DCP": "-dcp 2",
    "retention": "retention interval",
    "events": "kv_events",
}


def source_of(seed: int) -> RandomSource:
    return RandomSource(random.Random(seed))


def test_every_topic_is_heard_of() -> None:
    assert set(SAID) == set(TOPICS)
    for name, text in SAID.items():
        assert name in mentioned(text), name
    assert mentioned("AssertionError in allocate_slots") == ()


def test_the_guide_has_the_vocabulary() -> None:
    lines = GUIDE.read_text(encoding="utf-8").splitlines()
    told = [line.split("|")[1].strip() for line in lines if line.startswith("| ") and line.count("|") == 4]
    assert told[1:] == list(TOPICS)


@pytest.mark.parametrize("name", list(TOPICS))
def test_a_topic_makes_layouts_that_a_server_starts_with(name: str) -> None:
    layouts = [preset.layout() for preset in all_presets()]
    changed = [with_topics(source_of(i), layout, (name,)) for i, layout in enumerate(layouts)]
    assert not any(problems(layout) for layout in changed)
    if TOPICS[name].change is not None:
        assert sum(TOPICS[name].there(layout) for layout in changed) > len(changed) / 2
    assert [layout.groups for layout in changed if layout.drafter is None] == [
        before.groups for before, layout in zip(layouts, changed, strict=True) if layout.drafter is None
    ]


def test_what_a_layout_cannot_be_given_is_missing() -> None:
    plain = layout_of(full(4))
    assert missing(plain, ("mamba", "connector", "abort")) == ("mamba",)
    assert missing(layout_of(full(4), window(4, 8)), ("sliding window",)) == ()


def test_other_settings_leave_groups_as_they_are() -> None:
    given = layout_of(full(4), window(4, 8), num_blocks=40)
    drawn = [varied_settings(source_of(seed), given) for seed in range(100)]
    assert not any(problems(layout) for layout in drawn)
    assert {layout.groups for layout in drawn} == {given.groups}
    assert 30 < drawn.count(given) < 70
    assert {layout.connector is None for layout in drawn} == {True, False}


def drawn(topics: tuple[str, ...], layout: Layout | None = None, runs: int = 15) -> Counter[str]:
    """Actions and situations of directed runs on the model."""
    target, seen = load_target("model"), Counter[str]()
    for seed in range(runs):
        result = search(target, seed, layout, topics)
        assert not result.violations, result.violations
        seen.update({f"{kind}s": count for kind, count in result.actions_by_kind.items()})
        seen.update(result.witnesses)
        seen["stored"] += sum(action.store for action in result.run.actions if isinstance(action, Arrive))
    return seen


@pytest.fixture(scope="module")
def undirected() -> Counter[str]:
    return drawn((), PLAIN)


@pytest.mark.parametrize(
    ("topics", "what"),
    [
        (("abort",), "aborts"),
        (("failed load",), "load-failed"),
        (("preemption",), "preemption"),
        (("store",), "stored"),
        (("eviction",), "evicts"),
    ],
)
def test_what_is_mentioned_comes_up_more(topics: tuple[str, ...], what: str, undirected: Counter[str]) -> None:
    assert drawn(topics, PLAIN)[what] > 1.5 * undirected[what]


def test_a_random_layout_has_the_kind_of_group_that_is_mentioned() -> None:
    target = load_target("model")
    layouts = [search(target, seed, None, ("mamba",)).run.layout for seed in range(15)]
    assert sum(layout.has_mamba for layout in layouts) > 11


def test_emphases_are_known_to_the_generator() -> None:
    known: Emphasis = frozenset(
        {
            "arrive",
            "abort",
            "transfer",
            "extend",
            "evict",
            "reset",
            "pause",
            "answers",
            "failures",
            "sessions",
            "stores",
        }
    )
    assert emphasis_of(tuple(TOPICS)) <= known | {"long"}
