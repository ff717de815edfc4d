"""What a campaign counts: runs, actions, situations, and whatever nothing could be said about."""

from __future__ import annotations

import threading
from collections import Counter

import msgspec

from kvcheck.engines.search import SearchResult
from kvcheck.invariants.witnesses import WITNESSES
from kvcheck.model.actions import ACTION_KINDS

MOST_UNDETERMINED = 50


class Undetermined(msgspec.Struct, kw_only=True):
    """Something that nothing can be said about, and how often it came up."""

    code: str
    message: str
    times: int = 1


class Tally:
    """The counters of one campaign; several threads count."""

    def __init__(self) -> None:
        self.runs = 0
        self.actions = 0
        self.skipped = 0
        self._lock = threading.Lock()
        self._witnesses: Counter[str] = Counter()
        self._possible: set[str] = set()
        self._kinds: Counter[str] = Counter()
        self._undetermined: dict[tuple[str, str], Undetermined] = {}

    def count(self, result: SearchResult) -> None:
        """A run was made."""
        with self._lock:
            self.runs += 1
            self.actions += result.actions
            self.skipped += result.skipped
            self._witnesses.update(result.witnesses)
            self._possible.update(result.possible)
            self._kinds.update(result.actions_by_kind)

    def note(self, code: str, message: str) -> bool:
        """Nothing can be said about something; False if that was known."""
        with self._lock:
            if (code, message) not in self._undetermined and len(self._undetermined) >= MOST_UNDETERMINED:
                code, message = "more", "more undetermined results than are kept"
            known = self._undetermined.get((code, message))
            if known is not None:
                known.times += 1
                return False
            self._undetermined[code, message] = Undetermined(code=code, message=message)
            return True

    def note_unreached(self) -> None:
        """Every situation that the layouts allowed and that never came up."""
        for name in sorted(name for name, count in self.witnesses.items() if not count):
            self.note("never-reached", f"{name}: {WITNESSES[name].description}" if name in WITNESSES else name)

    @property
    def witnesses(self) -> dict[str, int]:
        """How often each situation came up, of those that were possible or did come up."""
        with self._lock:
            return {name: self._witnesses[name] for name in sorted(self._possible | set(self._witnesses))}

    @property
    def actions_by_kind(self) -> dict[str, int]:
        """Actions of each kind."""
        with self._lock:
            return {kind: self._kinds[kind] for kind in ACTION_KINDS}

    @property
    def undetermined(self) -> tuple[Undetermined, ...]:
        """All that nothing could be said about."""
        with self._lock:
            return tuple(self._undetermined.values())
