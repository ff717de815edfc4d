"""Estimates (R8.1): what an allocation takes from the free queue was counted before, in every kind of group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from kvcheck.model import laws
from kvcheck.model.actions import Arrive, Run
from kvcheck.model.arith import aligned, both, ceil_div, either, equal, floor_div, ite, maximum, minimum, negated
from kvcheck.model.faults import Faults
from kvcheck.prover.law import Numbers, law
from kvcheck.prover.runs import CONNECTOR, STEP, alone, arrive, followed, group, holds, layout
from kvcheck.prover.sizes import EVERY
from kvcheck.prover.words import every, implies

if TYPE_CHECKING:
    from kvcheck.prover.statement import Statement


def attention_taken(row: int, copied: bool, total: int, tokens: int, block: int) -> int:
    """Blocks that a table of ``row`` columns takes: up to ``total`` tokens for a load, a copy, and up to ``tokens``."""
    loaded = maximum(0, ceil_div(total, block) - row)
    grown = maximum(0, ceil_div(tokens, block) - (row + loaded))
    return loaded + ite(copied, 1, 0) + grown


def states_taken(row: int, copied: bool, grown: bool, main: int, block: int, speculative: int) -> int:
    """Blocks that a Mamba table of ``row`` columns takes when it grows: those passed over are null, and a running
    request takes its speculative ones along."""
    required = laws.states_required(main, block, speculative)
    running = required - speculative - 1
    along = ite(grown, maximum(0, minimum(row, running) - (row - speculative)), 0)
    taken = maximum(0, required - (maximum(row, running) + along)) + ite(copied, 1, 0)
    return ite(either(required > row, copied), taken, 0)


def _attention_shown(n: Numbers) -> Iterator[Run]:
    """Full attention, alone and with partial hits, and a second request that hits what the first one left."""
    b, local = n["block"], n["local hit"]
    for of in (layout(group("full", b)), layout(group("full", b), group("mamba", b), match_unit=1)):
        for second in range(local + 1, local + b + 2):
            yield followed(of, local, second)


@law(
    "estimates.attention",
    "for attention, windows and chunks the estimate covers what the allocation takes: for the step, lookahead, "
    "external tokens, the copy of a tail, and hit blocks that leave the free queue",
    "R8.1",
    "any hit, load, lookahead, table",
    sizes=EVERY,
    refutes="hit-blocks-not-counted copy-not-counted",
    replays=_attention_shown,
    shows="estimate.covers",
)
def attention(s: Statement, faults: Faults) -> None:
    """``passed``: what lies below window or chunk where the request resumes; ``revived``: hit blocks that were free."""
    b = s.size("block")
    local, total, tokens, passed = s.tokens("local hit"), s.tokens("total"), s.tokens("tokens"), s.tokens("passed")
    held, hits, revived = s.count("held columns"), s.count("hit columns"), s.count("revived blocks")
    s.given(local <= total, total <= tokens, passed <= total)
    null = floor_div(passed, b)
    s.given(hits <= ceil_div(local, b), implies(hits > 0, equal(held, 0)), revived <= maximum(0, hits - null))
    s.given(implies(held > 0, ceil_div(total, b) <= held))
    inside = every(hits > 0, negated(aligned(local, b)))
    blocks = laws.attention_blocks(tokens, b, passed, held + hits)
    estimate = ite(hits > 0, laws.with_hits(blocks, inside, revived, faults), blocks)
    new = equal(held, 0)
    row = ite(new, maximum(null, hits), held)
    taken = attention_taken(row, both(inside, hits > null), total, tokens, b)

    s.claim("a new request", taken + revived <= estimate, when=new)
    s.claim("a running request", taken <= estimate, when=held > 0)


def _later_shown(n: Numbers) -> Iterator[Run]:
    """A load that leaves columns empty, and while it goes on a second one, in a tight pool."""
    b = n["block"]
    windows = group("sliding_window", 2 * b, window=2), group("sliding_window", b, window=2)
    wide = layout(*windows, longest=8 * b, budget=1, connector=CONNECTOR, admit_whole=False)
    of = msgspec.structs.replace(wide, num_blocks=wide.min_blocks)
    for first in range(2, 5):
        loads = arrive("a", first * b + 1, 1, holds(first * b, asynchronous=True))
        second = Arrive(label="b", prompt=(99,) * 2 * b, answers=tuple(holds(2 * b, asynchronous=True)))
        yield Run(layout=of, actions=(loads, *STEP, second, *STEP))


@law(
    "estimates.later",
    "of a window, what is counted for the rest of a sequence covers what the request holds more than now at any later "
    "time",
    "R8.5 R8.5.2",
    "any window, lookahead, number of tokens in flight, table, number of blocks given back",
    sizes=EVERY,
    refutes="given-up-counted-as-held",
    replays=_later_shown,
    shows="estimate.reserved",
)
def later(s: Statement, faults: Faults) -> None:
    """Now the table has so many ``columns``, of which the first ``gone`` were given back. Later the request is planned
    up to some tokens of its sequence, with places ``ahead``, and has given back what was passed then."""
    b = s.size("block")
    window, r, ahead = s.tokens("window"), s.tokens("re-prefillable"), s.tokens("ahead")
    tokens, planned, in_flight = s.tokens("tokens"), s.tokens("planned"), s.tokens("in flight")
    columns, gone = s.count("columns"), s.count("gone")
    s.given(window > 1, in_flight <= planned, planned <= tokens, gone <= columns, columns <= ceil_div(tokens, b))
    gone_later = floor_div(laws.window_passed(planned - in_flight, window, r), b)
    s.given(gone <= gone_later)
    held_later = ceil_div(minimum(planned + ahead, tokens), b) - gone_later
    kept = columns - gone
    most = laws.window_most_blocks(window, r, in_flight + ahead, tokens, b)
    new = laws.attention_blocks(tokens, b, 0, columns)
    counted = laws.at_once(new, most, laws.counted_as_held(kept, columns, faults))

    s.claim("what it holds more", held_later - kept <= counted)


def _states_shown(n: Numbers) -> Iterator[Run]:
    """A load, and a producer of a tail that goes on."""
    b, external = n["block"], n["external"]
    of, loading = layout(group("full", 1), group("mamba", b)), layout(group("mamba", b), connector=CONNECTOR)
    for prompt in range(1, n["known"] + b + 2):
        yield alone(of, prompt, 3)
        yield alone(loading, prompt, 3, holds(external))


@law(
    "estimates.states",
    "for Mamba the estimate covers what the allocation takes: the running state, speculative blocks, the copy of a "
    "tail, and the state of a load",
    "R8.1 R1.19 R7.3",
    "any hit, load, number of speculative blocks, table",
    sizes=EVERY,
    refutes="mamba-estimate-ignores-load copy-not-counted",
    replays=_states_shown,
    shows="estimate.covers",
)
def states(s: Statement, faults: Faults) -> None:
    """The last hit column is the only one that is not null."""
    b = s.size("block")
    local, external, known, main = s.tokens("local hit"), s.tokens("external"), s.tokens("known"), s.tokens("main")
    speculative, held, revived = s.count("speculative blocks"), s.count("held columns"), s.count("revived blocks")
    owes, running = s.truth("owes a copy"), s.truth("running")
    total = local + external
    s.given(total <= known, total <= main, main > 0, implies(external > 0, aligned(local, b)))
    s.given(implies(running, every(equal(external, 0), held > speculative)), implies(owes, running))
    s.given(implies(both(external > 0, equal(total, known)), equal(main, total)))  # such a load runs no token yet
    resume = ite(external > 0, laws.resumes_at(total, known, faults), total)
    hits = ite(running, 0, ceil_div(local, b))
    inside = both(hits > 0, negated(aligned(local, b)))
    required = laws.states_required(main, b, speculative)
    loads = laws.counts_load(external, faults)
    columns = maximum(hits, laws.state_column(resume, b) + 1)
    behind = laws.states_loaded(resume, b, hits) + laws.states_behind_load(required, columns, speculative)
    row_before = ite(running, held, 0)
    missing = laws.states_missing(required, row_before + hits, speculative, running, either(inside, owes), faults)
    estimate = ite(loads, behind, missing) + revived
    null = floor_div(laws.states_passed(resume), b)
    s.given(revived <= ite(hits > ite(external > 0, null, 0), 1, 0))
    row = ite(running, held, ite(total > 0, maximum(null, hits), 0))
    loaded = ite(external > 0, maximum(0, ceil_div(total, b) - row), 0)
    copied = either(owes, both(inside, hits > null))
    taken = loaded + states_taken(row + loaded, copied, running, main, b, speculative)

    s.claim("a load", taken + revived <= estimate, when=external > 0)
    s.claim("a new request", taken + revived <= maximum(estimate, 0), when=every(negated(running), equal(external, 0)))
    s.claim("a running request", taken <= maximum(estimate, 0), when=running)
