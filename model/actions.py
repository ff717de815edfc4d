"""What the world does to a server, as plain data, and a run: a layout with its actions.

An action names a request by the label of its arrival. An action whose subject does not exist is a no-op that is
counted, so any sub-list of a run's actions is a run.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from kvcheck.model.layout import Layout


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the connector says when it is asked how much of a prefix it holds (R7).

    ``holds`` is a prefix length in tokens (capped at the request's length), None "ask me later".
    ``arrives`` limits how many tokens of a load that follows this answer really arrive; None is all of them. A
    load that does not arrive whole is reported as failed.
    """

    holds: int | None = 0
    asynchronous: bool = False
    arrives: int | None = None


class Arrive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag="arrive"):
    """A request. The k-th question to the connector gets the k-th answer; the last one repeats.

    ``stop`` ends the answer when that token is sampled; ``salt`` and ``adapter`` are part of the identity of all
    its content; ``skip_reading`` forbids the use of cached content; ``store``: the connector keeps the blocks of
    the finished request until it has read them. ``sampled``: the first tokens that sampling gives, where they were
    recorded; what comes after them, or all without them, is a function of the prefix.
    """

    label: str
    prompt: tuple[int, ...]
    max_tokens: int = 1
    stop: int | None = None
    salt: str = ""
    adapter: int = 0
    skip_reading: bool = False
    priority: int = 0
    session: bool = False
    store: bool = False
    answers: tuple[Answer, ...] = ()
    sampled: tuple[int, ...] = ()

    @property
    def sequence(self) -> tuple[int, ...]:
        """All tokens that are laid down: the prompt, and what is sampled."""
        return self.prompt + self.sampled


def is_acceptable(request: Arrive, longest: int) -> bool:
    """Whether a server of sequences of up to ``longest`` tokens accepts this request (R1.1)."""
    told = request.label != "" and request.adapter >= 0
    return told and request.max_tokens >= 1 and 0 < len(request.prompt) < longest


class Extend(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag="extend"):
    """The next input of a session; no tokens: the session ends."""

    label: str
    prompt: tuple[int, ...] = ()
    max_tokens: int = 1


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="schedule"):
    """One scheduling pass. A no-op when as many steps as the layout allows are in flight."""


class Complete(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag="complete"
):
    """The oldest step in flight is executed and its output processed.

    ``accepted``: how many of its drafts are right, by label (none where not named). ``proposed``: how many drafts
    are proposed for the next step, by label (as many as the layout says where not named; synchronous only).
    """

    accepted: dict[str, int] = {}
    proposed: dict[str, int] = {}


class Transfer(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag="transfer"
):
    """An asynchronous load or a store of a request is over; the next processed step reports it.

    ``again``: report it though it was reported before (a no-op unless the connector may do that).
    """

    label: str
    what: Literal["load", "store"] = "load"
    again: bool = False


class Abort(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="abort"):
    """The client goes away."""

    label: str


class Evict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="evict"):
    """Cached blocks are evicted from outside: those keyed with this prefix of that request's tokens."""

    group: int
    label: str
    prefix: int


class Reset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag="reset"):
    """The prefix cache is reset; ``running``: running requests are preempted for it."""

    running: bool = False


class Pause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="pause"):
    """Scheduling is paused: ``"new"`` admits nobody, ``"all"`` runs nobody, ``"none"`` goes on."""

    what: Literal["none", "new", "all"]


class Settle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="settle"):
    """The faults stop: from now on the connector never answers "later", every load arrives whole."""


Action: TypeAlias = Arrive | Extend | Schedule | Complete | Transfer | Abort | Evict | Reset | Pause | Settle

ACTION_KINDS: tuple[str, ...] = tuple(
    str(kind.__struct_config__.tag)
    for kind in (Arrive, Extend, Schedule, Complete, Transfer, Abort, Evict, Reset, Pause, Settle)
)


def kind_of(action: Action) -> str:
    """The name of the action's kind, as it stands in run files."""
    return str(action.__struct_config__.tag)


Level: TypeAlias = Literal["scheduler", "manager"]
"""What is driven: the whole scheduler, or only the cache manager inside it."""


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A layout and what happens to it. Deterministic; all that engines exchange."""

    layout: Layout
    actions: tuple[Action, ...]
    version: int = 1
    level: Level = "scheduler"
    note: str = ""
