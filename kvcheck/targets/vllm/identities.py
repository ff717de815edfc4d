"""Identities of tokens for a recording: which prompts share how long a prefix, and nothing else of them.

The identity of a token is a keyed digest of all tokens up to it, of 31 bits. Equal prefixes have equal identities, and
after the first difference all are different, so that there is no letter to count and no word to look up. Each position
has two secrets of 64 bits, drawn with SHAKE-256 from a salt that is made for one recording and is never written: a
factor of its token in the sum over the prefix, and a mask of that sum, which is then mixed and cut to 31 bits.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

BITS = 31
"""An identity is a token to whoever reads the recording, and a token is below 2**31."""

_FACTOR = np.array([0xBF58476D1CE4E5B9], dtype=np.uint64)
_HALF = np.array([32], dtype=np.uint64)
_DROPPED = np.array([64 - BITS], dtype=np.uint64)


class Identities:
    """Identities under one salt."""

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(32)
        self._secrets: Words = np.zeros((2, 0), dtype=np.uint64)

    def of(self, tokens: Sequence[int], start: int = 0, state: int = 0) -> tuple[bytes, int]:
        """Identities of tokens at positions from ``start`` on, as 32-bit words, and the state for those that follow.

        ``state``: that of the tokens before.
        """
        end = start + len(tokens)
        if self._secrets.shape[1] < end:
            self._draw(2 * end)
        factors, masks = self._secrets[:, start:end]
        sums = np.add.accumulate(np.frombuffer(array("q", tokens), dtype=np.uint64) * factors)
        sums += np.uint64(state)
        state = int(sums[-1]) if end > start else state
        sums ^= masks
        for _ in (1, 2):
            sums ^= sums >> _HALF
            sums *= _FACTOR
        sums >>= _DROPPED
        return sums.astype("<u4").tobytes(), state

    def name(self, text: str) -> str:
        """A name that stands for a text: equal ones have equal names."""
        return hashlib.blake2b(text.encode(), key=self._salt, digest_size=8).hexdigest()

    def _draw(self, positions: int) -> None:
        """Secrets for so many positions: those that were drawn before stay."""
        rows = [
            np.frombuffer(hashlib.shake_256(bytes([row]) + self._salt).digest(8 * positions), dtype=np.uint64)
            for row in (0, 1)
        ]
        self._secrets = np.stack(rows)
