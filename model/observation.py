"""What a target shows after each action: step plan, event log, cache view, error. Invariants read nothing else.

Blocks are physical block numbers, groups are indices into the layout's groups, lengths are in tokens. A *key* is a
registration: "this block of this group holds this prefix". It is named by the content identity (see
``kvcheck.model.content``) of all tokens that the server hashed for it, and by the length of the prefix: where a
release's hashes look ahead (R12), the name covers more tokens than the prefix has.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from kvcheck.model.actions import Run

Tables: TypeAlias = tuple[tuple[int, ...], ...]
"""Block numbers by group and column."""

NULL_BLOCK = 0
"""The block in the place of columns that hold nothing (R1.3)."""

NOBODY = ""
"""The label of an event that belongs to no request, as far as the server says."""


class Scheduled(msgspec.Struct, frozen=True, gc=False):
    """What one request runs in a step.

    ``start``: tokens computed before it, as the server believes; ``count``: tokens to run, of which the last
    ``drafts`` are drafts. ``known``: tokens that exist for the server, those that steps in flight will sample
    included. ``tokens``: the known tokens of a new or resumed request. ``tables``: the whole tables of a new or
    resumed request, the blocks to append for a running one.
    """

    label: str
    kind: Literal["new", "resumed", "running"]
    start: int
    count: int
    drafts: int
    known: int
    tables: Tables
    tokens: tuple[int, ...] | None = None


class Load(msgspec.Struct, frozen=True, gc=False):
    """External tokens that a connector brings in: ``external`` of them after the first ``local``.

    ``fresh``: blocks of the request that had no key when they were allocated. ``arrives``: how many of the external
    tokens really come, None is all.
    """

    label: str
    local: int
    external: int
    asynchronous: bool
    tables: Tables
    fresh: tuple[int, ...]
    arrives: int | None = None


class Store(msgspec.Struct, frozen=True, gc=False):
    """Blocks of a finished request that the connector still has to read; its first ``length`` tokens are written."""

    label: str
    length: int
    tables: Tables


class StepPlan(msgspec.Struct, frozen=True, gc=False):
    """One step, as the worker is told it: an output of one scheduling pass.

    ``fresh``: blocks taken from the pool during the pass. ``awaited``: those of them that belong to requests that
    await an asynchronous load.
    """

    seq: int
    requests: tuple[Scheduled, ...]
    preempted: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    zero: tuple[int, ...] = ()
    fresh: tuple[int, ...] = ()
    awaited: tuple[int, ...] = ()
    loads: tuple[Load, ...] = ()


# ---- the event log ---------------------------------------------------------------------------------------------------


class Lookup(msgspec.Struct, frozen=True, gc=False, tag="lookup"):
    """A lookup and its result.

    ``cap``: longest hit allowed. ``length``: the agreed one, ``lengths`` one for each group. ``blocks``: the hit's
    blocks by group. ``how``: all groups agreed, or each was looked up on its own.
    """

    label: str
    cap: int
    length: int
    lengths: tuple[int, ...]
    blocks: Tables
    junction: int
    how: Literal["agreed", "each"]


class Asked(msgspec.Struct, frozen=True, gc=False, tag="asked"):
    """The connector was asked: ``local`` is the local hit it was told, ``external`` its answer (None: later)."""

    label: str
    local: int
    external: int | None
    asynchronous: bool


class Begin(msgspec.Struct, frozen=True, gc=False, tag="begin"):
    """An allocation begins: ``computed`` tokens are there, ``local`` come from the cache, ``external`` from the
    connector, ``new`` are to be run, ``lookahead`` may be written by the drafter."""

    label: str
    computed: int
    local: int
    external: int
    new: int
    lookahead: int
    delayed: bool


class Estimate(msgspec.Struct, frozen=True, gc=False, tag="estimate"):
    """Blocks that one group says it needs; ``admission``: for the whole sequence, else for this step. Before an
    allocation begins: of other requests, which it must leave to them."""

    label: str
    group: int
    blocks: int
    admission: bool


class End(msgspec.Struct, frozen=True, gc=False, tag="end"):
    """The allocation is over: done or refused."""

    label: str
    done: bool


class Take(msgspec.Struct, frozen=True, gc=False, tag="take"):
    """Blocks were taken from the front of the free queue."""

    label: str
    group: int
    blocks: tuple[int, ...]


class Touch(msgspec.Struct, frozen=True, gc=False, tag="touch"):
    """References were taken on blocks; ``revived`` of them were free before."""

    label: str
    group: int
    blocks: tuple[int, ...]
    revived: int


class Release(msgspec.Struct, frozen=True, gc=False, tag="release"):
    """References were given back, in this order, within one call."""

    label: str
    group: int
    blocks: tuple[int, ...]


class Register(msgspec.Struct, frozen=True, gc=False, tag="register"):
    """A key was published: ``block`` of ``group`` holds ``label``'s first ``length`` tokens, under the name ``key``."""

    label: str
    group: int
    block: int
    length: int
    key: int


class Drop(msgspec.Struct, frozen=True, gc=False, tag="drop"):
    """A key was withdrawn."""

    group: int
    block: int
    length: int
    key: int


