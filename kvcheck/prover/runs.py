"""From the numbers of a counterexample to runs: a layout of these sizes, and requests of about these lengths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvcheck.model.actions import Action, Answer, Arrive, Complete, Evict, Run, Schedule, Transfer
from kvcheck.model.layout import Connector, Drafter, Group, Kind, Layout

ROOM = 200
"""Blocks of a pool that is never short."""
STEP: tuple[Action, ...] = (Schedule(), Complete())
LOADED: tuple[Action, ...] = (Schedule(), Transfer(label="a"), Complete())
OVERLAPPING: tuple[Action, ...] = (Schedule(), Schedule(), Complete(), Schedule(), Complete(), Complete())


def group(kind: Kind, block: int, **fields: Any) -> Group:
    """A group."""
    return Group(kind=kind, block_size=block, **fields)


def layout(*groups: Group, longest: int = 40, budget: int = 40, **fields: Any) -> Layout:
    """A layout with these groups, and with as many speculative blocks as its drafter needs."""
    drafter: Drafter | None = fields.get("drafter")
    speculative = drafter.tokens if drafter else 0
    whole = tuple(
        Group(kind="mamba", block_size=g.block_size, variant=g.variant, speculative_blocks=speculative)
        if g.kind == "mamba"
        else g
        for g in groups
    )
    requests = min(4, budget)
    return Layout(
        groups=whole, num_blocks=ROOM, max_model_len=longest, token_budget=budget, max_requests=requests, **fields
    )


def mtp(reprefillable: int) -> Drafter:
    """A drafter that may prefill so many tokens again."""
    return Drafter(method="mtp", tokens=reprefillable + 1, modules=reprefillable + 1)


EAGLE = mtp(0)
CONNECTOR, DIVERGENT = Connector(), Connector(divergent=True)


def arrive(label: str, prompt: int, more: int = 1, answers: Sequence[Answer] = ()) -> Arrive:
    """A request; all have the same tokens as far as they go."""
    return Arrive(label=label, prompt=tuple(range(1, prompt + 1)), max_tokens=more, answers=tuple(answers))


def holds(tokens: int, asynchronous: bool = False) -> list[Answer]:
    """A connector that has so many tokens of a prefix."""
    return [Answer(holds=tokens, asynchronous=asynchronous)]


def alone(
    of: Layout, prompt: int, more: int = 1, answers: Sequence[Answer] = (), steps: Sequence[Action] = STEP * 6
) -> Run:
    """One request."""
    return Run(layout=of, actions=(arrive("a", prompt, more, answers), *steps))


def followed(
    of: Layout,
    first: int,
    second: int,
    answers: Sequence[Answer] = (),
    evicted: Iterable[tuple[int, int]] = (),
    between: Sequence[Action] = STEP * 3,
) -> Run:
    """A request, and one that begins like it; in between prefixes are evicted, by group and length."""
    gone = (Evict(group=index, label="a", prefix=length) for index, length in evicted)
    later = (arrive("b", second, 2, answers), *STEP * 3)
    return Run(layout=of, actions=(arrive("a", first), *between, *gone, *later))


def together(of: Layout, prompt: int) -> Run:
    """Two requests with the same prompt at the same time."""
    return Run(layout=of, actions=(arrive("a", prompt, 3), arrive("b", prompt, 3), *STEP * 4))


def cached(of: Layout, kept: dict[int, list[int]], prompt: int) -> Run:
    """A request that finds these prefixes cached, by group and length, and no others: for each length somebody was
    there before, and what else they left is evicted."""
    lengths = sorted({length for group_lengths in kept.values() for length in group_lengths})
    first = [action for length in lengths for action in (arrive(f"a{length}", length), *STEP)]
    gone = [
        Evict(group=index, label=f"a{length}", prefix=shorter)
        for length in lengths[-1:]
        for index in range(len(of.groups))
        for shorter in range(1, length + 1)
        if shorter not in kept.get(index, ())
    ]
    return Run(layout=of, actions=(*first, *gone, arrive("b", prompt), *STEP * 2))
