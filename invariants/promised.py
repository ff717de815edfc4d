"""Which keys R5 promises for what a request has computed, from the stops that its steps really made (R11).

Less is promised than a server may keep: nothing for requests with external tokens or for sessions that changed their
tokens, and under sparse retention nothing but full attention and the boundary where a replay of the prompt resumes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvcheck.model.arith import ceil_div, round_down
from kvcheck.model.observation import Commit

if TYPE_CHECKING:
    from kvcheck.invariants.ledger import Ledger


def bound(computed: int, ledger: Ledger, group: int) -> int:
    """How many tokens a group registers, for this many computed ones (R5.1 to R5.3)."""
    layout, promises = ledger.layout, ledger.promises
    final = max(0, computed - layout.reprefillable)
    if len(layout.groups) == 1:
        return final

    def rounded(tokens: int) -> int:
        return tokens if promises.partial_hits else round_down(tokens, layout.scheduler_block)

    if group in promises.drops:
        return min(final, rounded(final) + layout.block_tokens(group)) if rounded(computed) else 0
    return rounded(computed)


def whole_prefix_lengths(commit: Commit, ledger: Ledger, group: int) -> Iterator[int]:
    """Lengths that must have a key in a group of full attention: whole blocks, and the prompt's tail (R5.4)."""
    size, h = ledger.layout.block_tokens(group), ledger.layout.hash_block
    lookahead = ledger.promises.hash_lookahead
    limit = min(bound(commit.length, ledger, group), commit.known - lookahead)
    yield from range(size, limit + 1, size)
    spared = 0 if group in ledger.promises.drops else ledger.promises.prompt_tail
    tail = min(round_down(commit.prompt - spared, h), round_down(commit.known - lookahead, h))
    if size > h and 0 < tail <= limit and tail % size:
        yield tail


def book_promises(commit: Commit, ledger: Ledger) -> None:
    """Add what this registration promises to the ledger."""
    label = commit.label
    if not ledger.layout.caching or label in ledger.loaded or label in ledger.retold:
        return
    for group, spec in enumerate(ledger.layout.groups):
        if spec.keeps_whole_prefix:
            lengths = whole_prefix_lengths(commit, ledger, group)
        elif spec.kind == "mamba":
            lengths = _state_lengths(commit, ledger, group)
        else:
            lengths = _window_lengths(commit, ledger, group)
        done = ledger.promised_up_to.get((label, group), 0)
        last = done
        for length in lengths:
            if length > done:
                key = ledger.key(group, label, length)
                own = length > ledger.resumed_at.get(label, 0) and key not in ledger.ever
                if own or key in ledger.keys:  # not what it never had, nor what was registered and evicted before
                    ledger.promised.add(key)
                last = max(last, length)
        ledger.promised_up_to[label, group] = last


def _state_lengths(commit: Commit, ledger: Ledger, group: int) -> Iterator[int]:
    """Mamba: the state where a step of the prefill ends, if that is a block boundary or the prompt's tail (R5.4.2)."""
    layout, end = ledger.layout, commit.length
    if end > commit.prompt or end + ledger.promises.hash_lookahead > commit.known or layout.reprefillable:
        return
    if bound(end, ledger, group) != end or end % layout.groups[group].block_size:
        return
    at_junction = not ledger.promises.drops and end == _junction(commit, ledger)
    if ledger.promises.retention is None or end == _replay(commit, ledger) or at_junction:
        yield end


def _replay(commit: Commit, ledger: Ledger) -> int:
    """Where a replay of the prompt resumes (R5.6.4): a scheduler block lower where groups drop (R12.23)."""
    whole = ledger.layout.scheduler_block
    return round_down(commit.prompt - 1, whole) - (whole if ledger.promises.drops else 0)


def _junction(commit: Commit, ledger: Ledger) -> int:
    """A junction that the request's lookup has found, if it is a boundary in every rounding (R5.6.6, R12.22)."""
    lookup = ledger.lookups.get(commit.label)
    if lookup is None or not lookup.junction:
        return 0
    found = lookup.length + lookup.junction
    return found if found % ledger.layout.scheduler_block == 0 else 0


def _window_lengths(commit: Commit, ledger: Ledger, group: int) -> Iterator[int]:
    """Sliding window and chunked local: the blocks that each boundary up to the bound needs (R5.6.2)."""
    layout, spec, size = ledger.layout, ledger.layout.groups[group], ledger.layout.block_tokens(group)
    if ledger.promises.retention is not None and spec.kind == "sliding_window":
        return
    limit = min(bound(commit.length, ledger, group), commit.known - ledger.promises.hash_lookahead)
    if layout.draft_tokens:
        # what is registered after accepted drafts is so a step later, when the window may have passed it
        limit = min(limit, commit.prompt - layout.reprefillable)
    extra = size if group in ledger.promises.drops else 0
    anywhere = ledger.promises.partial_hits and spec.kind == "chunked_local"  # R5.6.1; windows: R5.6.2
    step = layout.hash_block if anywhere else layout.scheduler_block
    for boundary in range(step, limit - extra + 1, step):
        if boundary % size:
            continue
        reach = size * ceil_div(spec.window - 1, size) if spec.kind == "sliding_window" else boundary % spec.chunk
        yield from range(max(0, boundary - reach) + size, boundary + extra + 1, size)
