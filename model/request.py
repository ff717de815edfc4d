"""One request, as the scheduler sees it (R1.15)."""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from kvcheck.model.actions import Arrive, Extend
from kvcheck.model.content import FrozenPrefixes, Prefixes
from kvcheck.model.faults import Faults

FrozenNames = tuple[FrozenPrefixes, tuple[int, ...]]
"""Hashed tokens, and the names of prefixes."""


class Status(StrEnum):
    """What a request does. ``held``: it has ended, and somebody outside still needs its blocks."""

    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    PREEMPTED = "preempted"
    IDLE = "idle"
    HELD = "held"


class Request:
    """Tokens, and how far they are.

    ``tokens``: prompt and output so far, ``known`` of them (L of the rules); ``prompt``: how many of them are prompt.
    ``names``: the i-th stands for the first ``(i + 1) * h`` tokens (R1.10). ``computed``: tokens whose content exists
    or is planned; ``in_flight``: those of them whose step was not processed; ``placeholders``: output that steps in
    flight will give. ``stale``: tokens in flight of a former life, whose output is ``drop``-ped or kept. ``drafts``:
    drafts for its next step. ``order``: time of arrival, of a session that of its input. ``prefilling``: the next step
    does not end its prompt; ``ended_well``: it ran to its end. ``last_step``: the step that it ran in last.
    ``junction``: R4.10. ``inputs``: of a session, each with its time of arrival.
    """

    __slots__ = (
        "_hash_block",
        "_hashed",
        "computed",
        "drafts",
        "drop",
        "ended_well",
        "in_flight",
        "inputs",
        "junction",
        "known",
        "label",
        "last_step",
        "max_tokens",
        "names",
        "order",
        "placeholders",
        "preemptions",
        "prefilling",
        "priority",
        "prompt",
        "session",
        "skip_reading",
        "stale",
        "status",
        "stop",
        "tokens",
    )

    def __init__(self, arrive: Arrive, order: int, hash_block: int, faults: Faults) -> None:
        self.label = arrive.label
        extra_keys = () if faults.extra_keys_not_hashed else (arrive.salt, arrive.adapter)
        self._hash_block = hash_block
        self._hashed = Prefixes(arrive.prompt, *extra_keys)
        self.tokens = list(arrive.prompt)
        self.prompt = self.known = len(arrive.prompt)
        self.max_tokens = arrive.max_tokens
        self.stop = arrive.stop
        self.priority = arrive.priority
        self.order = order
        self.session = arrive.session
        self.skip_reading = arrive.skip_reading
        self.inputs: deque[tuple[Extend, int]] = deque()
        self.names: list[int] = []
        self.status = Status.WAITING
        self.computed = self.in_flight = self.placeholders = self.stale = self.drafts = 0
        self.drop = self.prefilling = self.ended_well = False
        self.preemptions = self.junction = self.last_step = 0
        self._learn_names()

    def __lt__(self, other: Request) -> bool:
        """Under the priority policy the smallest comes first: by priority, then by arrival."""
        return (self.priority, self.order, self.label) < (other.priority, other.order, other.label)

    def append(self, token: int) -> None:
        """A token was sampled."""
        self.tokens.append(token)
        self.known += 1
        self._hashed.extend((token,))
        self._learn_names()

    def go_on(self, kept: int, prompt: int, new: Extend, faults: Faults) -> None:
        """A session goes on behind its first ``kept`` tokens with its next input; ``prompt`` tokens count as prompt."""
        del self.tokens[kept:]
        self.tokens += new.prompt
        self.known = len(self.tokens)
        self.prompt = prompt
        if not faults.session_keeps_first_limit:
            self.max_tokens = new.max_tokens
        if not faults.session_keeps_discarded_hash:
            del self.names[kept // self._hash_block :]
        named = len(self.names) * self._hash_block
        self._hashed.truncate(named)
        self._hashed.extend(self.tokens[named:])
        self._learn_names()

    def _learn_names(self) -> None:
        """Name the prefixes that have become whole."""
        for length in range((len(self.names) + 1) * self._hash_block, self.known + 1, self._hash_block):
            self.names.append(self._hashed.id_of(length))

    def frozen_names(self) -> FrozenNames:
        """What the names are made from, and the names."""
        return self._hashed.frozen(), tuple(self.names)

    def revive(
        self, tokens: tuple[int, ...], named: FrozenNames, inputs: tuple[tuple[Extend, int], ...], hash_block: int
    ) -> None:
        """Set what a state tells of the request's tokens; the plain fields are set already."""
        self.tokens = list(tokens)
        self.inputs = deque(inputs)
        hashed, names = named
        self._hashed, self._hash_block = Prefixes.thawed(hashed), hash_block
        self.names = list(names)

    def is_over(self, longest: int) -> bool:
        """Whether the last token ends the answer."""
        if self.tokens[-1] == self.stop:
            return True
        return self.known >= longest or self.known - self.prompt >= self.max_tokens
