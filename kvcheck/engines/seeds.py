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
