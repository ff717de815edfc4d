"""What a report may mention, and what a search directed by it then draws more of.

A topic is one entry: the words that reports use for it, what it does to the layout, what a run has much of. A layout
keeps its groups; what its operator decides is changed only as far as the server would still start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from kvcheck.engines.random_layouts import (
    ALL_FEATURES,
    Core,
    random_connector,
    random_match_unit,
    random_retention,
    with_drafter,
)
from kvcheck.engines.random_runs import Emphasis
from kvcheck.engines.source import Source
from kvcheck.model.layout import Layout, problems

Change = Callable[[Source, Layout], Layout]
ATTEMPTS = 20
"""How often a drafter is drawn until it is of the method that a report names."""

replace = msgspec.structs.replace


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """``words``: a regular expression. ``there``: whether a layout has it; ``change``: gives it to one that has not, as
    far as that can be. ``emphasis``: see the generator of runs."""

    name: str
    words: str
    there: Callable[[Layout], bool] = lambda _: True
    change: Change | None = None
    emphasis: Emphasis = frozenset()


def mentioned(text: str) -> tuple[str, ...]:
    """Names of the topics whose words are in a text."""
    return tuple(topic.name for topic in TOPICS.values() if re.search(topic.words, text, re.IGNORECASE))


def emphasis_of(names: Sequence[str]) -> Emphasis:
    """What runs have much of when these topics are mentioned."""
    return frozenset().union(*(TOPICS[name].emphasis for name in names))


def missing(layout: Layout, names: Sequence[str]) -> tuple[str, ...]:
    """The topics that this layout has no part in and cannot be given."""
    return tuple(name for name in names if not TOPICS[name].there(layout) and TOPICS[name].change is None)


def with_topics(source: Source, layout: Layout, names: Sequence[str]) -> Layout:
    """The layout with all of these topics that it can be given."""
    for name in names:
        change = TOPICS[name].change
        if change is not None:
            changed = _with_room(change(source, layout))
            layout = layout if problems(changed) else changed
    return layout


def _with_room(layout: Layout) -> Layout:
    """With as many blocks as it needs at least."""
    return replace(layout, num_blocks=max(layout.num_blocks, layout.min_blocks))


# ---- what topics do to a layout --------------------------------------------------------------------------------------


def _short_of_memory(source: Source, layout: Layout) -> Layout:
    """A pool that just holds one request, and several that want it."""
    requests = min(layout.token_budget, max(3, layout.max_requests))
    tight = replace(layout, max_requests=requests)
    return replace(tight, num_blocks=tight.min_blocks + source.choose((0, 1, 2, 4)))


def _connected(unable: str) -> Change:
    """With a connector, of another role than this one, which cannot do what was mentioned."""

    def change(source: Source, layout: Layout) -> Layout:
        connector = layout.connector or random_connector(source, ALL_FEATURES)
        return replace(layout, connector=replace(connector, role="both") if connector.role == unable else connector)

    return change


def _drafting(*methods: str) -> Change:
    """With a drafter of one of these methods, where there is none; one that is there is what the server had."""

    def change(source: Source, layout: Layout) -> Layout:
        for _ in range(0 if layout.drafter else ATTEMPTS):
            core = with_drafter(source, Core.of(layout), ALL_FEATURES)
            if core.drafter is not None and core.drafter.method in methods:
                budget = max(layout.token_budget, 2 * core.drafter.tokens + 1)
                return replace(layout, groups=core.groups, drafter=core.drafter, token_budget=budget)
        return layout

    return change


def _overlapping(source: Source, layout: Layout) -> Layout:
    able = layout.drafter is None or layout.drafter.method != "ngram"
    return replace(layout, steps_in_flight=source.choose((2, 3))) if able and not layout.asynchronous else layout


def _fine(source: Source, layout: Layout) -> Layout:
    """With a match unit, as far as the groups allow one."""
    return layout if layout.match_unit else replace(layout, match_unit=random_match_unit(source, Core.of(layout)))


def _in_small_steps(source: Source, layout: Layout) -> Layout:
    """A prompt takes several steps."""
    least = max(layout.max_requests, 2 * layout.draft_tokens + 1, layout.mamba_block)
    return replace(layout, token_budget=min(layout.token_budget, least + source.integer(0, 8)))


def _retaining(source: Source, layout: Layout) -> Layout:
    return replace(layout, retention=random_retention(source, Core.of(layout), layout.scheduler_block))


def _is_connected(layout: Layout) -> bool:
    return layout.connector is not None


def _has(kind: str) -> Callable[[Layout], bool]:
    return lambda layout: any(group.kind == kind for group in layout.groups)


def _drafts(*methods: str) -> Callable[[Layout], bool]:
    return lambda layout: layout.drafter is not None and layout.drafter.method in methods


_OTHER_DRAFTERS = ("draft_model", "ngram")
_EAGLES = ("eagle", "eagle3")

_ALL = (
    Topic(
        name="preemption",
        words=r"preempt|free blocks|get_new_blocks|popleft|out of (cache )?(blocks|memory)|cache (is )?full|pressure",
        change=_short_of_memory,
        emphasis=frozenset({"arrive", "long"}),
    ),
    Topic(
        name="connector",
        words=r"connector|kv[_ -]?(transfer|xfer)|external|remote[_ ]kv|nixl|lmcache|mooncake|offload|disagg|recving",
        there=_is_connected,
        change=_connected("producer"),
        emphasis=frozenset({"answers", "transfer"}),
    ),
    Topic(
        name="failed load",
        words=r"invalid[_ ]block|failed[_ ](to )?(recv|load)|load[_ ](fail|error)|recompute polic",
        there=_is_connected,
        change=_connected("producer"),
        emphasis=frozenset({"answers", "failures", "transfer"}),
    ),
    Topic(
        name="store",
        words=r"finished_sending|request_finished|offload|\bstor(e|es|ed|ing)\b|save_kv|delay_free",
        there=_is_connected,
        change=_connected("consumer"),
        emphasis=frozenset({"stores", "transfer"}),
    ),
    Topic(
        name="abort",
        words=r"abort|cancel|disconnect|finish_requests",
        emphasis=frozenset({"abort"}),
    ),
    Topic(name="eagle", words=r"eagle", there=_drafts(*_EAGLES), change=_drafting(*_EAGLES)),
    Topic(name="mtp", words=r"\bmtp|_mtp|nextn", there=_drafts("mtp"), change=_drafting("mtp")),
    Topic(
        name="parallel drafts",
        words=r"dflash|dspark",
        there=_drafts("dflash", "dspark"),
        change=_drafting("dflash", "dspark"),
    ),
    Topic(
        name="drafts",
        words=r"draft|speculat|spec[_ ]decod|spec_token|lookahead|n-?gram",
        there=lambda layout: layout.drafter is not None,
        change=_drafting(*_EAGLES, "mtp", *_OTHER_DRAFTERS),
    ),
    Topic(
        name="mamba",
        words=r"mamba|\bssm|\bgdn|delta[_ -]?net|\bkda\b|linear[_ ]attention|recurrent|conv[_ ]state",
        there=_has("mamba"),
    ),
    Topic(name="sliding window", words=r"sliding[_ -]?window|\bswa\b|windowed", there=_has("sliding_window")),
    Topic(name="chunked local", words=r"chunked[_ -]?local|attention_chunk", there=_has("chunked_local")),
    Topic(
        name="overlapping steps",
        words=r"async[a-z]*[_ -]?sched|placeholder|in[_ -]flight|batch_queue|overlap",
        there=lambda layout: layout.asynchronous,
        change=_overlapping,
    ),
    Topic(
        name="priority",
        words=r"priorit",
        there=lambda layout: layout.policy == "priority",
        change=lambda _, layout: replace(layout, policy="priority"),
        emphasis=frozenset({"arrive"}),
    ),
    Topic(name="eviction", words=r"evict", emphasis=frozenset({"evict"})),
    Topic(name="reset", words=r"reset|sleep mode|weight update", emphasis=frozenset({"reset"})),
    Topic(name="pause", words=r"\bpaus", emphasis=frozenset({"pause"})),
    Topic(
        name="session",
        words=r"session|streaming[_ ]input|resumable",
        emphasis=frozenset({"sessions", "extend"}),
    ),
    Topic(
        name="match unit",
        words=r"match[_ -]unit|fine[- _]grained|partial[_ ](hit|tail|block|hash)|copy[- ]on[- ]write|\bcow\b",
        there=lambda layout: layout.match_unit is not None,
        change=_fine,
    ),
    Topic(
        name="chunked prefill",
        words=r"chunked[_ -]prefill|long[_ -]prefill|max_num_batched",
        change=_in_small_steps,
        emphasis=frozenset({"long"}),
    ),
    Topic(
        name="DCP",
        words=r"\bdcp|context[_ -]parallel",
        there=lambda layout: layout.dcp > 1,
        change=lambda _, layout: replace(layout, dcp=max(2, layout.dcp)),
    ),
    Topic(name="retention", words=r"retention", change=_retaining),
    Topic(
        name="events",
        words=r"kv[_ -]?events?\b|BlockRemoved|BlockStored",
        there=lambda layout: layout.events,
        change=lambda _, layout: replace(layout, events=True),
    ),
)

TOPICS: dict[str, Topic] = {topic.name: topic for topic in _ALL}
