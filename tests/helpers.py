"""Small hand-made things for tests: layouts, plans, views, moments; and releases behind worker processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from releases import release

from kvcheck.engines import judging
from kvcheck.engines.random_layouts import Features
from kvcheck.engines.search import SearchResult, search_one
from kvcheck.engines.watched import Watched
from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.moment import Moment
from kvcheck.invariants.registry import Judge, Violation
from kvcheck.invariants.witnesses import WITNESSES
from kvcheck.layouts.presets import PRESETS
from kvcheck.model import shadow as shadow_module
from kvcheck.model.actions import Action, Arrive
from kvcheck.model.content import Prefixes
from kvcheck.model.layout import Connector, Group, Layout
from kvcheck.model.observation import (
    CacheView,
    Event,
    Load,
    Observation,
    Promises,
    Register,
    RequestView,
    Scheduled,
    StepPlan,
    Tables,
)
from kvcheck.model.shadow import Shadow, StepResult
from kvcheck.targets.base import Target

replace = msgspec.structs.replace

# ---- layouts ---------------------------------------------------------------------------------------------------------


def full(block: int = 2, **fields: Any) -> Group:
    return Group(kind="full", block_size=block, **fields)


def window(block: int, tokens: int, **fields: Any) -> Group:
    return Group(kind="sliding_window", block_size=block, window=tokens, **fields)


def chunked(block: int, tokens: int) -> Group:
    return Group(kind="chunked_local", block_size=block, chunk=tokens)


def mamba(block: int, drafts: int = 0) -> Group:
    return Group(kind="mamba", block_size=block, speculative_blocks=drafts)


def layout_of(*groups: Group, **settings: Any) -> Layout:
    """A layout with room for everything that a hand-made plan does."""
    sizes = {"num_blocks": 12, "max_model_len": 32, "token_budget": 32, **settings}
    return Layout(groups=groups, **sizes)


# ---- plans -----------------------------------------------------------------------------------------------------------


def new(label: str, tokens: Sequence[int], tables: Tables, start: int = 0, count: int | None = None) -> Scheduled:
    """A new request that runs ``count`` tokens from ``start`` on: the rest of its tokens, if nothing is said."""
    count = len(tokens) - start if count is None else count
    return Scheduled(label, "new", start, count, 0, len(tokens), tables, tuple(tokens))


def running(label: str, start: int, count: int, known: int, more: Tables = (), drafts: int = 0) -> Scheduled:
    """A running request, with the blocks to append to its tables."""
    return Scheduled(label, "running", start, count, drafts, known, more)


def step(*requests: Scheduled, seq: int = 1, **fields: Any) -> StepPlan:
    return StepPlan(seq=seq, requests=requests, **fields)


class Worker(Shadow):
    """A shadow worker whose requests arrive with their first plan."""

    def __init__(self, layout: Layout, promises: Promises | None = None) -> None:
        super().__init__(layout, promises or Promises())

    def run(self, *requests: Scheduled, accepted: Mapping[str, int] | None = None, **fields: Any) -> StepResult:
        """Execute one step; requests that nobody knows arrive first."""
        for item in requests:
            if item.label not in self.prefixes and item.tokens is not None:
                self.arrive(item.label, item.tokens, "", 0)
        return self.execute(step(*requests, **fields), accepted or {})

    def cell(self, group: int, label: str, length: int) -> int:
        """What a cell of this group holds that was computed from the first ``length`` tokens of the request."""
        return self.prefixes[label].id_of(length) ^ shadow_module._GROUP_MASKS[group]

    def held(self, block: int, count: int) -> list[int]:
        """The first ``count`` cells of a block."""
        return [int(value) for value in self.cells[block, :count]]

    def state(self, block: int) -> int:
        """The one state of a Mamba block."""
        return int(self.cells[block, 0])


# ---- moments ---------------------------------------------------------------------------------------------------------


def request_view(status: Any = "running", **fields: Any) -> RequestView:
    numbers = {"prompt": 4, "known": 5, "computed": 4, "in_flight": 0, "placeholders": 0, **fields}
    return RequestView(status=status, **numbers)


def view_of(layout: Layout, tables: dict[str, Tables] | None = None, **fields: Any) -> CacheView:
    """A view whose reference counts and free queue follow from tables and holders, with a running request a table."""
    tables = tables or {}
    holders: tuple[tuple[int, int], ...] = fields.pop("holders", ())
    counts = Counter(block for groups in tables.values() for table in groups for block in table)
    for block, count in holders:
        counts[block] += count
    counts[0] = 0
    refs = tuple(counts[block] for block in range(layout.num_blocks))
    free = tuple(block for block in range(1, layout.num_blocks) if not refs[block])
    keys = fields.pop("keys", ())
    whole: dict[str, Any] = {
        "refs": refs,
        "free": free,
        "free_count": len(free),
        "keys": keys,
        "block_keys": keys,
        "tables": tables,
        "holders": holders,
        "requests": {label: request_view() for label in tables},
        "running": tuple(tables),
        "waiting": (),
        **fields,
    }
    return CacheView(**whole)


class Bench:
    """A judge that is fed hand-made moments. ``known``: requests with their prompts, which have arrived already."""

    def __init__(self, layout: Layout, promises: Promises | None = None, **known: Sequence[int]) -> None:
        self.layout = layout
        self.shadow = Worker(layout, promises)
        self.ledger = Ledger(layout, promises or Promises(), self.shadow)
        self.judge = Judge(self.ledger)
        self.before: CacheView | None = None
        self.count = 0
        for label, prompt in known.items():
            self.feed(Arrive(label=label, prompt=tuple(prompt)))

    def moment(self, action: Action, *log: Event, **fields: Any) -> Moment:
        """A moment; ``fields`` are those of the observation and of the moment."""
        moment = Moment(index=self.count, action=action, before=self.before, shadow=self.shadow)
        self.count += 1
        if isinstance(action, Arrive):
            self.shadow.arrive(action.label, action.prompt, action.salt, action.adapter)
        moment_fields = {name: fields.pop(name) for name in list(fields) if name in Moment.__slots__}
        moment.observation = Observation(index=moment.index, log=log, **fields)
        for name, value in moment_fields.items():
            setattr(moment, name, value)
        self.before = moment.view or self.before
        return moment

    def feed(self, action: Action, *log: Event, **fields: Any) -> list[Violation]:
        """What this moment breaks."""
        return self.judge.feed(self.moment(action, *log, **fields))

    def witnessed(self, action: Action, *log: Event, **fields: Any) -> set[str]:
        """The situations that came up in this moment, possible or not."""
        moment = self.moment(action, *log, **fields)
        self.judge.feed(moment)
        return {w.name for w in WITNESSES.values() if w.happens(moment, self.ledger)}

    def key(self, group: int, label: str, length: int) -> tuple[int, int, int]:
        """Group, length and name of the key for the request's first tokens."""
        return self.ledger.key(group, label, length)

    def register(self, group: int, block: int, label: str, length: int) -> Register:
        """The registration of a block for the request's first tokens."""
        return Register(label, group, block, length, self.key(group, label, length)[2])


