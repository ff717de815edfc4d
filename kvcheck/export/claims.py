"""What a test asserts for a broken claim: the right behaviour, in terms of what the scheduler shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from kvcheck.export.found import Found
from kvcheck.files import InputError
from kvcheck.invariants.estimate import blocks_still_needed
from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.progress import FROZEN_PASSES
from kvcheck.invariants.promised import whole_prefix_lengths
from kvcheck.invariants.reach import longest_hit
from kvcheck.model.content import Prefixes


class Claim(msgspec.Struct, frozen=True):
    """``lines``: code after the last action, whose result is ``output`` if they name it; ``before``: code before it.
    ``watched``: classes of `parts` that the server needs to be, ``settings``: attributes of these."""

    lines: tuple[str, ...] = ()
    watched: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    settings: dict[str, Any] = {}


def claim_of(found: Found) -> Claim:
    """What to assert after the last action.

    Raises:
        InputError: no test of the scheduler can say it.
    """
    identifier = found.violation.invariant
    if identifier not in _CLAIMS:
        raise InputError(f"{found.violation.signature}: not exported: {_REFUSED[identifier]}")
    claim = _CLAIMS[identifier](found)
    if not _depends_on_lookahead(found):
        return claim
    apart = (
        f"if hash_lookahead(scheduler.vllm_config) != {found.ledger.promises.hash_lookahead}:",
        '    pytest.skip("this version\'s hashes look ahead by other numbers of tokens")',
    )
    return msgspec.structs.replace(claim, before=(*apart, *claim.before))


def _depends_on_lookahead(found: Found) -> bool:
    """Whether the claim holds only for hashes that look ahead as far as those of this release: which keys there are
    depends on it always, how long a hit is only if they look further than the unit that lookups would drop."""
    layout, identifier = found.layout, found.violation.invariant
    if not layout.eagle_groups:
        return False
    if identifier in ("registration.complete", "registration.own-tokens"):
        return True
    return identifier.startswith("hits.") and layout.prefill_lookahead > layout.hash_block + 1


# ---- content -----------------------------------------------------------------------------------------------------


def _memory(found: Found, *lines: str) -> Claim:
    """Lines about the workers' memory, as far as the layout has need of one."""
    layout, promises = found.layout, found.ledger.promises
    settings: dict[str, Any] = {}
    states = ("StatesWatched",) if layout.has_mamba else ()
    if promises.checkpoint_unit is not None:
        states = ("CheckpointsWatched",)
        settings["unit"] = promises.checkpoint_unit
        settings["behind"] = 0 if promises.drops else max(1, promises.hash_lookahead)
        settings["dropped"] = promises.checkpoint_unit if promises.drops else 0
        settings["kernel"] = next(group.checkpoint_alignment for group in layout.groups if group.checkpoint_blocks)
    loads = ("LoadsWatched",) if layout.connector else ()
    return Claim(lines, (*states, *loads) or ("WatchedServer",), settings=settings)


def _reads(found: Found) -> Claim:
    return _memory(found, "assert server.wrong == []")


def _keys(found: Found) -> Claim:
    claim = _memory(found, "assert server.wrong_keys() == []")
    return msgspec.structs.replace(claim, watched=("KeysWatched", *claim.watched))


def _draft_reads(found: Found) -> Claim:
    layout, claim = found.layout, _reads(found)
    assert layout.drafter is not None
    groups = tuple(group for group in sorted(layout.eagle_groups) if layout.groups[group].is_attention)
    settings = {"groups": groups, "ahead": layout.drafter.content_lookahead, "again": layout.reprefillable}
    watched = ("DraftsWatched", *(one for one in claim.watched if one != "WatchedServer"))
    return msgspec.structs.replace(claim, watched=watched, settings={**claim.settings, **settings})


def _answer(found: Found) -> Claim:
    event, _ = next(found.broken())
    first = found.ledger.arrivals[event.label]
    tokens = Prefixes(first.prompt, first.salt, first.adapter).token_list(len(first.prompt) + first.max_tokens)
    got = f'list(server.requests["{event.label}"].all_token_ids)'
    return Claim((f"tokens = {got}", f"assert tokens == {tokens}[: len(tokens)]"))


def _own_tokens(found: Found) -> Claim:
    event, _ = next(found.broken())
    return Claim((f'assert server.foreign_keys("{event.label}", {event.group}) == []',), ("BlocksCounted",))


def _registered(found: Found) -> Claim:
    commit, finding = next(found.broken())
    group, ledger = finding.groups[0], found.ledger
    length = next(
        length
        for length in whole_prefix_lengths(commit, ledger, group)
        if ledger.key(group, commit.label, length) not in ledger.ever
    )
    index = length // found.layout.hash_block - 1
    name = f'server.names("{commit.label}")[{index}]'
    return Claim((f"name = {name}", f"assert server.pool.get_cached_block(name, [{group}])"))


