"""What a server did with a run, in numbers that can be compared with another server's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from kvcheck.model.observation import Begin, Drop, End, Event, Observation, Register, Take

Measures: TypeAlias = dict[str, int]
"""A number for each measure."""

MEASURES: dict[str, str] = {
    "hit_tokens": "tokens that requests took from the cache",
    "registrations": "keys published",
    "evictions": "keys lost because their block was handed out",
    "preemptions": "requests preempted",
    "copies": "blocks copied",
    "passes": "scheduling passes that ran something",
    "computed_tokens": "tokens run, drafts included",
}
"""Each measure and what it counts."""
SECONDS = "scheduling_seconds"
"""What scheduling passes have taken is told beside the measures. It varies, so it is none."""
WORSE: dict[str, int] = {
    "hit_tokens": -1,
    "evictions": 1,
    "preemptions": 1,
    "copies": 1,
    "passes": 1,
    "computed_tokens": 1,
}
"""The direction in which a measure gets worse; of the others neither is."""


def total(measures: Iterable[Measures]) -> Counter[str]:
    """All measures of a run, from those of its actions."""
    summed: Counter[str] = Counter()
    for one in measures:
        summed.update(one)
    return summed


def measures_of(seen: Observation) -> Measures:
    """All measures of what one action showed."""
    plan = seen.plan
    return {
        "hit_tokens": _hit_tokens(seen.log),
        "registrations": sum(isinstance(event, Register) for event in seen.log),
        "evictions": _evictions(seen.log),
        "preemptions": len(plan.preempted) if plan else 0,
        "copies": len(plan.copies) if plan else 0,
        "passes": int(plan is not None and bool(plan.requests)),
        "computed_tokens": sum(item.count for item in plan.requests) if plan else 0,
    }


def _hit_tokens(log: tuple[Event, ...]) -> int:
    """Tokens of local hits that allocations took up; what was refused is looked up again later."""
    tokens, begun = 0, None
    for event in log:
        if isinstance(event, Begin):
            begun = event
        elif isinstance(event, End) and event.done and begun is not None and begun.label == event.label:
            tokens += begun.local
    return tokens


def _evictions(log: tuple[Event, ...]) -> int:
    """Keys withdrawn from blocks that were taken then. Keys also go when a block gets a longer one, or gives its keys
    to a copy."""
    lost, count = [], 0
    for event in log:
        if isinstance(event, Drop):
            lost.append(event.block)
        elif isinstance(event, Take):
            count += sum(block in event.blocks for block in lost)
            lost.clear()
        else:
            lost.clear()
    return count


def worse_by(measure: str, base: Counter[str], head: Counter[str]) -> int:
    """By how much a measure of head is worse than base's; 0 or less if it is not."""
    return WORSE[measure] * (head[measure] - base[measure])


def percent_worse(measure: str, base: Counter[str], head: Counter[str]) -> float:
    """The same in percent of base's; infinite where base has none."""
    worse = worse_by(measure, base, head)
    if not worse:
        return 0.0
    return 100 * worse / base[measure] if base[measure] else float("inf") * worse


def differing(measure: str, base: Sequence[Measures], head: Sequence[Measures]) -> Iterator[tuple[int, int, int]]:
    """Actions of one run at which a measure differs: index, base's, head's."""
    for index, (one, other) in enumerate(zip(base, head, strict=False)):
        if one[measure] != other[measure]:
            yield index, one[measure], other[measure]
