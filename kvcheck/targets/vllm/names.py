"""Names for the server's block hashes: which prefix of which request each of them stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvcheck.model.actions import Arrive
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
        self._full: dict[bytes, tuple[int, int, int]] = {}
        self._hashes: dict[str, list[bytes]] = {}
        self._prefixes: dict[str, Prefixes] = {}
        self._hashed: dict[str, Prefixes] = {}
        self._identity: dict[str, tuple[str, int]] = {}
        self._prompts: dict[str, int] = {}

    def arrive(self, arrive: Arrive) -> None:
        """A request exists."""
        label = arrive.label
        self._identity[label] = arrive.salt, arrive.adapter
        self._prefixes[label] = Prefixes(arrive.sequence, arrive.salt, arrive.adapter)
        self._hashes[label] = []
        self._hashed[label] = Prefixes(arrive.sequence, arrive.salt, arrive.adapter)
        self._prompts[label] = len(arrive.prompt)

    def learn(self, label: str, request: Any) -> bool:
        """Name the hashes that the request has got since the last call.

        Returns whether its tokens are others than sampling would have given, as when a session goes on.
        """
        seen, hashes = self._hashes[label], request.block_hashes
        prompt = request.num_prompt_tokens
        if len(hashes) == len(seen) and prompt == self._prompts[label] and (not seen or hashes[-1] == seen[-1]):
            return False
        self._prompts[label] = prompt
        tokens = list(request.all_token_ids)
        retold = self._prefixes[label].token_list(len(tokens)) != tokens
        if retold:
            self._prefixes[label] = Prefixes(tokens, *self._identity[label])
        while seen and (len(hashes) < len(seen) or hashes[len(seen) - 1] != seen[-1]):
            seen.pop()  # also of the same tokens: what a session kept too long is hashed anew when it is preempted
        hashed = self._hashed_tokens(label, tokens, len(seen) * self._hash_block)
        for index in range(len(seen), len(hashes)):
            raw = bytes(hashes[index])
            length = (index + 1) * self._hash_block
            key = (length, hashed.id_of(length + self._lookahead))
            seen.append(raw)
            self._names.setdefault(raw, key)
            self._outside.setdefault(self._external(hashes[index]), key)
        return retold

    def _hashed_tokens(self, label: str, tokens: list[int], named: int) -> Prefixes:
        """What the request's hashes cover: a session that discards tokens may keep the hashes of some of them, and
        goes on from there (R1.10)."""
        hashed = self._hashed[label]
        if hashed.token_list(named) + tokens[named:] != hashed.token_list(len(tokens)):
            hashed = self._hashed[label] = Prefixes(hashed.tokens[:named] + tokens[named:], *self._identity[label])
        return hashed

    def key(self, raw: bytes) -> tuple[int, int, int]:
        """Group, prefix length and name of a hash that has its group behind it."""
        full = self._full.get(raw)
        if full is None:
            full = (int.from_bytes(raw[-GROUP_BYTES:], "big"), *self._names[raw[:-GROUP_BYTES]])
            self._full[raw] = full
        return full

    def outside(self, value: Any) -> Key:
        """Name of a hash as KV events tell it."""
        return self._outside[value]

    def hashes(self, label: str) -> list[bytes]:
        """The request's hashes, the i-th for ``(i + 1) * hash_block`` tokens."""
        return self._hashes.get(label, [])
