"""Names for the server's block hashes: which prefix of which request each of them stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvcheck.model.content import Prefixes

GROUP_BYTES = 4
"""The server appends the group's index to a hash, in this many bytes, most significant first."""

Key = tuple[int, int]
"""Prefix length in tokens, and the content identity of all tokens that were hashed."""


class KeyNames:
    """Translates the hashes of one server's requests. ``hash_block`` and ``lookahead`` are in tokens."""

    def __init__(self, hash_block: int, lookahead: int, external: Callable[[Any], Any]) -> None:
        self._hash_block = hash_block
        self._lookahead = lookahead
        self._external = external
        self._names: dict[bytes, Key] = {}
        self._outside: dict[Any, Key] = {}
        self._hashes: dict[str, list[bytes]] = {}
        self._prefixes: dict[str, Prefixes] = {}

    def arrive(self, label: str, salt: str, adapter: int) -> None:
        """A request with these extra keys exists."""
        self._prefixes[label] = Prefixes((), salt, adapter)
        self._hashes[label] = []

    def learn(self, label: str, request: Any) -> bool:
        """Name the hashes that the request has got since the last call.

        Returns whether some of its tokens are others than before, as when a session goes on.
        """
        seen, hashes = self._hashes[label], request.block_hashes
        if len(hashes) == len(seen) and (not seen or hashes[-1] == seen[-1]):
            return False
        retold = False
        while seen and (len(hashes) < len(seen) or hashes[len(seen) - 1] != seen[-1]):
            seen.pop()
            retold = True
        prefixes = self._prefixes[label]
        tokens = request.all_token_ids
        known = min(len(prefixes.tokens), len(seen) * self._hash_block)
        prefixes.truncate(known)
        prefixes.extend(list(tokens[known:]))
        for index in range(len(seen), len(hashes)):
            raw = bytes(hashes[index])
            length = (index + 1) * self._hash_block
            key = (length, prefixes.id_of(length + self._lookahead))
            seen.append(raw)
            self._names.setdefault(raw, key)
            self._outside.setdefault(self._external(hashes[index]), key)
        return retold

    def key(self, raw: bytes) -> tuple[int, Key]:
        """Group and name of a hash with its group."""
        return int.from_bytes(raw[-GROUP_BYTES:], "big"), self._names[raw[:-GROUP_BYTES]]

    def outside(self, value: Any) -> Key:
        """Name of a hash as KV events tell it."""
        return self._outside[value]

    def hashes(self, label: str) -> list[bytes]:
        """The request's hashes, the i-th for ``(i + 1) * hash_block`` tokens."""
        return self._hashes.get(label, [])
