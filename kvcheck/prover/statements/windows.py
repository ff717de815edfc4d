"""Windows (R2): what is given up or left null no later token can see; what it can see is asked for and kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvcheck.model import laws
from kvcheck.model.actions import Run
from kvcheck.model.arith import aligned, ceil_div, equal, floor_div, ite, round_down
from kvcheck.model.faults import Faults
from kvcheck.model.layout import Group
from kvcheck.prover.law import Numbers, law
from kvcheck.prover.runs import CONNECTOR, LOADED, OVERLAPPING, STEP, alone, followed, group, holds, layout, mtp
from kvcheck.prover.sizes import EVERY, MULTIPLES
from kvcheck.prover.words import Condition, every

if TYPE_CHECKING:
    from kvcheck.prover.statement import Statement


def _given_up_shown(n: Numbers) -> Iterator[Run]:
    """Overlapping steps with drafts, all of which are rejected."""
    of = layout(_window(n), drafter=mtp(n["re-prefillable"]), steps_in_flight=2)
    for prompt in range(1, n["planned"] + n["window"] + 1):
        yield alone(of, prompt, 6, steps=OVERLAPPING * 3)


def _window(n: Numbers) -> Group:
    return group("sliding_window", n["block"], window=n["window"])


@law(
    "windows.given-up",
    "what is given up on processed tokens is never needed again, whatever drafts are rejected, and admission counts "
    "all that is held at once",
    "R2.5 R2.7 R2.10 R8.2.4 R8.5",
    "any window, chunk, lookahead, any number of tokens in flight and rejected",
    sizes=EVERY,
    refutes="windows-move-on-planned",
    replays=_given_up_shown,
    shows="content.",
)
def given_up(s: Statement, faults: Faults) -> None:
    """``position``: of a token in a block that was given up; ``token``: any that runs after that."""
    b = s.size("block")
    window, r = s.tokens("window"), s.tokens("re-prefillable")
    planned, in_flight, rejected = s.tokens("planned"), s.tokens("in flight"), s.tokens("rejected")
    position, token, longest = s.tokens("position"), s.tokens("token"), s.tokens("longest")
    s.given(window > 1, rejected <= in_flight, in_flight <= planned, planned <= longest)
    settled = laws.settled(planned, in_flight, faults)
    below_window = laws.window_passed(settled, window, r)

    runs = token + r >= planned - rejected
    s.claim(
        "no window sees it, also not where the drafter prefills again",
        position + window <= token,
        when=every(position < round_down(below_window, b), runs),
    )
    runs = token >= planned - rejected
    state = floor_div(laws.states_passed(settled), b)
    s.claim("the state to go on from is left", state <= laws.state_column(token, b), when=every(token > 0, runs))
    s.claim(
        "no later token is in an earlier chunk", laws.chunk_start(settled, b) <= laws.chunk_start(token, b), when=runs
    )
    most = laws.window_most_blocks(window, r, in_flight, longest, b)
    s.claim("admission counts what a window holds", ceil_div(planned, b) - floor_div(below_window, b) <= most)
    held = planned - laws.chunk_start(settled, b)
    s.claim("and a chunk", ceil_div(held, b) <= laws.chunk_most_blocks(b, in_flight, longest, b))


def _resumed_shown(n: Numbers) -> Iterator[Run]:
    """A connector that has all tokens of a prompt."""
    of = layout(_window(n), connector=CONNECTOR)
    for prompt in range(n["known"], n["known"] + n["block"] + 1):
        yield alone(of, prompt, 2, holds(prompt, asynchronous=True), LOADED * 2 + STEP)


@law(
    "windows.resumed",
    "behind a hit or a load no column is null that the next token sees, also where its last token is computed again",
    "R2.4 R2.6 R2.9 R2.11 R7.7 R7.9",
    "any window, any number of hit and loaded tokens",
    sizes=EVERY,
    refutes="load-window-one-short",
    replays=_resumed_shown,
    shows="content.",
)
def resumed(s: Statement, faults: Faults) -> None:
    """``position``: of a token in a column that is left null."""
    b = s.size("block")
    window, r, total, known = s.tokens("window"), s.tokens("re-prefillable"), s.tokens("hit"), s.tokens("known")
    position = s.tokens("position")
    s.given(window > 1, known > 0, total <= known)
    resume = laws.resumes_at(total, known, faults)
    token = ite(total < known, total, known - 1)
    null = round_down(laws.window_passed(resume, window, r), b)

    s.claim("no window sees it", position + window <= token, when=position < null)
    state = floor_div(laws.states_passed(resume), b)
    s.claim("the state to go on from is not null", state <= laws.state_column(token, b), when=token > 0)
    s.claim("no chunk sees it", laws.chunk_start(resume, b) <= laws.chunk_start(token, b))


def _asked_shown(n: Numbers) -> Iterator[Run]:
    """A window, and prompts around some boundary; a second request hits it."""
    of = layout(_window(n), longest=8 * n["window"] + 40)
    for prompt in range(n["boundary"], n["boundary"] + n["block"] + 2):
        yield followed(of, prompt + 1, prompt + 1)


@law(
    "windows.asked",
    "a lookup asks for the blocks that the next token's window reaches into, no fewer and no more",
    "R2.4",
    "any window, any boundary of blocks",
    sizes=EVERY,
    refutes="window-one-short",
    replays=_asked_shown,
    shows="agreement.valid",
)
def asked(s: Statement, faults: Faults) -> None:
    """The next token at a boundary sees the w - 1 tokens before it."""
    b = s.size("block")
    window, boundary = s.tokens("window"), s.tokens("boundary")
    s.given(window > 1, aligned(boundary, b))
    first = floor_div(boundary - (window - 1), b)
    asked_first = floor_div(boundary, b) - laws.window_blocks(window, b, faults)

    s.claim("the first column", equal(first, asked_first), when=boundary >= window - 1)


@law(
    "windows.kept",
    "under every retention interval a window keeps what a hit at a kept boundary asks for, an EAGLE group the block "
    "behind too, and Mamba the state there",
    "R5.6.2 R5.6.4 R5.6.5 R5.6.6 R5.6.7",
    "any window, interval, boundary",
    sizes=MULTIPLES,
    refutes="window-one-short",
    replays=_asked_shown,
    shows="agreement.valid",
)
def kept(s: Statement, faults: Faults) -> None:
    """``position``: of a token that the hit's next token sees, or behind the hit."""
    b = s.size("block")
    whole = s.size("scheduler block", of=[b])
    interval = s.size("interval", of=[whole])
    window, boundary, position = s.tokens("window"), s.tokens("boundary"), s.tokens("position")
    eagle = s.truth("EAGLE")
    s.given(window > 1)
    peek = ite(eagle, 1, 0)
    need = laws.window_blocks(window, b, faults) + peek
    column = floor_div(position, b)
    segment, hit = round_down(boundary, interval), round_down(boundary, whole)

    s.claim(
        "at every multiple of the interval",
        laws.kept_by_segment(column, b, interval, need, peek),
        when=_seen(position, segment, window, ite(eagle, segment + b, segment)),
    )
    s.claim(
        "where a replay resumes, and at junctions",
        laws.kept_by_boundary(column, b, boundary, whole, need, peek),
        when=_seen(position, hit, window, ite(eagle, hit + b, hit)),
    )
    s.claim(
        "Mamba: the state at every multiple of the interval",
        laws.state_at_segment(laws.state_column(segment, b), b, interval),
        when=segment > 0,
    )
    s.claim(
        "Mamba: the state where a replay resumes, and at junctions",
        laws.state_at_boundary(laws.state_column(hit, b), b, boundary, whole),
        when=hit > 0,
    )
    replay, lower = round_down(boundary, whole), laws.replay_with_drop(boundary + 1, whole)
    s.claim(
        "a replay of a prompt with drops resumes a scheduler block lower, if there is one",
        equal(round_down(lower, whole), ite(replay >= whole, replay - whole, 0)),
    )


def _seen(position: int, hit: int, window: int, end: int) -> Condition:
    """Whether a position below ``end`` is in the window of the token behind a hit."""
    return every(hit > 0, position + window > hit, position < end)
