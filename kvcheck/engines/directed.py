"""A search that is directed by a report: on its layout, with much of what it mentions."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec

from kvcheck.engines.random_layouts import ALL_FEATURES, Core, random_layout, spare_blocks, with_settings
from kvcheck.engines.random_runs import RunGenerator
from kvcheck.engines.search import SearchResult, walked
from kvcheck.engines.source import RandomSource, Source
from kvcheck.engines.topics import emphasis_of, missing, with_topics
from kvcheck.model.actions import Run
from kvcheck.model.layout import Layout, problems
from kvcheck.targets.base import Target, UnsupportedLayout

replace = msgspec.structs.replace

ATTEMPTS = 100
"""How many layouts are drawn until the target can express one, and until a random one has what is mentioned."""
UNDIRECTED_PERCENT = 20
"""Runs without any emphasis: what a report mentions need not be what matters."""


def search(target: Target, seed: int, layout: Layout | None, topics: Sequence[str] = ()) -> SearchResult:
    """One random run of a seed.

    Raises:
        UnsupportedLayout: neither the layout nor any that was drawn from it is for this target.
    """
    source = RandomSource(random.Random(seed))
    wanted = () if source.chance(UNDIRECTED_PERCENT) else tuple(topics)
    for chosen in _layouts(source, layout, wanted):
        try:
            session = target.start(chosen)
        except UnsupportedLayout:
            continue
        generator = RunGenerator(source, chosen, emphasis=emphasis_of(wanted))
        return walked(session, Run(layout=chosen, actions=()), source, generator)
    raise UnsupportedLayout("the target supports none of the layouts that were drawn")


def _layouts(source: Source, given: Layout | None, topics: Sequence[str]) -> Iterator[Layout]:
    """Layouts with what is mentioned, until the target takes one; at last the given one as it is."""
    for _ in range(ATTEMPTS):
        base = _random(source, topics) if given is None else varied_settings(source, given)
        yield with_topics(source, base, topics)
    if given is not None:
        yield given


def _random(source: Source, topics: Sequence[str]) -> Layout:
    """A random layout whose groups have what is mentioned, unless that is too rare."""
    for _ in range(ATTEMPTS):
        layout = random_layout(source)
        if not missing(layout, topics):
            break
    return layout


def varied_settings(source: Source, layout: Layout) -> Layout:
    """The layout as it is, in half of all cases; else with other sizes of pool, steps and requests; else with all that
    an operator decides drawn anew. The groups, the match unit and the drafter stay."""
    how = source.weighted((("as it is", 2), ("other sizes", 1), ("other settings", 1)))
    if how == "as it is":
        return layout
    drawn = with_settings(source, Core.of(layout), ALL_FEATURES)
    if how == "other sizes":
        drawn = replace(
            layout,
            max_model_len=drawn.max_model_len,
            token_budget=drawn.token_budget,
            max_requests=drawn.max_requests,
            long_prefill_threshold=drawn.long_prefill_threshold,
        )
        drawn = replace(drawn, num_blocks=drawn.min_blocks + spare_blocks(source))
    return layout if problems(drawn) else drawn
