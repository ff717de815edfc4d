"""Ends of prefill chunks (R8.4): in the budget, at no stop too late, on the grid, and never nothing for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kvcheck.model import laws
from kvcheck.model.actions import Run
from kvcheck.model.arith import aligned, both, equal, ite, minimum, negated, round_down
from kvcheck.model.faults import Faults
from kvcheck.model.layout import Drafter
from kvcheck.prover.law import Numbers, law
from kvcheck.prover.runs import alone, group, layout, mtp
from kvcheck.prover.sizes import EVERY, LITERAL
from kvcheck.prover.statements.states import chunks_shown, prefill_of
from kvcheck.prover.words import every, implies, some

if TYPE_CHECKING:
    from kvcheck.prover.statement import Statement


class Chunk(NamedTuple):
    """A chunk of a prefill on a layout with Mamba groups, in tokens."""

    start: int
    could: int
    end: int
    known: int
    prompt: int
    tail: int
    grid: int
    room: int
    largest: int
    drafter: bool
    junction: int


def _chunk(s: Statement, faults: Faults, lookahead: int = 0) -> Chunk:
    """Any chunk that could run to ``could``, which the budget allows, and the threshold."""
    grid = s.size("block")
    start, could, known, prompt = s.tokens("start"), s.tokens("could end"), s.tokens("known"), s.tokens("prompt")
    junction, budget = s.tokens("junction"), s.tokens("budget")
    slots, threshold = s.tokens("drafter's places"), s.tokens("threshold")
    tail, drafter = s.tokens("tail"), s.truth("EAGLE drafter")
    s.given(tail <= prompt)
    s.given(prompt > 0, prompt <= known, start < prefill_of(prompt, known), budget > slots)
    room = budget - slots
    threshold = laws.prefill_threshold(threshold, lookahead, faults)
    most = ite(threshold > 0, minimum(threshold, room), room)
    s.given(start < could, could <= known, could - start <= most)
    largest = laws.largest_chunk(budget, slots, threshold, faults)
    cut = laws.chunk_end(start, could, known, prompt, tail, junction, grid, largest, drafter, faults)
    end = ite(start < laws.prefill_end(prompt, known), cut, could)
    return Chunk(start, could, end, known, prompt, tail, grid, room, most, drafter, junction)


@law(
    "chunks.ends",
    "a chunk stays within the budget, runs past no stop, and ends on the grid unless the prefill, the prompt's tail or "
    "a budget below the grid ends it",
    "R8.4.1 R8.4.2 R8.4.3 R8.4.4 R8.4.5 R8.4.6",
    "any chunk, budget, threshold, junction",
    sizes=EVERY,
    refutes="chunk-starts-off-grid chunk-past-last-boundary",
    replays=chunks_shown,
    shows="registration.names",
)
def ends(s: Statement, faults: Faults) -> None:
    """Stops strictly inside a chunk are mandatory. What they are is said in words of their own."""
    c = _chunk(s, faults)
    cacheable = laws.last_cacheable(c.known, c.grid, c.drafter)
    behind = ite(c.drafter, c.grid, 0)
    next_grid = round_down(c.start, c.grid) + c.grid
    at_junction = c.start + round_down(c.junction - c.start, c.grid)
    finishes = equal(c.end, c.could)

    s.claim("it runs no more than it could", c.end <= c.could)
    s.claim("it does not run backwards", c.end >= c.start)
    s.claim("it ends with the block that it starts inside", c.end <= next_grid, when=negated(aligned(c.start, c.grid)))
    s.claim("it stops at the last cacheable position", negated(every(c.start < cacheable, cacheable < c.end)))
    s.claim(
        "that is the last whole block, one earlier with an EAGLE drafter",
        every(aligned(cacheable, c.grid), cacheable + behind <= c.known, c.known < cacheable + behind + c.grid),
        when=c.known >= behind,
    )
    s.claim(
        "it stops at the prompt's tail",
        negated(every(c.start < c.tail, c.tail < c.end)),
        when=every(cacheable < c.tail, c.tail < c.prompt),
    )
    s.claim(
        "it stops a whole number of blocks behind its start, where the junction is less than a block away",
        negated(every(c.start < at_junction, at_junction < c.end)),
        when=every(c.start < c.junction, c.junction < c.end),
    )
    on_grid = aligned(c.end, c.grid)
    small = c.grid > c.largest
    over = c.could >= prefill_of(c.prompt, c.known)
    allowed = some(on_grid, equal(c.end, c.tail), both(finishes, some(over, small)))
    s.claim("it ends on the grid", allowed, when=c.end > c.start)


def _progress_shown(n: Numbers) -> Iterator[Run]:
    """Drafters with this lookahead or that take places of the budget, which must be more than twice their drafts."""
    m, slots = n["lookahead"], n["drafter's places"]
    drafter = mtp(m - 1) if m > 1 else Drafter(method="draft_model", tokens=1) if slots else None
    least = 2 * drafter.tokens + 1 if drafter else 1
    for budget in range(least, least + 3):
        for block in range(1, budget + 3):
            of = layout(group("mamba", block), budget=budget, long_prefill_threshold=n["threshold"], drafter=drafter)
            for prompt in range(1, block + 3):
                yield alone(of, prompt)


@law(
    "chunks.progress",
    "with the whole budget for itself a prefill gets on, what the drafter's last chunk needs included",
    "R8.4.1 R8.4.7 R8.4.8",
    "any chunk as long as budget and threshold allow, any lookahead",
    sizes=LITERAL,
    refutes="threshold-below-lookahead chunk-floored-to-zero largest-chunk-ignores-slots mtp-reserve-over-stop",
    replays=_progress_shown,
    shows="progress.",
)
def progress(s: Statement, faults: Faults) -> None:
    """A layout with a lookahead of m tokens has a budget of more than 2 m."""
    lookahead = s.tokens("lookahead")
    c = _chunk(s, faults, lookahead)
    s.given(equal(c.could, minimum(c.known, c.start + c.largest)))
    s.given(c.room >= lookahead)
    kept = laws.lookahead_kept(c.known, c.start, c.end, lookahead)
    end = ite(both(lookahead > 1, negated(laws.must_end(c.end, c.grid, c.tail, faults))), kept, c.end)

    s.claim("some token runs", end > c.start)
    s.claim("the lookahead takes nothing that was not there", end <= c.end)
    left = c.known - end
    s.claim(
        "1 to m - 1 tokens are left only where the chunk must end",
        implies(every(left > 0, left < lookahead), laws.must_end(end, c.grid, c.tail, faults)),
    )