def found(violations: Iterable[Violation]) -> set[str]:
    """The invariants that were broken."""
    return {violation.invariant for violation in violations}


def load(label: str, local: int, external: int, tables: Tables, **fields: Any) -> Load:
    """A load; all blocks are fresh and it is synchronous unless something else is said."""
    fresh = fields.pop("fresh", tuple(block for table in tables for block in table if block))
    return Load(label, local, external, fields.pop("asynchronous", False), tables, fresh, **fields)


def prefix(tokens: Sequence[int], length: int, salt: str = "", adapter: int = 0) -> int:
    """The identity of a prefix."""
    return Prefixes(tokens, salt, adapter).id_of(length)


# ---- releases --------------------------------------------------------------------------------------------------------


def search_all_witnesses(target: Target, seed: int, layout: Layout | None) -> SearchResult:
    """A random run that is asked for every situation, also those that its layout does not allow."""
    judging.possible_witnesses = lambda _: tuple(WITNESSES.values())  # type: ignore[attr-defined,assignment]
    return search_one(target, seed, Features(), layout)


def search_manager(target: Target, seed: int, layout: Layout | None) -> SearchResult:
    """A random run of what a cache manager alone can do, judged at that level instead of the scheduler's."""
    features = Features(
        drafter=False, asynchronous=False, connector=False, sessions=False, priorities=False, pauses=False, events=False
    )
    drawn = search_one(target, seed, features, layout)
    run = replace(drawn.run, level="manager")
    result = judging.judge_run(target, run)
    return replace(
        drawn,
        run=run,
        violations=result.violations,
        witnesses=result.witnesses,
        actions_by_kind=result.actions_by_kind,
        actions=result.actions,
        skipped=result.skipped,
        undetermined=result.undetermined,
    )


ATTENTION_ONLY = (
    "full",
    "gptoss",
    "gemma3",
    "gemma_unit",
    "llama4",
    "mistral_swa",
    "ministral",
    "dsv4_exact",
    "dsv4_small",
)
RECURRENT = ("gdn", "nemotron", "granite", "falcon", "jamba")
LOADING = ("full", "gptoss", "gemma3", "mistral_swa", "ministral")
SOUND: tuple[tuple[str, bool, int], ...] = tuple(
    (name, loads, steps)
    for names, loads in ((ATTENTION_ONLY, False), (RECURRENT, False), (LOADING, True))
    for name in names
    for steps in (1, 2)
)
"""Presets on which no release has a known bug: name, whether with a connector, steps in flight.

What is missing, and why: drafters and match units (R10.7, R10.8 and what came later), connectors beside Mamba groups
(R10.2), beside chunked-local groups and beside windows of unequal blocks (an asynchronous load a window too short).
"""


def sound_layout(name: str, loads: bool, steps: int, version: str) -> Layout:
    """One of them, as this release resolves it, with a tight pool."""
    by_request = tuple(map(int, version.split(".")[:2])) >= (0, 30)
    if name in RECURRENT and not by_request:
        steps = 1  # states stay behind where two are in flight: R10.50
    connector = Connector(reports="request" if by_request else "blocks") if loads else None
    layout = replace(PRESETS[name].layout(version), connector=connector, steps_in_flight=steps)
    return replace(layout, num_blocks=layout.min_blocks + 4)


def search_sound(target: Target, seed: int, layout: Layout | None) -> SearchResult:
    """A random run on the preset whose turn it is, without what is known to break any release."""
    features = Features(failed_loads=False, duplicates=False, sessions=False, skip_reading=False)
    chosen = sound_layout(*SOUND[seed % len(SOUND)], target.info.version)
    return search_one(target, seed, features, layout or chosen)


@contextmanager
def release_worker(version: str, **arguments: Any) -> Iterator[Watched]:
    """A release in a process of its own: only one fits into a process."""
    release(version)
    worker = Watched(f"vllm=={version}", **arguments)
    try:
        yield worker
    finally:
        worker.close()