def _never_null(found: Found) -> Claim:  # noqa: ARG001
    return Claim(("assert all(block for _, block in server.registered())",))


def _events(found: Found) -> Claim:  # noqa: ARG001
    return Claim(("assert server.mirror == server.cached()",), ("EventsMirrored",))


# ---- hits --------------------------------------------------------------------------------------------------------


def _hit(found: Found, label: str, relation: str) -> Claim:
    """An assertion on how many tokens a request begins with."""
    plan = found.moment.observation.plan
    if plan is None or not any(item.label == label and item.kind != "running" for item in plan.requests):
        raise InputError(f"{found.violation.signature}: not exported: {label} does not run in the step of its lookup")
    return Claim((f'assert server.begins()["{label}"] {relation}',))


def _longest(found: Found, keys: Callable[[Ledger], Any]) -> Claim:
    lookup, _ = next(found.broken())
    possible = longest_hit(found.ledger, keys(found.ledger), lookup.label, lookup.cap, lookup.length)
    return _hit(found, lookup.label, f">= {possible}")


def _complete_hit(found: Found) -> Claim:
    return _longest(found, lambda ledger: ledger.keys)


def _repeat_hit(found: Found) -> Claim:
    return _longest(found, lambda ledger: ledger.promised)


def _resumes_at_hit(found: Found) -> Claim:
    begin, _ = next(found.broken())
    return _hit(found, begin.label, f">= {found.ledger.lookups[begin.label].length}")


def _no_hit(found: Found) -> Claim:
    begin, _ = next(found.broken())
    return _hit(found, begin.label, "== 0")


def _aligned_hit(found: Found) -> Claim:
    lookup, finding = next(found.broken())
    unit = found.layout.hash_block if found.ledger.promises.partial_hits else found.layout.scheduler_block
    return _hit(found, lookup.label, f"<= {lookup.cap}" if finding.detail else f"% {unit} == 0")


def _valid_hit(found: Found) -> Claim:
    """A hit that some group lacks is seen when it is read."""
    return _memory(found, "server.complete()", "assert server.wrong == []")


def _agreed_hit(found: Found) -> Claim:
    begin, finding = next(found.broken())
    lookup = found.ledger.lookups[begin.label]
    return _hit(found, begin.label, f"<= {min(lookup.lengths[group] for group in finding.groups)}")


# ---- memory ------------------------------------------------------------------------------------------------------


def _references(found: Found) -> Claim:
    view = found.moment.view
    if view is None or view.holders:
        raise InputError(f"{found.violation.signature}: not exported: blocks are held beside the tables too")
    return Claim(("assert server.references() == {}",), ("BlocksCounted",))


def _free_queue(found: Found) -> Claim:  # noqa: ARG001
    return Claim((
        "free = server.free_blocks()",
        "idle = [b.block_id for b in server.pool.blocks if not (b.is_null or b.ref_cnt)]",
        "assert sorted(free) == idle",
        "assert server.pool.get_num_free_blocks() == len(free)",
    ))  # fmt: skip


def _one_hand(found: Found) -> Claim:  # noqa: ARG001
    return Claim(("assert server.misplaced() == {}",), ("BlocksCounted",))


def _in_flight(found: Found) -> Claim:
    look = "zeroed_for_nobody" if found.detail else "used_and_free"
    return Claim((f"assert server.{look}() == set()",), ("BlocksCounted",))


def _beside(found: Found) -> Claim:
    most = f"len(server.scheduler.requests) * {len(found.layout.groups)}"
    return Claim((f"assert server.held_beside_tables() <= {most}",), ("BlocksCounted",))


def _out_of_reach(found: Found) -> Claim:
    end, finding = next(found.broken())
    group, layout = finding.groups[0], found.layout
    spec, size = layout.groups[group], layout.block_tokens(group)
    first = {
        "mamba": f"(computed - 1) // {size}",
        "sliding_window": f"max(0, computed - {spec.window - 1 + layout.reprefillable}) // {size}",
        "chunked_local": f"computed // {spec.chunk} * {spec.chunk} // {size}",
    }[spec.kind]
    before = f'computed = server.requests["{end.label}"].num_computed_tokens'
    table = f'server.block_tables()["{end.label}"][{group}]'
    return Claim((f"out_of_reach = {table}[: {first}]", "assert not any(out_of_reach)"), before=(before,))


def _leak(found: Found) -> Claim:  # noqa: ARG001
    return Claim((
        "assert server.pool.get_num_free_blocks() == server.pool.num_gpu_blocks - 1",
    ))  # fmt: skip


