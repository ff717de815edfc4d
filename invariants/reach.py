"""From first principles: which hits the registered keys allow (R2, R4). No search of the server's is repeated here."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from kvcheck.model.arith import ceil_div, round_down

if TYPE_CHECKING:
    from kvcheck.invariants.ledger import Key, Ledger
    from kvcheck.model.observation import Lookup


def longest_hit(ledger: Ledger, keys: Container[Key], label: str, cap: int, above: int) -> int:
    """The longest hit, in tokens, that ``keys`` allow for this request in every group; ``above`` if none is longer.

    Strict on purpose, because it is a lower bound: an EAGLE group must have the unit that it looks further for,
    and nothing past ``cap`` is counted on.
    """
    layout = ledger.layout
    granularity = layout.hash_block if ledger.promises.partial_hits else layout.scheduler_block
    length = round_down(cap - ledger.promises.hash_lookahead + 1, granularity)
    length = min(length, round_down(cap, granularity))
    groups = sorted(range(len(layout.groups)), key=lambda g: layout.groups[g].kind != "mamba")
    while length > above:
        if all(serves(ledger, keys, label, g, length, cap) for g in groups):
            return length
        length -= granularity
    return above


def serves(ledger: Ledger, keys: Container[Key], label: str, group: int, length: int, cap: int) -> bool:
    """Whether this group has all that a hit of ``length`` tokens needs (R2), its EAGLE unit included."""
    if ledger.layout.groups[group].kind == "mamba":
        return ledger.key(group, label, length) in keys
    end = length
    if group in ledger.promises.drops:
        end += unit(ledger, group)
        if end > cap:
            return False
    return reaches(ledger, keys, label, group, length, end, cap)


def reaches(ledger: Ledger, keys: Container[Key], label: str, group: int, length: int, end: int, cap: int) -> bool:
    """Whether a group of attention has what a hit of ``length`` tokens needs, and what lies behind it up to ``end``."""
    spec = ledger.layout.groups[group]
    if spec.keeps_whole_prefix:
        return _whole_prefix(ledger, keys, label, group, end, cap)
    return _there(ledger, keys, label, group, _first_column(ledger, group, length), end, end)


def unit(ledger: Ledger, group: int) -> int:
    """How much further an EAGLE group looks, in tokens (R4)."""
    spec, size, h = ledger.layout.groups[group], ledger.layout.block_tokens(group), ledger.layout.hash_block
    return h if ledger.promises.partial_hits and spec.fine_grained and size > h else size


def with_unit_behind(ledger: Ledger, lookup: Lookup) -> set[int]:
    """EAGLE groups that may resume where this lookup ends: they hit nothing, or have the unit behind it. Where groups
    are looked up each on its own, it is the unit behind what the group itself has."""
    hits = {group: min(lookup.length, lookup.lengths[group]) for group in ledger.promises.drops}
    return {
        group for group, length in hits.items() if not length or _has_unit_behind(ledger, lookup.label, group, length)
    }


def _has_unit_behind(ledger: Ledger, label: str, group: int, length: int) -> bool:
    """Whether an EAGLE group has the unit behind a hit of ``length`` tokens, under whatever key, also past the cap, as
    some releases look there (R4.5, R12.8)."""
    if not ledger.layout.groups[group].is_attention:
        return serves(ledger, ledger.keys, label, group, length, length)  # never drops (R4.9)
    size, end = ledger.layout.block_tokens(group), length + unit(ledger, group)
    first = _first_column(ledger, group, length)
    return _there(ledger, ledger.keys, label, group, first, end, round_down(end, size) + size)


def _whole_prefix(ledger: Ledger, keys: Container[Key], label: str, group: int, end: int, cap: int) -> bool:
    """Full attention, strictly: a later key of the last block counts only if the lookup surely asks for it."""
    last = end  # a group that is not looked up first may start from a candidate that is too short for later keys
    if _looked_up_first(ledger, group):
        size = ledger.layout.block_tokens(group)
        last = min(round_down(end, size) + size, cap + 1 - ledger.promises.hash_lookahead, cap)
    return _there(ledger, keys, label, group, 0, end, last)


def _there(ledger: Ledger, keys: Container[Key], label: str, group: int, first: int, end: int, last: int) -> bool:
    """Whether all blocks from this column up to ``end`` have their key, one that goes on any up to ``last``."""
    size, h = ledger.layout.block_tokens(group), ledger.layout.hash_block
    if not all(ledger.key(group, label, (i + 1) * size) in keys for i in range(first, end // size)):
        return False
    return end % size == 0 or any(ledger.key(group, label, at) in keys for at in range(end, last + 1, h))


def _first_column(ledger: Ledger, group: int, length: int) -> int:
    """The first column that a hit of ``length`` tokens needs of a group of attention (R2.1, R2.4, R2.6)."""
    spec, size = ledger.layout.groups[group], ledger.layout.block_tokens(group)
    if spec.kind == "sliding_window":
        return max(0, length - spec.window + 1) // size
    return length // spec.chunk * spec.chunk // size if spec.kind == "chunked_local" else 0


def _looked_up_first(ledger: Ledger, group: int) -> bool:
    """Whether the group's lookup starts from the cap: full attention comes first (R4.4)."""
    layout = ledger.layout
    first = next(g for g in layout.groups if g.keeps_whole_prefix)
    return layout.lookup_spec(first) == layout.lookup_spec(layout.groups[group])


def needed_columns(ledger: Ledger, group: int, length: int) -> range:
    """Columns that must hold a block for a hit of ``length`` tokens (R2)."""
    spec, size = ledger.layout.groups[group], ledger.layout.block_tokens(group)
    end = ceil_div(length, size)
    if length == 0:
        return range(0)
    if spec.kind == "mamba":
        return range(end - 1, end)
    return range(_first_column(ledger, group, length), end)


def first_column_read(ledger: Ledger, group: int, computed: int) -> int:
    """The first column that a request with so many computed tokens, none of them in flight, can still read (R2.5, R2.7,
    R2.10)."""
    spec, size = ledger.layout.groups[group], ledger.layout.block_tokens(group)
    if spec.kind == "mamba":
        return (computed - 1) // size
    if spec.kind == "sliding_window":
        return max(0, computed - spec.window + 1 - ledger.layout.reprefillable) // size
    if spec.kind == "chunked_local":
        return computed // spec.chunk * spec.chunk // size
    return 0


def block_serves(ledger: Ledger, label: str, group: int, block: int, column: int, length: int) -> bool:
    """Whether a block has a key of this request's tokens that covers ``column`` up to ``length``."""
    spec, size, h = ledger.layout.groups[group], ledger.layout.block_tokens(group), ledger.layout.hash_block
    until = min(length, (column + 1) * size)
    if spec.kind == "mamba":
        return block in ledger.keys.get(ledger.key(group, label, until), {})
    last = (column + 1) * size
    return any(block in ledger.keys.get(ledger.key(group, label, at), {}) for at in range(until, last + 1, h))
