"""Exit statuses."""

from __future__ import annotations

PASSED = 0
VIOLATED = 1
UNDETERMINED = 2
WRONG_USAGE = 3

_OF_VERDICT = {"passed": PASSED, "violated": VIOLATED, "undetermined": UNDETERMINED}


def status_of(verdict: str) -> int:
    """The exit status of a verdict."""
    return _OF_VERDICT[verdict]