class Retold(msgspec.Struct, frozen=True, gc=False, tag="retold"):
    """A request's tokens are not those that they were: a session goes on with other ones."""

    label: str
    tokens: tuple[int, ...]


class Clear(msgspec.Struct, frozen=True, gc=False, tag="clear"):
    """All keys were withdrawn."""


class Commit(msgspec.Struct, frozen=True, gc=False, tag="commit"):
    """The server has registered what it wants of a request's first ``length`` tokens; ``known`` and ``prompt`` are
    how many tokens, and how many tokens of prompt, the request has."""

    label: str
    length: int
    known: int
    prompt: int


class Announce(msgspec.Struct, frozen=True, gc=False, tag="announce"):
    """A KV event for outside mirrors: prefixes stored in or removed from a group (group -1: everything removed)."""

    what: Literal["stored", "removed", "cleared"]
    group: int
    keys: tuple[tuple[int, int], ...]


Event: TypeAlias = (
    Lookup
    | Asked
    | Begin
    | Estimate
    | End
    | Take
    | Touch
    | Release
    | Register
    | Drop
    | Retold
    | Clear
    | Commit
    | Announce
)


# ---- the cache view --------------------------------------------------------------------------------------------------


class RequestView(msgspec.Struct, frozen=True, gc=False):
    """One request as the server sees it. ``status``: waiting, loading, running, preempted, idle (a session without
    input), or held (finished, its blocks kept for a connector). ``known``: tokens it has; ``in_flight``: of the
    ``computed`` ones, those whose step was not processed."""

    status: Literal["waiting", "loading", "running", "preempted", "idle", "held"]
    prompt: int
    known: int
    computed: int
    in_flight: int
    placeholders: int


class CacheView(msgspec.Struct, frozen=True, gc=False):
    """The bookkeeping after an action.

    ``refs``: reference counts by block (the null block, which is not counted, has 0). ``free``: the free queue in
    order of reuse, ``free_count`` what the pool says is its length. ``keys``: (group, block, length, key).
    ``block_keys``: the same as told by the blocks themselves. ``tables``: by label. ``holders``: (block, count)
    references held outside the tables. ``deferred``: blocks whose return awaits a step in flight.
    """

    refs: tuple[int, ...]
    free: tuple[int, ...]
    free_count: int
    keys: tuple[tuple[int, int, int, int], ...]
    block_keys: tuple[tuple[int, int, int, int], ...]
    tables: dict[str, Tables]
    holders: tuple[tuple[int, int], ...]
    requests: dict[str, RequestView]
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    deferred: int = 0


# ---- observations ----------------------------------------------------------------------------------------------------


class Failure(msgspec.Struct, frozen=True):
    """An exception of the system under test: its type, the function that raised it, and where that is."""

    type: str
    function: str
    file: str
    line: int
    message: str
    stack: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"{self.type} in {self.function} ({self.file}:{self.line})"
        return f"{where}: {self.message}" if self.message else where


class Processed(msgspec.Struct, frozen=True, gc=False):
    """What the server made of a step's output: tokens kept by label, and the requests that ended with it."""

    kept: dict[str, int]
    ended: tuple[str, ...] = ()


class Observation(msgspec.Struct, frozen=True):
    """All that one action showed. ``skipped``: why it was a no-op. ``refused``: what the server declined to do."""

    index: int
    skipped: str = ""
    refused: str = ""
    plan: StepPlan | None = None
    processed: Processed | None = None
    stores: tuple[Store, ...] = ()
    log: tuple[Event, ...] = ()
    view: CacheView | None = None
    failure: Failure | None = None


class Promises(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a target does on purpose for a layout (R12): no violation, and what lower bounds are computed from.

    ``hash_lookahead``: tokens past a boundary that its key covers too. ``drops``: groups whose lookups look one unit
    further and drop it. ``retention``: None is dense. ``partial_hits``: hits may end inside a block.
    ``prompt_tail``: tokens at the end of a prompt that the partial tail of a group without drop never covers.
    ``failed_by_request``: a failed load is told by request and not by blocks. ``checkpoint_unit``: Mamba layers that
    have checkpoint blocks keep a state within a prefill chunk, at a multiple of this many tokens; None: they do not.
    ``drafts_of_duplicates``: draft content of a hit goes with the request's next token even where several blocks have
    had its keys; no server without a hash lookahead can keep that wholly (R1.21).
    """

    hash_lookahead: int = 0
    drops: tuple[int, ...] = ()
    retention: int | None = None
    partial_hits: bool = False
    prompt_tail: int = 0
    failed_by_request: bool = False
    checkpoint_unit: int | None = None
    drafts_of_duplicates: bool = True


class TargetInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which code was driven: what was asked for and what it turned out to be."""

    spec: str
    version: str = ""
    origin: str = ""
    digest: str = ""
    mode: str = ""


class Trace(msgspec.Struct, frozen=True):
    """A run, what drove it, and what was seen: enough to be judged again without the target."""

    run: Run
    target: TargetInfo
    promises: Promises
    observations: tuple[Observation, ...]
    version: int = 1
