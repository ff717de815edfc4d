"""What a recorder inside a running server writes: one JSON object a line, of which the last may be cut off.

Requests are numbered in order of arrival. A line is either something that was done to the server (it is written before
it happens) or what came of it. Tokens are *identities*: see ``kvcheck.targets.vllm.identities``, in
32-bit words, least significant byte first, in base64.
"""

from __future__ import annotations

import contextlib
from array import array
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from kvcheck.files import LIVE_BEGINNING, MOST_TOKEN, InputError, one_line, read_run_or_trace, require_content
from kvcheck.model.layout import Layout
from kvcheck.model.observation import Failure, Tables

VERSION = 1

PoolEvent: TypeAlias = tuple[str, tuple[int, ...]]
"""What the pool did: took, touched or released these blocks; cleared all keys. Of single keys nothing is told: they
are dozens a step, and what is hit and taken later follows from them. And what was asked of the connector: request,
local tokens, external tokens (-1: later), whether asynchronously."""


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="line", gc=False):
    """Base of all lines."""


class Opened(Line, frozen=True, kw_only=True, tag="opened"):
    """The server that is recorded. ``layout``: what it was configured with, as far as a layout can say it;
    ``settings``: its plain attributes, by which a server made from the layout is compared with it. ``outside``: what of
    it no layout can say."""

    version: int = VERSION
    kvcheck: str
    vllm: str
    layout: Layout | None
    settings: dict[str, bool | int | float | str | None] = {}
    outside: tuple[str, ...] = ()


class Arrived(Line, frozen=True, kw_only=True, tag="arrived"):
    """A request. ``outside``: what of it no action can say."""

    request: int
    prompt: bytes
    max_tokens: int
    salt: str = ""
    adapter: int = 0
    skip_reading: bool = False
    priority: int = 0
    outside: str = ""


class Sampled(Line, frozen=True, kw_only=True, tag="sampled"):
    """The output of the oldest step in flight. ``counts``: tokens that each of its requests sampled, in the plan's
    order; None: one each. ``received``, ``sent``: requests whose load or store is over."""

    counts: list[int] | None = None
    received: tuple[int, ...] = ()
    sent: tuple[int, ...] = ()


class Drafted(Line, frozen=True, kw_only=True, tag="drafted"):
    """Drafts for the next step, by request."""

    counts: dict[int, int]


class Aborted(Line, frozen=True, kw_only=True, tag="aborted"):
    """Requests are ended from outside."""


class Reset(Line, frozen=True, kw_only=True, tag="reset"):
    """The prefix cache is reset."""

    running: bool


class Paused(Line, frozen=True, kw_only=True, tag="paused"):
    """The pause state is set."""

    what: Literal["none", "new", "all"]


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A request is over. ``sampled``: its tokens behind the prompt. ``held``: its blocks are kept for the connector."""

    request: int
    why: Literal["stop", "length", "aborted", "alive"]
    sampled: bytes = b""
    held: bool = False


class Outcome(Line, frozen=True, kw_only=True):
    """What came of something. ``log``: what the pool did, in order."""

    log: list[PoolEvent] = []
    ended: list[Ended] = []


class Told(Outcome, frozen=True, kw_only=True, tag="told"):
    """What came of the line before. ``done``: whether the server did it, where it may decline."""

    done: bool | None = None


class Planned(Outcome, frozen=True, kw_only=True, tag="planned"):
    """A scheduling pass and its plan.

    ``who``: the requests that run, in order; ``counts``: tokens of each, None is one each. ``going_on``: those of them
    that the worker knows, in the order of ``starts``, the tokens computed before. None: as in the plan before, and all
    that run. ``new``: request, tokens computed before, tables. ``more``: index in ``going_on``, and blocks to append.
    ``drafts``: request and how many of its tokens are drafts.
    """

    who: list[int] | None = None
    counts: list[int] | None = None
    going_on: list[int] | None = None
    starts: list[int] = []
    more: list[tuple[int, Tables]] = []
    new: list[tuple[int, int, Tables]] = []
    resumed: list[int] = []
    drafts: list[tuple[int, int]] = []
    preempted: list[int] = []
    copies: list[tuple[int, int]] = []
    zero: list[int] = []


class Raised(Outcome, frozen=True, kw_only=True, tag="raised"):
    """The server raised this. ``during``: a scheduling pass, or what the line before says."""

    during: Literal["schedule", "input"]
    failure: Failure


class Outside(Line, frozen=True, kw_only=True, tag="outside"):
    """From here on something is the case that no action can say."""

    why: str


class Closed(Line, frozen=True, kw_only=True, tag="closed"):
    """The recording ends. ``alive``: the requests that are not over."""

    alive: list[Ended] = []


AnyLine: TypeAlias = (
    Opened | Arrived | Sampled | Drafted | Aborted | Reset | Paused | Told | Planned | Raised | Outside | Closed
)

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AnyLine).decode


def as_read(line: AnyLine) -> AnyLine:
    """The line as it is when it has been written and read."""
    read: AnyLine = _decode(encode(line))
    return read


class Recording(msgspec.Struct, frozen=True):
    """A recording that was read. ``cut``: its last line is not whole, and was left out."""

    path: Path
    opened: Opened
    lines: list[Any]
    cut: bool = False


def is_recording(path: Path) -> bool:
    """Whether a file begins as a recording does; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(LIVE_BEGINNING)) == LIVE_BEGINNING
    except OSError:
        return False


def read_recording(path: Path) -> Recording:
    """Read a recording.

    Raises:
        InputError: it is none, or a line other than the last is broken.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    require_content(path, raw)
    if not raw.startswith(LIVE_BEGINNING):
        raise InputError(f"{path}: not a recording of a live server{_what_else(path)}")
    rows = raw.split(b"\n")
    tail = rows.pop()
    lines: list[Any] = []
    for number, row in enumerate(rows, 1):
        try:
            lines.append(_decode(row))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(f"{path}: line {number}: {one_line(error)}") from error
    if not lines or not isinstance(lines[0], Opened):
        raise InputError(f"{path}: not a recording: its first line does not say what was recorded")
    if lines[0].version != VERSION:
        raise InputError(f"{path}: version {lines[0].version} is not known ({VERSION} is)")
    if any(isinstance(line, Opened) for line in lines[1:]):
        raise InputError(f"{path}: two recordings in one file: keep each in its own")
    if any(isinstance(line, Closed) for line in lines[:-1]):
        raise InputError(f"{path}: the recording contradicts itself (it goes on after its end)")
    return Recording(path, lines[0], lines[1:], bool(tail))


def _what_else(path: Path) -> str:
    with contextlib.suppress(InputError):
        read_run_or_trace(path)
        return ", but a run or a trace: for kvcheck replay, shrink and bisect as it is"
    return ""


def tokens_of(packed: bytes) -> tuple[int, ...]:
    """The identities in a field of a line.

    Raises:
        ValueError: they are not whole, or too large.
    """
    if len(packed) % 4:
        raise ValueError("a field of tokens is not whole")
    words = array("I", packed)
    if words.itemsize != 4 or (words and max(words) > MOST_TOKEN):
        raise ValueError(f"a token is above {MOST_TOKEN}")
    return tuple(words)
