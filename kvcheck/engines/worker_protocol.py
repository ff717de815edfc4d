"""What a worker process and the process that watches it say to each other: msgpack messages over a socket."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from kvcheck.engines.hit_map import Measured, Question
from kvcheck.engines.judging import RunResult
from kvcheck.engines.search import SearchResult
from kvcheck.invariants.registry import Violation
from kvcheck.model.actions import Run
from kvcheck.model.layout import Layout
from kvcheck.model.observation import TargetInfo
from kvcheck.targets.places import Place


class Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base of all messages."""


# ---- to the worker -----------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """The first message. ``loader``: `module:function` that makes a target of ``spec``; ``searcher``: one that draws
    and judges a run. ``stall_seconds``: without progress for so long a worker is killed. ``layout``: the one that all
    searches use; None: random ones. ``topics``: what they are directed by; a searcher that is told none knows none."""

    spec: str
    loader: str
    searcher: str
    sys_path: list[str]
    stall_seconds: float
    layout: Layout | None = None
    topics: tuple[str, ...] = ()


class Search(Message, frozen=True):
    """Draw one run from a seed and judge it."""

    seed: int


class Judge(Message, frozen=True):
    """Judge a run."""

    run: Run
    record: bool = False
    measure: bool = False


class Retrace(Message, frozen=True):
    """Retrace a recording of a live server, and judge it."""

    file: str


class Shrink(Message, frozen=True):
    """Find a short run with the same signature, and what of its layout it needs."""

    run: Run
    signature: str
    seconds: float


class Locate(Message, frozen=True):
    """Find out where in the server a violation comes from."""

    run: Run
    signature: str


class MapHits(Message, frozen=True):
    """Measure how long hits are."""

    layout: Layout
    asked: Question


Request: TypeAlias = Hello | Search | Judge | Retrace | Shrink | Locate | MapHits


# ---- from the worker ---------------------------------------------------------------------------------------------


class Ready(Message, frozen=True):
    """The target is loaded. ``unsupported``: why it cannot express the layout of the greeting."""

    info: TargetInfo
    unsupported: str = ""


class Refused(Message, frozen=True):
    """The target cannot be loaded."""

    message: str


class Stall(msgspec.Struct, frozen=True, omit_defaults=True):
    """No action has ended for a while. ``run`` ends with the action that hangs; ``function`` and ``module`` are those
    of the system under test that all looks at the stack had in common, empty if it was elsewhere; ``line``: where the
    function begins."""

    function: str = ""
    module: str = ""
    stack: tuple[str, ...] = ()
    run: Run | None = None
    line: int = 0


class Beat(Message, frozen=True):
    """A sign of life, sent by a thread of its own. ``actions``: begun since the worker started."""

    actions: int
    memory_mb: int
    stall: Stall | None = None


class Searched(Message, frozen=True):
    """Answer to a search."""

    result: SearchResult


class Judged(Message, frozen=True):
    """Answer to a judgement."""

    result: RunResult


class Better(Message, frozen=True):
    """The simplest run so far that still shows the violation; the shrinking goes on."""

    run: Run
    violation: Violation


class Shrunk(Message, frozen=True):
    """Answer to a shrinking. ``violation``: as the run shows it, None if the run could not be shrunk."""

    run: Run
    violation: Violation | None = None
    needs: tuple[str, ...] = ()


class Located(Message, frozen=True):
    """Answer to that. ``place``: None if it cannot be told."""

    place: Place | None = None


class HitsMapped(Message, frozen=True):
    """Answer to a measurement of hits."""

    measured: Measured


class Broken(Message, frozen=True):
    """The request ended with an exception that is not the system's. ``run``: what had happened until then."""

    message: str
    run: Run | None = None


Answer: TypeAlias = Searched | Judged | Shrunk | Located | HitsMapped | Broken
Reply: TypeAlias = Ready | Refused | Beat | Better | Answer

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
