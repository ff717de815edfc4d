"""Importing this module registers every invariant: one module a family."""

from kvcheck.invariants import (  # noqa: F401
    agreement,
    content,
    counters,
    estimate,
    hits,
    ownership,
    progress,
    registration,
    system,
    tables,
)
