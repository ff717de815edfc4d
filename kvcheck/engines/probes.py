"""Probes: short stories on an empty cache that show how much of a prompt each release serves from it.

A probe is a layout with a few requests that run one after the other, each to its end, in a pool so large that nothing
is evicted. All prompts are made of few lengths, at and around multiples of the block, so that a boundary that some
release treats in another way falls between two of them. What is measured is the local hit of each request, in tokens.

They are a fixed catalogue, the same for all releases and stored with the hits of each (docs/releases.json), and a
server that dies in the middle has the hits before that. How far a user's own layout hits, and why no further, is
``kvcheck.engines.hit_map``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from kvcheck.engines.execution import Execution
from kvcheck.model.actions import Arrive, Complete, Schedule
from kvcheck.model.content import Prefixes
from kvcheck.model.layout import Connector, Drafter, Group, Layout
from kvcheck.model.observation import Begin
from kvcheck.targets.base import Target, UnsupportedLayout

Hits = tuple[int | None, ...]
"""The local hit of each request in tokens; None for one that was never admitted, because the server died before."""

BLOCK = 8
"""Tokens of a block of the groups that decide the scheduler block (S of R1.7)."""
UNIT = 2
"""Tokens of a match unit (h of R1.8), where a layout has one."""
LENGTHS = (7, 8, 9, 15, 16, 17, 22, 24, 25, 30, 33)
"""Lengths of prompts in tokens: at, before and behind whole blocks, and in the middle of them."""
STORIES = ("again", "continued", "siblings")
"""A prompt three times; a prompt, its answer and a next turn; three prompts with a common head."""
ANSWER = 6
"""Tokens of the answer in a story that goes on with it (R12.48)."""
TURN = 5
"""Tokens of the next turn."""
TAIL = 9
"""Tokens behind the common head: more than a block, so that the head's end is not the prompt's last boundary."""
MOST_PASSES = 100
"""Scheduling passes after which a request is taken for stuck; each of these needs less than ten."""

_FIRST_TOKEN = 101
"""Prompts count from here, so that no token of one is a sampled token (1 to 4)."""
_NEXT_TOKENS = (1001, 2001, 3001)
"""Where the tokens of turns and tails count from: other ones in each request."""


class Probe(msgspec.Struct, frozen=True):
    """One story on one layout. ``name``: layout, story and length of the prompt or head in tokens, such as
    ``mamba-unit eagle default again 16``."""

    name: str
    layout: Layout
    requests: tuple[Arrive, ...]


def hits_of(target: Target, probe: Probe) -> Hits | None:
    """The local hit in tokens of each request of a probe, as its first allocation has it (``Begin.local``).

    A tail that the answer of a connector replaces is part of it (R7.2). None: the target has no such layout.

    Raises:
        HarnessError: something failed that is not the target.
    """
    if target.supports(probe.layout):
        return None
    try:
        session = target.start(probe.layout)
    except UnsupportedLayout:
        return None
    execution = Execution(session, probe.layout)
    hits: dict[str, int] = {}
    for request in probe.requests:
        for begin in _begins(execution, request):
            hits.setdefault(begin.label, begin.local)
    return tuple(hits.get(request.label) for request in probe.requests)


def _begins(execution: Execution, request: Arrive) -> Iterator[Begin]:
    """Let a request arrive and run to its end: the allocations meanwhile."""
    execution.apply(request)
    for _ in range(MOST_PASSES):
        if execution.dead or execution.view is None or request.label not in execution.view.requests:
            return
        for action in (Schedule(), Complete()):
            log = execution.apply(action).observation.log
            yield from (event for event in log if isinstance(event, Begin))


def all_probes() -> tuple[Probe, ...]:
    """Every probe: each layout with each story and each length."""
    return tuple(
        Probe(f"{name} {story} {length}", layout, requests_of(story, length))
        for name, layout in layouts().items()
        for story in STORIES
        for length in LENGTHS
    )


# ---- stories ---------------------------------------------------------------------------------------------------------


def requests_of(story: str, length: int) -> tuple[Arrive, ...]:
    """The requests of a story whose prompt, or common head, has so many tokens."""
    head = _tokens(_FIRST_TOKEN, length)
    if story == "again":
        return tuple(Arrive(label=label, prompt=head) for label in "abc")
    if story == "continued":
        answered = tuple(Prefixes(head).token_list(length + ANSWER))
        turn = _tokens(_NEXT_TOKENS[0], TURN)
        return Arrive(label="a", prompt=head, max_tokens=ANSWER), Arrive(label="b", prompt=answered + turn)
    tails = (_tokens(first, TAIL) for first in _NEXT_TOKENS)
    return tuple(Arrive(label=label, prompt=head + tail) for label, tail in zip("abc", tails, strict=True))


def _tokens(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + count))


# ---- layouts ---------------------------------------------------------------------------------------------------------

_FULL = Group(kind="full", block_size=BLOCK)
_WINDOW = Group(kind="sliding_window", block_size=BLOCK, window=2 * BLOCK + 1)
_SMALL_WINDOW = Group(kind="sliding_window", block_size=BLOCK // 2, window=2 * BLOCK + 1)
_MAMBA = Group(kind="mamba", block_size=BLOCK)
_CHUNKED = Group(kind="chunked_local", block_size=BLOCK, chunk=2 * BLOCK)
_HALF = Group(kind="full", block_size=BLOCK // 2)

_DRAFTERS: dict[str, Drafter | None] = {
    "plain": None,
    "eagle": Drafter(method="eagle", tokens=1),
    "eagle-one": Drafter(method="eagle", tokens=1),
    "dspark": Drafter(method="dspark", tokens=1),
    "mtp2": Drafter(method="mtp", tokens=2, modules=2),
}
_BOTH = ("plain", "eagle")
_RETENTION: dict[str, Literal["dense"] | int] = {"dense": "dense", "sparse": 0}
_SPARSE = ("window", "window-small", "mamba", "mamba-unit")
"""Layouts with a group that registers only some of its whole blocks, so that retention matters (R5.6)."""


def layouts() -> dict[str, Layout]:
    """All layouts by name: groups, drafter, and retention or connector.

    ``full``: one group. ``window``: full attention and a window of two blocks, ``window-small`` one of four blocks half
    as large. ``mamba``: full attention and Mamba with b = h = S, ``mamba-unit`` with a match unit, ``mamba-steps`` with
    steps of two blocks at most. ``chunked``: full attention and chunked local. ``mixed-unit``: full attention, Mamba
    and window with a match unit. ``dcp-unit``: full attention over two ranks and Mamba with a match unit.

    All groups are marked (R1.17), with ``eagle-one`` only the first. ``default`` is the release's own retention,
    ``sparse`` interval 0. ``connector``: one that holds nothing, with default retention.
    """
    named = [f"{base} {drafter} default" for base in ("full", *_SPARSE) for drafter in _DRAFTERS]
    named += [f"{base} {drafter} {kept}" for base in _SPARSE for drafter in _BOTH for kept in ("dense", "sparse")]
    named += [f"{base} {drafter} default" for base in ("mixed-unit", "dcp-unit", "mamba-steps") for drafter in _BOTH]
    named += [f"{base} {drafter} connector" for base in ("full", *_SPARSE) for drafter in _BOTH]
    named.remove("full eagle-one default")  # its one group is marked in any case
    return {name: _layout(*name.split()) for name in ("chunked plain default", *named)}


def _layout(base: str, drafter_name: str, kept: str) -> Layout:
    """A layout with room for every request of a story at once."""
    drafter = _DRAFTERS[drafter_name]
    kinds = {
        "full": (_FULL,),
        "window": (_FULL, _WINDOW),
        "window-small": (_FULL, _SMALL_WINDOW),
        "chunked": (_FULL, _CHUNKED),
        "mixed-unit": (_FULL, _MAMBA, _WINDOW),
        "dcp-unit": (_HALF, _MAMBA),
    }
    groups = kinds.get(base, (_FULL, _MAMBA))
    marked = groups[:1] if drafter_name == "eagle-one" else groups
    layout = Layout(
        groups=tuple(_group(group, drafter, group in marked) for group in groups),
        num_blocks=1,
        max_model_len=64,
        token_budget=2 * BLOCK if base == "mamba-steps" else 64,
        match_unit=UNIT if base.endswith("-unit") else None,
        drafter=drafter,
        retention=_RETENTION.get(kept, "release"),
        connector=Connector() if kept == "connector" else None,
        dcp=2 if base == "dcp-unit" else 1,
        worker_generation=2 if drafter is not None and drafter.method == "dspark" else 1,
    )
    return msgspec.structs.replace(layout, num_blocks=3 * layout.min_blocks)


def _group(group: Group, drafter: Drafter | None, marked: bool) -> Group:
    """The group with what the drafter makes of it: a mark (R1.17) and states for drafts (R1.19)."""
    if drafter is None:
        return group
    states = 0 if group.is_attention else drafter.tokens
    return msgspec.structs.replace(group, eagle=drafter.is_eagle and marked, speculative_blocks=states)
