"""Bisecting: which of a series of targets, the oldest first, shows a violation first, and which no longer does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from kvcheck.engines.judging import RunResult


class Seen(msgspec.Struct, frozen=True):
    """What one target does with the run. ``message``: what it shows, or why nothing can be said."""

    target: str
    verdict: str
    message: str = ""


Judge = Callable[[str], Seen]


def seen_of(target: str, result: RunResult, signature: str | None) -> Seen:
    """What a run says of a signature, or of any violation if none is asked for."""
    return Seen(target, *result.said_of(signature))


class Series(msgspec.Struct, frozen=True):
    """What is known of a series. ``targets``: all of it. ``seen``: what was asked, in its order. ``interrupted``: it
    was cut short."""

    targets: tuple[str, ...]
    seen: tuple[Seen, ...]
    interrupted: bool = False

    @property
    def changes(self) -> tuple[Seen, ...]:
        """Those that do not do what the last known one before does. What is older than all is taken not to show it."""
        found: list[Seen] = []
        known = "passed"
        for one in self.seen:
            if one.verdict not in ("undetermined", known):
                found.append(one)
                known = one.verdict
        return tuple(found)

    @property
    def first_bad(self) -> str | None:
        """The first target that shows the violation."""
        return self.changes[0].target if self.changes else None

    @property
    def first_good(self) -> str | None:
        """The first target after the last bad one, if that does not show it."""
        return self.changes[-1].target if self.changes and self.changes[-1].verdict == "passed" else None

    @property
    def between(self) -> tuple[str, ...]:
        """Targets of which nothing can be said, where that matters: a change may lie at one of them. If none is known
        to show the violation, each of those that were asked may."""
        verdicts = {one.target: one.verdict for one in self.seen}
        if not self.changes:
            return tuple(target for target, verdict in verdicts.items() if verdict == "undetermined")
        unclear: list[str] = []
        gap: list[str] = []
        known = "passed"
        for target in self.targets:
            verdict = verdicts.get(target, "undetermined")
            if verdict == "undetermined":
                gap.append(target)
                continue
            if verdict != known:
                unclear += gap
            known, gap = verdict, []
        return tuple(unclear)

    @property
    def verdict(self) -> str:
        """That of the newest target; undetermined if nothing can be said of it, or of where the verdict changes."""
        return "undetermined" if self.interrupted or self.between or not self.seen else self.seen[-1].verdict


Order = Callable[[int, dict[int, Seen]], Iterator[int]]
"""Which of so many targets to ask next, from what was seen so far."""


def judged(targets: Sequence[str], judge: Judge, order: Order) -> Series:
    """Judge targets in this order, until Ctrl-C."""
    seen: dict[int, Seen] = {}
    interrupted = False
    try:
        for index in order(len(targets), seen):
            seen[index] = judge(targets[index])
    except KeyboardInterrupt:
        interrupted = True
    return Series(tuple(targets), tuple(seen[index] for index in sorted(seen)), interrupted)


def every(count: int, _seen: dict[int, Seen]) -> Iterator[int]:
    """All of them."""
    yield from range(count)


def halving(count: int, seen: dict[int, Seen]) -> Iterator[int]:
    """Both ends; as long as they differ, what is closest to the middle of those that the change lies between.

    Of a target of which nothing can be said the neighbours are tried.
    """
    low, high = 0, count - 1
    yield from dict.fromkeys((low, high))
    while {seen[low].verdict, seen[high].verdict} == {"passed", "violated"}:
        left = [index for index in range(low + 1, high) if index not in seen]
        if not left:
            return
        index = min(left, key=lambda one: abs(2 * one - low - high))
        yield index
        if seen[index].verdict == seen[low].verdict:
            low = index
        elif seen[index].verdict == seen[high].verdict:
            high = index
