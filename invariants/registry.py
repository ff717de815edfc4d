"""The registry of invariants: each is one function with an id, a claim, a severity and the rules it comes from.

A check reads one moment (or one event of its log) and what the ledger has kept of the moments before, and yields
findings. It never steps the system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kvcheck.invariants.moment import Moment
from kvcheck.model.observation import Event

if TYPE_CHECKING:
    from kvcheck.invariants.ledger import Ledger


class Severity(StrEnum):
    """What a violation means for a user, worst first."""

    CORRUPTION = "corruption"
    CRASH = "crash"
    STALL = "stall"
    LEAK = "leak"
    LOST_REUSE = "lost reuse"
    DRAFT_QUALITY = "draft quality"
    BOOKKEEPING = "bookkeeping"


MEANING: dict[Severity, str] = {
    Severity.CORRUPTION: "an answer is computed from content that is not the request's own: wrong or foreign text",
    Severity.CRASH: "the engine dies, and every request in it",
    Severity.STALL: "requests wait for ever",
    Severity.LEAK: "memory is held for nobody, for as long as a request lives or until the server is restarted",
    Severity.LOST_REUSE: "tokens are computed again that the cache could have served",
    Severity.DRAFT_QUALITY: "fewer drafts are accepted; answers stay right",
    Severity.BOOKKEEPING: "what the server tells of itself is wrong",
}


class Finding(msgspec.Struct, frozen=True):
    """One broken claim: what exactly, in which groups, and a distinction within the invariant, if it needs one.

    ``cause``: the event that it comes from, where that is known and is not the one that the check was asked for.
    """

    message: str
    groups: tuple[int, ...] = ()
    detail: str = ""
    cause: Event | None = None


class Invariant(msgspec.Struct, frozen=True):
    """``kind``: always (after each action), eventually (judged when a run has settled). ``event``: the type of log
    event it is asked for; None: once a moment."""

    id: str
    kind: str
    claim: str
    severity: Severity
    rules: tuple[str, ...]
    event: type | None
    check: Callable[..., Iterable[Finding]]


class Violation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finding at its place in a run. ``signature`` has no numbers, lines or message text in it."""

    invariant: str
    severity: str
    message: str
    signature: str
    index: int

    def is_called(self, words: str) -> bool:
        """Whether these words are its signature, or the first ones of it. No signature begins with all of another."""
        return f"{self.signature} ".startswith(f"{words} ")


REGISTRY: dict[str, Invariant] = {}
Check = TypeVar("Check", bound=Callable[..., Iterable[Finding]])


def invariant(
    identifier: str,
    claim: str,
    severity: Severity,
    rules: str,
    kind: str = "always",
    event: type | None = None,
) -> Callable[[Check], Check]:
    """Register a check. ``rules``: ids of docs/rules.md and issues of the server, separated by blanks."""

    def register(check: Check) -> Check:
        if identifier in REGISTRY:
            raise ValueError(f"two invariants are called {identifier}")
        REGISTRY[identifier] = Invariant(identifier, kind, claim, severity, tuple(rules.split()), event, check)
        return check

    return register


def all_invariants() -> list[Invariant]:
    """Every invariant, in order of registration."""
    import kvcheck.invariants.families  # noqa: F401, PLC0415  registers all; the families import this module

    return list(REGISTRY.values())


class Judge:
    """Judges one run, moment by moment. ``ledger`` is shared by all checks. ``causes``: the event that the
    first violation of a signature comes from, where that is known."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.causes: dict[str, Event] = {}
        checks = all_invariants()
        self._by_moment = [c for c in checks if c.event is None]
        self._by_event: dict[type, list[Invariant]] = {}
        for check in checks:
            if check.event is not None:
                self._by_event.setdefault(check.event, []).append(check)

    def feed(self, moment: Moment) -> list[Violation]:
        """What this moment breaks."""
        found: list[Violation] = []
        ledger = self.ledger
        ledger.begin(moment)
        for event in moment.observation.log:
            for check in self._by_event.get(type(event), ()):
                for finding in check.check(event, ledger):
                    found.append(self._violation(check, finding, moment, event))  # noqa: PERF401  called very often
            ledger.apply(event)
        ledger.end(moment)
        for check in self._by_moment:
            for finding in check.check(moment, ledger):
                found.append(self._violation(check, finding, moment))  # noqa: PERF401
        return found

    def _violation(self, check: Invariant, finding: Finding, moment: Moment, event: Event | None = None) -> Violation:
        signature = self._signature(check, finding, moment)
        cause = finding.cause or event
        if cause is not None:
            self.causes.setdefault(signature, cause)
        return Violation(check.id, str(check.severity), finding.message, signature, moment.index)

    def _signature(self, check: Invariant, finding: Finding, moment: Moment) -> str:
        if check.id == "system.exception":
            return f"{check.id} {finding.detail}"
        kinds = sorted({self.ledger.layout.groups[g].kind for g in finding.groups if g >= 0})
        action: Any = moment.action.__struct_config__.tag
        return " ".join([check.id, *([finding.detail] if finding.detail else []), "+".join(kinds) or "-", str(action)])
