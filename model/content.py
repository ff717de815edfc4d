"""Content identities: what a cell of the cache holds, instead of a tensor.

The identity of a cell is a 63-bit digest of the whole token prefix that it was computed from and of the request's
extra keys. It is never one of the hashes that the system under test computes. A sampled token is a function of
the identity of its prefix, so the continuation of a prompt is the same on every target and in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

SAMPLED_TOKENS: tuple[int, ...] = (1, 2, 3, 4)
"""Tokens that sampling can give. Prompts may use them too: a conversation that goes on repeats its answers."""

EMPTY = 0
"""A cell that was zeroed."""
POISON = -1
"""A cell whose block was handed out and not written since."""
UNSETTLED = -2
"""Draft content computed from tokens that were not accepted."""
GARBAGE = -3
"""What a load that failed leaves behind."""

_MASK = (1 << 63) - 1


def _mix(state: int, value: int) -> int:
    """One round of a 63-bit multiply and xor-shift mixer; collisions do not occur at the sizes of a run."""
    mixed = (state ^ (value + 0x1E3779B97F4A7C15)) * 0x3F58476D1CE4E5B9 & _MASK
    mixed ^= mixed >> 29
    mixed = mixed * 0x14D049BB133111EB & _MASK
    return mixed ^ mixed >> 32 or 1


@lru_cache(maxsize=16)
def _identities(tokens: tuple[int, ...], root: int) -> tuple[int, ...]:
    """Identities of all prefixes of a prompt: model, worker and ledger each ask for those of a prompt that arrives."""
    ids, state = [], root
    for token in tokens:
        state = _mix(state, token)
        ids.append(state)
    return tuple(ids)


FrozenPrefixes = tuple[tuple[int, ...], tuple[int, ...], str, int]
"""Tokens, identities of their prefixes, salt, adapter."""


class Prefixes:
    """Identities of all prefixes of one request: ``ids[p]`` stands for tokens 0 to p.

    The sequence goes on by itself: beyond its known tokens it holds those that sampling will give. That is all
    that executing a step needs, because no step can change what comes next.
    """

    def __init__(self, tokens: Sequence[int], salt: str = "", adapter: int = 0) -> None:
        root = _mix(0x51ED270B, adapter)
        for character in salt:
            root = _mix(root, ord(character))
        self.extra_keys = salt, adapter
        self._root = root
        self.tokens: list[int] = list(tokens)
        self._ids: list[int] = list(_identities(tuple(tokens), root))
        self._array: Ids = np.zeros(0, dtype=np.int64)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append known tokens."""
        state = self._ids[-1] if self._ids else self._root
        for token in tokens:
            state = _mix(state, token)
            self._ids.append(state)
        self.tokens.extend(tokens)

    def frozen(self) -> FrozenPrefixes:
        """What is known by now, as a value."""
        return tuple(self.tokens), tuple(self._ids), *self.extra_keys

    @classmethod
    def thawed(cls, frozen: FrozenPrefixes) -> Prefixes:
        """Prefixes that go on from such a value."""
        tokens, ids, salt, adapter = frozen
        prefixes = cls((), salt, adapter)
        prefixes.tokens, prefixes._ids = list(tokens), list(ids)
        return prefixes

    def truncate(self, length: int) -> None:
        """Forget everything from position ``length`` on (a session that discards what it had sampled)."""
        del self.tokens[length:], self._ids[length:]
        self._array = self._array[:length]

    def id_of(self, length: int) -> int:
        """Identity of the prefix of ``length`` tokens (at least one)."""
        self._grow(length)
        return self._ids[length - 1]

    def ids(self, length: int) -> Ids:
        """Identities of positions 0 to ``length - 1`` (shape ``[length]``)."""
        if len(self._array) < length:
            self._grow(length)
            self._array = np.array(self._ids, dtype=np.int64)
        return self._array[:length]

    def token_list(self, length: int) -> list[int]:
        """The first ``length`` tokens."""
        self._grow(length)
        return self.tokens[:length]

    def _grow(self, length: int) -> None:
        while len(self._ids) < length:
            self.extend([SAMPLED_TOKENS[self._ids[-1] % len(SAMPLED_TOKENS)]])
