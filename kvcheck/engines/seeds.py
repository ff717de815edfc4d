"""Seeds of single runs, from the seed of a campaign."""

from __future__ import annotations

import hashlib
import secrets


def fresh_seed() -> int:
    """A seed for a campaign that was given none; short enough to type."""
    return secrets.randbelow(1_000_000_000)


def seed_of_run(campaign_seed: int, index: int) -> int:
    """The same on every machine, whoever runs it and however many run beside it."""
    return int.from_bytes(hashlib.blake2b(f"{campaign_seed}:{index}".encode(), digest_size=8).digest(), "big") >> 1


def index_in_shard(shard: tuple[int, int], number: int) -> int:
    """Which run of the campaign the ``number``-th run of a shard is, counted from 0. ``shard``: which one, from 1, and
    of how many. Each run belongs to one shard, and all shards together are the campaign without shards."""
    which, shards = shard
    return number * shards + which - 1
