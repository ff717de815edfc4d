"""States of Mamba groups (R2.9, R5.4.2, R6.6): a block with a key holds the state that the key names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvcheck.model import laws
from kvcheck.model.actions import Run
from kvcheck.model.arith import aligned, both, equal, ite, negated, round_down
from kvcheck.model.faults import Faults
from kvcheck.prover.law import Numbers, law
from kvcheck.prover.runs import CONNECTOR, EAGLE, OVERLAPPING, STEP, alone, group, holds, layout, mtp
from kvcheck.prover.sizes import MULTIPLES
from kvcheck.prover.words import every, implies

if TYPE_CHECKING:
    from kvcheck.prover.statement import Statement


def _tails_shown(n: Numbers) -> Iterator[Run]:
    """Blocks of h beside Mamba, steps one after the other and overlapping, and prompts from the shortest on."""
    h, b, r = n["hash block"], n["block"], n["re-prefillable"]
    for fields in ({}, {"drafter": mtp(r)}, {"steps_in_flight": 2}):
        of = layout(group("full", h), group("mamba", b), **fields)
        steps = OVERLAPPING * 3 if of.asynchronous else STEP * 6
        for prompt in range(1, 2 * b + 2):
            yield alone(of, prompt, 4, steps=steps)


@law(
    "states.tails",
    "a partial tail is registered only where the block's state is that of the tail, however many tokens may be "
    "prefilled again and whichever groups are EAGLE groups; so a state that has moved on never gets the key again",
    "R5.3 R5.4.2 R6.6 R6.7 R6.9",
    "any numbers of tokens, re-prefillable ones and drafts",
    sizes=MULTIPLES,
    refutes="bound-rounded-to-hash mtp-registers-wrong-tail partial-tail-registered-twice",
    replays=_tails_shown,
    shows="registration.names",
)
def tails(s: Statement, faults: Faults) -> None:
    """``state``: what the block's state stands after once all planned steps have run."""
    h = s.size("hash block")
    b = s.size("block", of=[h])
    whole = s.size("scheduler block", of=[b])
    n, state, r, prompt = s.tokens("known"), s.tokens("state"), s.tokens("re-prefillable"), s.tokens("prompt")
    eagle = s.truth("EAGLE")
    tail = laws.prompt_tail(prompt, h)
    s.given(n <= state)
    ordinary = laws.ordinary_bound(n, True, whole, h, faults)
    bound = ite(eagle, laws.eagle_bound(n, r, b, True, whole, faults), ordinary)
    lag = ite(eagle, r, 0)
    inside = laws.tail_inside(tail, b)
    planned = both(inside, laws.is_tail_state(bound, laws.state_planned(n, state, faults), tail, lag, faults))
    output = both(inside, laws.is_tail_state(bound, laws.state_at_output(n, faults), tail, lag, faults))

    s.claim("when a step is planned", implies(planned, equal(state, tail)))
    reached = every(equal(bound, tail), equal(state, tail), tail > 0, negated(aligned(tail, b)))
    s.claim("it is not missed", planned, when=reached)
    s.claim("it is the prompt's last hash boundary", every(aligned(tail, h), tail <= prompt, prompt < tail + h))
    s.claim("when an output is processed, with steps in flight", implies(output, equal(state, tail)))


def chunks_shown(n: Numbers) -> Iterator[Run]:
    """Mamba beside smaller blocks, and a prefill that begins where a connector's tokens end."""
    b, smallest = n["block"], n.get("smallest block", 1)
    drafter = EAGLE if n["EAGLE drafter"] else None
    for budget in range(n["could end"] - n["start"], n["could end"] + 2 * b):
        of = layout(group("full", smallest), group("mamba", b), budget=budget, grid="smallest", drafter=drafter)
        loading = layout(group("mamba", b), budget=budget, drafter=drafter, connector=CONNECTOR)
        for prompt in range(n["known"], n["known"] + 2 * b):
            yield alone(of, prompt, 2)
            yield alone(loading, prompt, 2, holds(n["start"]))


@law(
    "states.blocks",
    "a whole block of a Mamba group that gets its key holds the state at its end: after every chunk of a prefill, "
    "both blocks that are not null are either below the bound at their end, or above it",
    "R2.9 R6.9 R8.4 R8.4.1 R8.4.3",
    "any chunk of any prefill, any budget",
    sizes=MULTIPLES,
    refutes="chunk-starts-off-grid chunk-past-last-boundary chunk-grid-smallest-block",
    replays=chunks_shown,
    shows="registration.names",
)
def blocks(s: Statement, faults: Faults) -> None:
    """Only the state before the chunk and the one after it are in blocks that are not null (R1.19). ``bound``: any
    that is not beyond the chunk (registration.bounds)."""
    smallest = s.size("smallest block")
    b = s.size("block", of=[smallest])
    start, could, known, prompt = s.tokens("start"), s.tokens("could end"), s.tokens("known"), s.tokens("prompt")
    tail, junction, largest, bound = (
        s.tokens("tail"),
        s.tokens("junction"),
        s.tokens("largest chunk"),
        s.tokens("bound"),
    )
    drafter = s.truth("EAGLE drafter")
    s.given(start < could, could <= known, prompt <= known, prompt > 0, start < prefill_of(prompt, known))
    s.given(tail <= prompt, largest > 0)
    grid = laws.chunk_grid(b, smallest, faults)
    cut = laws.chunk_end(start, could, known, prompt, tail, junction, grid, largest, drafter, faults)
    end = ite(start < laws.prefill_end(prompt, known), cut, could)
    s.given(bound <= end)
    before, after = _block_end(start, b), _block_end(end, b)

    s.claim("the block of the state before the chunk", equal(start, before), when=every(start > 0, before < bound))
    s.claim("the block of the state after it", equal(end, after), when=every(end > 0, after <= bound))


def prefill_of(prompt: int, known: int) -> int:
    """Where a prefill ends, in words of its own: with the prompt, or with all but the last of what is known (R8.4)."""
    return ite(prompt >= known, prompt, known - 1)


def _block_end(tokens: int, block: int) -> int:
    """Where the block ends that holds the state after so many tokens, at least one."""
    return round_down(tokens - 1, block) + block