def _reserved(found: Found) -> Claim:
    list(found.broken())
    load, needed = blocks_still_needed(found.moment, found.ledger)
    return Claim((
        f'if server.holds_blocks("{load}"):',
        f"    assert server.pool.get_num_free_blocks() >= {sum(needed.values())}",
    ))  # fmt: skip


# ---- steps -------------------------------------------------------------------------------------------------------


def _raises_nothing(found: Found) -> Claim:  # noqa: ARG001
    return Claim()


def _gets_on(found: Found) -> Claim:
    counted = "ConnectedPassesCounted" if found.layout.connector else "PassesCounted"
    return Claim((f"assert server.idle_passes < {FROZEN_PASSES}",), (counted,))


def _not_preempted(found: Found) -> Claim:
    plan = found.moment.observation.plan
    assert plan is not None
    return Claim((f'assert "{plan.preempted[0]}" not in output.preempted_req_ids',))


def _reset(found: Found) -> Claim:  # noqa: ARG001
    return Claim(("assert output",))


def _plan(found: Found) -> Claim:
    layout = found.layout
    lines = {
        "count": (
            "for label, count in output.num_scheduled_tokens.items():",
            "    assert count > len(output.scheduled_spec_decode_tokens.get(label, ()))",
        ),
        "length": (
            "for part in server.in_flight[-1].parts:",
            f"    assert part.planned_end <= {layout.max_model_len}",
        ),
        "budget": (f"assert sum(output.num_scheduled_tokens.values()) <= {layout.token_budget}",),
        "requests": (f"assert len(output.num_scheduled_tokens) <= {layout.max_requests}",),
    }
    return Claim(lines[found.detail])


def _appended(found: Found) -> Claim:  # noqa: ARG001
    """Columns of running requests keep their block or become null."""
    return Claim(
        (
            "for label in [one.label for one in server.in_flight[-1].parts if not one.new]:",
            "    for old, new in zip(before[label], server.block_tables()[label]):",
            "        assert all(now in (then, 0) for then, now in zip(old, new))",
        ),
        before=("before = server.block_tables()",),
    )


def _ranges(found: Found) -> Claim:
    return Claim((
        "for request in server.scheduler.requests.values():",
        "    placeholders = request.num_output_placeholders",
        "    assert min(request.num_in_flight_tokens, placeholders) >= 0",
        f"    most = request.num_tokens + placeholders + {found.layout.draft_tokens}",
        "    assert 0 <= request.num_computed_tokens <= most",
    ))  # fmt: skip


_CLAIMS: dict[str, Callable[[Found], Claim]] = {
    "agreement.granularity": _aligned_hit,
    "agreement.resume": _agreed_hit,
    "agreement.valid": _valid_hit,
    "content.answer": _answer,
    "content.attention": _reads,
    "content.draft": _draft_reads,
    "content.state": _reads,
    "counters.range": _ranges,
    "estimate.reserved": _reserved,
    "hits.complete": _complete_hit,
    "hits.repeat": _repeat_hit,
    "hits.resume": _resumes_at_hit,
    "hits.skip": _no_hit,
    "ownership.beside": _beside,
    "ownership.free-queue": _free_queue,
    "ownership.in-flight": _in_flight,
    "ownership.leak": _leak,
    "ownership.one-hand": _one_hand,
    "ownership.out-of-reach": _out_of_reach,
    "ownership.references": _references,
    "progress.alone": _not_preempted,
    "progress.frozen": _gets_on,
    "registration.complete": _registered,
    "registration.events": _events,
    "registration.names": _keys,
    "registration.null": _never_null,
    "registration.own-tokens": _own_tokens,
    "system.exception": _raises_nothing,
    "system.reset": _reset,
    "tables.append-only": _appended,
    "tables.executable": _reads,
    "tables.plan": _plan,
}
_REFUSED = {
    "content.store": "what a connector reads later, a test of the scheduler cannot see",
    "ownership.reuse-order": "the order in which blocks are reused is inside the pool, where such a test cannot look",
    "ownership.tails-first": "the order in which blocks are reused is inside the pool, where such a test cannot look",
    "registration.map": "the map of keys is inside the pool, where such a test cannot look",
    "agreement.peek": "it costs accepted drafts only, of which the scheduler shows nothing",
    "estimate.covers": "the numbers are inside an allocation, where a test of the scheduler cannot look",
    "estimate.remaining": "the numbers are inside an allocation, where a test of the scheduler cannot look",
    "estimate.whole-or-nothing": "what an allocation does before it is refused, a test of the scheduler cannot see",
    "progress.livelock": "that nobody gets further in any number of passes no short test can say",
    "system.hang": "a test that hangs says nothing; run it with a time limit from its run file",
}
"""Why no test can say it."""
