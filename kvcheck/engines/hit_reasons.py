"""What stands against a longer hit: the rule that decided, told from the keys that there are and the steps that were.

Nothing of the server's own search is asked: a reason holds whatever the server did.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.reach import longest_hit, reaches, serves, unit
from kvcheck.model.arith import round_down
from kvcheck.model.layout import Layout
from kvcheck.model.observation import Promises

MOST_STOPS = 4
"""Ends of steps that are named."""


class Bound(NamedTuple):
    """A hit, what it could be at most, and what stands against more, all in tokens."""

    hit: int
    most: int
    why: str


class Earlier:
    """What the requests before have left behind. ``stops``: where their steps ended, in tokens."""

    def __init__(self) -> None:
        self.stops: set[int] = set()


def granularity(layout: Layout, promises: Promises) -> int:
    """Every hit is a multiple of this many tokens (R3.6)."""
    return layout.hash_block if promises.partial_hits else layout.scheduler_block


def why_granularity(layout: Layout, promises: Promises) -> str:
    """Where that number comes from, and what keeps it from being finer (R1.7, R1.8, R3.2)."""
    sizes = sorted({layout.block_tokens(index) for index in range(len(layout.groups))})
    blocks = " and ".join(map(str, sizes))
    if promises.partial_hits:
        source = (
            "the match unit" if layout.match_unit is not None else f"the greatest common divisor of blocks {blocks}"
        )
        return f"{source}; hits may end inside a block (R3.2)"
    source = f"all blocks have {blocks}" if len(sizes) == 1 else f"the least common multiple of blocks {blocks}"
    return f"{source} (R1.7){_why_whole(layout)}"


def _why_whole(layout: Layout) -> str:
    """Why hits do not end inside a block, where something is there to gain (R3.2)."""
    h, groups = layout.hash_block, layout.groups
    if not any(not g.is_attention and g.block_size > h for g in groups):
        idle = layout.match_unit is not None and h < layout.scheduler_block
        return f"; the match unit of {h} counts for nothing, as no Mamba group has larger blocks (R3.2)" if idle else ""
    if layout.dcp > 1:
        return "; not finer under DCP (R3.2)"
    coarse = [index for index, g in enumerate(groups) if not g.fine_grained and layout.block_tokens(index) != h]
    return f"; not finer, as {names(layout, coarse)} cannot be looked up inside a block (R2.12, R3.2)" if coarse else ""


def longest_possible(ledger: Ledger, shared: int, known: int, prompt: int) -> tuple[int, str]:
    """The longest hit that a server can give which has computed the first ``shared`` tokens of this prompt, and knew
    the first ``known`` (the last one of an answer is known and not computed), and the rule that stands against a longer
    one."""
    layout, ahead = ledger.layout, ledger.promises.hash_lookahead
    if not layout.caching:
        return 0, "prefix caching is off"
    unit_ = granularity(layout, ledger.promises)
    hashed = f"a key covers the next {'token' if ahead == 1 else f'{ahead} tokens'} too (R12.18)"
    limits = (
        (shared, f"hits are multiples of {unit_} (R3.6)"),
        (prompt - 1, "the last token is always computed (R4.1)"),
        (known - ahead, hashed),
        (prompt - ahead, hashed),
    )
    most = max(0, round_down(min(limit for limit, _ in limits), unit_))
    return most, next(why for limit, why in limits if most + unit_ > limit)


def reason(ledger: Ledger, earlier: Earlier, label: str, hit: int, most: int, cap: int) -> str:
    """Why a request did not hit ``most`` tokens but ``hit``: for each length between, a group that lacks something.

    From ``most`` down, those groups are named that serve nothing for the longest stretch, and below it, where they
    serve something again, those that serve nothing there.
    """
    missed = longest_hit(ledger, ledger.keys, label, cap, hit)
    if missed > hit:
        return f"every group has what a hit of {missed} needs, and it was not found: a defect (hits.complete, R4.3)"
    told: list[str] = []
    length = most
    while length > hit:
        served = _served(ledger, label, range(length, hit, -granularity(ledger.layout, ledger.promises)), cap)
        least = min(served.values())
        below = "" if length == most else f" up to {length}"
        own = "" if (least, length) == (hit, most) else f"{f'no more than {least}' if least else 'nothing'}{below}, "
        lacking: dict[str, list[int]] = {}
        for group in (group for group, longest in served.items() if longest == least):
            lacking.setdefault(own + _lack(ledger, earlier, label, group, hit, length, cap), []).append(group)
        told += [f"{names(ledger.layout, groups)}: {text}" for text, groups in lacking.items()]
        length = least
    return "; ".join(told)


def _served(ledger: Ledger, label: str, lengths: range, cap: int) -> dict[int, int]:
    """The first of these lengths that a group serves, or where they end, by group: of those groups that do not serve
    the first one."""
    firsts = {
        group: next((one for one in lengths if serves(ledger, ledger.keys, label, group, one, cap)), lengths.stop)
        for group in range(len(ledger.layout.groups))
    }
    return {group: first for group, first in firsts.items() if first < lengths.start}


def names(layout: Layout, groups: list[int]) -> str:
    """Groups in words, those of one kind together."""
    by_kind: dict[str, list[int]] = {}
    for group in groups:
        by_kind.setdefault(layout.groups[group].kind.replace("_", " "), []).append(group)
    return " and ".join(
        f"{kind} group{'s' if len(some) > 1 else ''} {_numbers(some)}" for kind, some in by_kind.items()
    )


def _numbers(groups: list[int]) -> str:
    """Indices in order, a longer stretch by its ends."""
    if len(groups) > 2 and groups[-1] - groups[0] == len(groups) - 1:
        return f"{groups[0]} to {groups[-1]}"
    return ", ".join(map(str, groups))


def _lack(ledger: Ledger, earlier: Earlier, label: str, group: int, hit: int, length: int, cap: int) -> str:
    """What a group lacks for a hit of this length, where the hit was shorter."""
    layout = ledger.layout
    spec, size = layout.groups[group], layout.block_tokens(group)
    if spec.kind == "mamba":
        return _lacking_state(ledger, earlier, label, group, hit, length)
    if reaches(ledger, ledger.keys, label, group, length, length, cap):
        return _lacking_unit(ledger, label, group, length, cap)
    if length % size and spec.keeps_whole_prefix:
        return f"{length} is inside a block, where only the end of a prompt has a key (R5.4)"
    what = {"sliding_window": "the window", "chunked_local": "the chunk"}.get(spec.kind, "all blocks")
    why = f", {_retention(ledger)} (R5.6)" if spec.kind == "sliding_window" and _sparse(ledger) else " (R5)"
    return f"not {what} before {length} registered{why}"


def _lacking_unit(ledger: Ledger, label: str, group: int, length: int, cap: int) -> str:
    behind = unit(ledger, group)
    text = f"an EAGLE group must find the {behind} tokens behind {length} too"
    if length + behind > cap and reaches(ledger, ledger.keys, label, group, length, length + behind, length + behind):
        return f"{text}, and looks no further than {cap} (R4.5)"
    return f"{text} (R4.5)"


def _lacking_state(ledger: Ledger, earlier: Earlier, label: str, group: int, hit: int, length: int) -> str:
    text = f"no state after {length} tokens"
    if length in earlier.stops:
        return f"{text}: {_not_kept(ledger, label, group, length)}"
    text += f": steps ended at {_some(earlier.stops)} (R2.9, R8.4)"
    step = granularity(ledger.layout, ledger.promises)
    between = [stop for stop in earlier.stops if hit < stop < length and stop % step == 0]
    gone = [stop for stop in between if ledger.key(group, label, stop) not in ledger.keys]
    return (
        f"{text}; the one of {max(gone)} is not there: {_not_kept(ledger, label, group, max(gone))}" if gone else text
    )


def _not_kept(ledger: Ledger, label: str, group: int, length: int) -> str:
    """Why there is no state at the end of a step."""
    if ledger.key(group, label, length) in ledger.ever:
        return "its block was written on (R6.6)"
    if length % ledger.layout.block_tokens(group):
        return "inside a block only the state at the end of a prompt is kept (R5.4.2)"
    if _sparse(ledger):
        return f"{_retention(ledger)} (R5.6)"
    return "it was not registered (R5)"


def _some(stops: set[int]) -> str:
    """The last ends of steps, in order."""
    kept = sorted(stops)[-MOST_STOPS:]
    return ("..., " if len(stops) > MOST_STOPS else "") + ", ".join(map(str, kept))


def _sparse(ledger: Ledger) -> bool:
    return ledger.promises.retention is not None


def _retention(ledger: Ledger) -> str:
    kept = ledger.promises.retention
    every = f"every {kept} tokens and " if kept else ""
    return f"retention {kept} keeps only what is needed {every}where a replay of a prompt resumes"
