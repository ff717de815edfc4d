"""Scopes: what is searched completely. Data, in `model/scopes/`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

import kvcheck.model
from kvcheck.explorer.pool import PoolLayout
from kvcheck.files import InputError, action_problem, read_as
from kvcheck.invariants.witnesses import possible_witnesses
from kvcheck.model.actions import Arrive, is_acceptable
from kvcheck.model.faults import FAULTS
from kvcheck.model.layout import Layout, problems

FOLDER = Path(kvcheck.model.__file__).parent / "scopes"

Also = Literal["accept", "evict", "abort", "transfer", "reset"]


class ServerScope(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag="server",
    tag_field="world",
):
    """A whole server with this layout, and the requests that may come, each once and at any time.

    ``also``: what may happen besides arrivals, passes and completions: any number of drafts is accepted, any cached
    prefix is evicted, any request is aborted, any transfer ends, the cache is reset. ``in_order``: requests come in the
    order given. ``kills``: faults that a search of this scope finds. ``reaches``: situations (see kvcheck witnesses)
    that some order of events must lead to, or the search has not seen what it is made for.
    """

    what: str
    layout: Layout
    requests: tuple[Arrive, ...]
    also: tuple[Also, ...] = ()
    in_order: bool = False
    kills: tuple[str, ...] = ()
    reaches: tuple[str, ...] = ()
    version: int = 1


class PoolScope(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag="pool",
    tag_field="world",
):
    """The block pool alone."""

    what: str
    pool: PoolLayout
    kills: tuple[str, ...] = ()
    version: int = 1


Scope: TypeAlias = ServerScope | PoolScope


def names() -> list[str]:
    """All scopes that come with kvcheck."""
    return sorted(file.stem for file in FOLDER.glob("*.json"))


def scope_of(text: str) -> Scope:
    """The scope of this name, or in this file.

    Raises:
        InputError: there is none, or it is not one.
    """
    file = FOLDER / f"{text}.json" if text in names() else Path(text)
    try:
        there = file.is_file()
    except OSError:  # no file can have this name
        there = False
    if not there:
        raise InputError(f"{text!r} is neither a scope (see kvcheck scopes) nor a file")
    scope: Scope = read_as(file, Scope)
    unknown = [f"no such fault: {name} (see kvcheck faults)" for name in scope.kills if name not in FAULTS]
    for problem in (*unknown, *_problems(scope)):
        raise InputError(f"{file}: {problem}")
    return scope


def _problems(scope: Scope) -> list[str]:
    if isinstance(scope, PoolScope):
        sizes = (scope.pool.blocks - 1, scope.pool.requests, scope.pool.columns)
        told = "a pool has 2 to 250 blocks, the null block among them, and 1 to 249 requests and columns"
        return [] if all(0 < size < 250 for size in sizes) else [told]
    found = problems(scope.layout)
    labels = [request.label for request in scope.requests]
    if not labels:
        found.append("there are no requests")
    if twice := [*_twice(labels), *_twice(scope.also)]:
        found.append(f"{', '.join(twice)}: there twice")
    situations = {one.name for one in possible_witnesses(scope.layout)}
    found += [f"reaches {name}: this layout has no such situation" for name in scope.reaches if name not in situations]
    for request in scope.requests:
        if problem := action_problem(request):
            found.append(f"request {request.label!r}: {problem}")
        elif not is_acceptable(request, scope.layout.max_model_len):
            found.append(
                f"no server would accept request {request.label!r}: it has a label, and 1 to "
                f"{scope.layout.max_model_len - 1} tokens here, and at least 1 more to come"
            )
    if any(request.session for request in scope.requests):
        found.append("sessions are not explored")
    if scope.layout.events:
        found.append("mirrors of events are not explored")
    return [*found, *(f"{move}: this layout has none" for move in scope.also if not _can_happen(move, scope.layout))]


def _twice(names: Sequence[str]) -> list[str]:
    return [name for index, name in enumerate(names) if names.index(name) < index]


def _can_happen(move: Also, layout: Layout) -> bool:
    """Whether there is anything that this move could be about: a scope must not seem to say more than it does."""
    has = {"transfer": layout.connector is not None, "accept": layout.draft_tokens > 0, "evict": layout.caching}
    return has.get(move, True)


def facts(scope: Scope) -> dict[str, Any]:
    """What is searched, in words."""
    if isinstance(scope, PoolScope):
        return {"pool": f"{scope.pool.blocks} blocks, {scope.pool.requests} requests of up to {scope.pool.columns}"}
    return {
        "requests": ", ".join(f"{r.label} ({len(r.prompt)} tokens)" for r in scope.requests),
        "moves": ", ".join(
            ["arrivals in this order" if scope.in_order else "arrivals", "passes", "completions", *scope.also]
        ),
    }
