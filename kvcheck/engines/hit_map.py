"""How far will it hit: the length of a hit by the length of what earlier requests have computed of the prompt.

Each point is measured on a server of its own, with memory for all that its requests compute: nothing is evicted. It is
of one layout, at the lengths where that has boundaries, with reasons; what is the same for all releases, to compare
them by, is ``kvcheck.engines.probes``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from kvcheck.engines.execution import Execution
from kvcheck.engines.hit_reasons import (
    Bound,
    Earlier,
    granularity,
    longest_possible,
    reason,
    why_granularity,
)
from kvcheck.invariants.ledger import Ledger
from kvcheck.model.actions import Action, Arrive, Complete, Schedule
from kvcheck.model.arith import ceil_div
from kvcheck.model.content import Prefixes
from kvcheck.model.layout import Layout
from kvcheck.model.observation import Begin, Observation, Scheduled
from kvcheck.targets.base import Target, UnsupportedLayout
from kvcheck.targets.failures import HarnessError

MOST_LENGTHS = 100
"""So many lengths are all measured; of more, those beside boundaries, if these are no more."""
MOST_TURNS = 24
LONGEST_ANSWER = 64
"""Tokens of an answer in a conversation, at most."""
BLOCKS = 4
"""So many scheduler blocks are measured, and the places where windows, chunks and steps end."""
OTHER = 1_000_000
"""Tokens of tails are counted from here, so that no two tails have one in common."""

replace = msgspec.structs.replace
Sent = tuple[tuple[int, ...], int]
"""A prompt, and the length of its answer."""
Said = tuple[int, int]
"""How many of a prompt's first tokens were computed for earlier requests, and how many were known of them."""


class Case(msgspec.Struct, frozen=True):
    """What people ask about: ``count`` prompts with the same first tokens; tokens of its own behind them have
    each of the ``tails``, counted from the last prompt. ``grows``: each prompt is the one before with its answer."""

    name: str
    what: str
    count: int
    tails: int
    grows: bool = False


CASES = (
    Case("again", "the same prompt again", 2, 0),
    Case("continued", "the prompt, continued", 2, 1),
    Case("shared", "two prompts with a shared head", 2, 2),
    Case("third", "the third prompt with a shared head", 3, 3),
    Case("conversation", "a conversation, turn by turn", MOST_TURNS, 0, grows=True),
)
BY_NAME = {case.name: case for case in CASES}


class Question(msgspec.Struct, frozen=True):
    """``lengths``: of what prompts share, in tokens; ``tail``: tokens of their own, and of a turn's input."""

    case: str
    lengths: tuple[int, ...]
    tail: int


class Point(msgspec.Struct, frozen=True):
    """``shared`` tokens of a prompt were computed before; ``hit`` of them were taken from the cache. ``most``: what a
    hit can be at most. ``why``: what stands against a longer one."""

    shared: int
    prompt: int
    hit: int
    most: int
    why: str


class Setup(msgspec.Struct, frozen=True):
    """What is measured: a layout on a target, and what it is called."""

    name: str
    spec: str
    layout: Layout


class Measured(msgspec.Struct, frozen=True):
    """All points of a question, or why there are none. ``granularity``: hits are multiples of so many tokens, and
    ``because``: why of these. ``retention``: the interval in tokens that the target has; None: dense."""

    points: tuple[Point, ...] = ()
    granularity: int = 0
    because: str = ""
    retention: int | None = None
    undetermined: str = ""


# ---- what is asked ---------------------------------------------------------------------------------------------------


def tail_of(layout: Layout) -> int:
    """A tail as long as a scheduler block, if prompts can be that long."""
    return max(1, min(layout.scheduler_block, layout.max_model_len // 4))


def question(layouts: Sequence[Layout], case: Case, tail: int, up_to: int | None = None) -> Question:
    """What to ask of servers with these layouts, the same of all: short of, at and past each boundary up to some
    scheduler blocks and where windows, chunks and steps end; with ``up_to``, each boundary up to there; all lengths
    if they are few."""
    room = room_of(layouts, case, tail)
    whole = BLOCKS * max(layout.scheduler_block for layout in layouts)
    last = max(0, min(room, whole if up_to is None else up_to))
    lengths = {1, last, *(mark + side for layout in layouts for mark in _marks(layout) for side in (-1, 0, 1))}
    if up_to is not None:
        room = last
        lengths.update(_boundaries(last, min(layout.granularity for layout in layouts)))
    asked = sorted(length for length in lengths if 0 < length <= room)
    if asked and asked[-1] <= MOST_LENGTHS:
        asked = list(range(1, asked[-1] + 1))
    return Question(case.name, tuple(asked), tail)


def room_of(layouts: Sequence[Layout], case: Case, tail: int) -> int:
    """So many tokens can prompts of this case share, beside their tail and one more token."""
    return min(layout.max_model_len for layout in layouts) - 1 - (tail if case.tails else 0)


def _boundaries(last: int, size: int) -> Iterator[int]:
    """Multiples of a size up to ``last``, and what is beside them, if these are not too many."""
    sides = (-1, 0, 1) if last <= MOST_LENGTHS * size else (0,)
    return (mark + side for mark in range(0, last + 2, size) for side in sides)


def _marks(layout: Layout) -> Iterator[int]:
    """Boundaries of this layout."""
    sizes = {layout.block_tokens(index) for index in range(len(layout.groups))}
    for size in {layout.granularity, *sizes, layout.scheduler_block}:
        yield from range(size, BLOCKS * size + 1, size)
    ends = {size for group in layout.groups for size in (group.window, group.chunk)}
    ends |= {layout.retention} if isinstance(layout.retention, int) else set()
    ends |= {layout.token_budget, layout.long_prefill_threshold} if layout.has_mamba else set()  # states are kept there
    for end in ends - {0}:
        yield end
        yield end + layout.scheduler_block


def _prompts(case: Case, shared: int, tail: int) -> list[Sent]:
    """The prompts of one point, the measured one last."""
    head = tuple(range(1, shared + 1))
    first = case.count - case.tails
    tails = [OTHER * max(0, number - first + 1) for number in range(case.count)]
    return [(head + tuple(range(at, at + tail) if at else ()), 1) for at in tails]


def _turns(layout: Layout, tail: int, up_to: int) -> list[Sent]:
    """The turns of one conversation: each is a request that repeats all that was said before. They are short beside a
    tail, as most turns are short beside a scheduler block."""
    put, answer = max(1, tail // 4), max(1, min(LONGEST_ANSWER, tail // 8))
    turns: list[Sent] = []
    said: list[int] = []
    while len(turns) < MOST_TURNS and len(said) <= up_to and len(said) + put + answer < layout.max_model_len:
        said += range(OTHER * (len(turns) + 1), OTHER * (len(turns) + 1) + put)
        turns.append((tuple(said), answer))
        said = Prefixes(said).token_list(len(said) + answer)
    return turns


# ---- measuring -------------------------------------------------------------------------------------------------------


class NotServed(Exception):
    """A request did not come to its end."""


class Server:
    """One server, with a ledger of its keys beside it. No invariant is asked: they are for `kvcheck fuzz`."""

    def __init__(self, target: Target, layout: Layout, sent: list[Sent]) -> None:
        roomy = with_room(layout, sent)
        session = target.start(roomy)
        self._execution = Execution(session, roomy)
        self._ledger = Ledger(roomy, session.promises, self._execution.shadow)
        self._earlier = Earlier()
        self._bounds: dict[str, Bound] = {}

    def serve(self, label: str, prompt: tuple[int, ...], answer: int, shared: int, known: int) -> Point:
        """Let a request come and wait for its end; ``shared`` of its tokens were computed before, and ``known``.

        Raises:
            NotServed: it has none.
        """
        said = shared, known
        self._apply(Arrive(label=label, prompt=prompt, max_tokens=answer), said)
        for _ in range(2 * (len(prompt) + answer) + 8):
            for action in (Schedule(), Complete()):
                seen = self._apply(action, said)
            if seen.view is not None and label not in seen.view.requests:
                if label not in self._bounds:
                    raise NotServed("a request ended before it was admitted")
                return Point(shared, len(prompt), *self._bounds[label])
        raise NotServed(f"a prompt of {len(prompt)} tokens comes to no end")

    def _apply(self, action: Action, said: Said) -> Observation:
        moment = self._execution.apply(action)
        seen, ledger = moment.observation, self._ledger
        if seen.failure is not None:
            raise NotServed(f"{seen.failure.type} in {seen.failure.function}: {seen.failure.message}")
        ledger.begin(moment)
        for event in seen.log:
            if isinstance(event, Begin) and not event.computed:
                self._bounds[event.label] = self._why(event, *said)
            ledger.apply(event)
        ledger.end(moment)
        self._earlier.stops.update(_ends(seen.plan.requests) if seen.plan else ())
        return seen

    def _why(self, begin: Begin, shared: int, known: int) -> Bound:
        prompt = len(self._ledger.arrivals[begin.label].prompt)
        most, why_most = longest_possible(self._ledger, shared, known, prompt)
        if begin.local >= most:
            return Bound(begin.local, most, why_most)
        return Bound(begin.local, most, reason(self._ledger, self._earlier, begin.label, begin.local, most, prompt - 1))


def _ends(requests: Iterable[Scheduled]) -> Iterator[int]:
    """Where a step ends in each request, its drafts not counted: none of them is right here."""
    yield from (item.start + item.count - item.drafts for item in requests)


def with_room(layout: Layout, sent: list[Sent]) -> Layout:
    """The layout with memory for all that these requests compute, and no more than they need."""
    longest = min(layout.max_model_len, max((len(prompt) + answer for prompt, answer in sent), default=0) + 1)
    short = replace(layout, max_model_len=longest)
    each = [ceil_div(longest, short.block_tokens(i)) + short.blocks_for_one(i) for i in range(len(short.groups))]
    return replace(short, num_blocks=short.min_blocks + len(sent) * sum(each))


def measure(target: Target, layout: Layout, asked: Question) -> Measured:
    """All points of a question, or why they cannot be had."""
    case = BY_NAME[asked.case]
    try:
        promises = target.start(with_room(layout, [])).promises
        points = _conversation(target, layout, asked) if case.grows else _each(target, layout, asked, case)
        because = why_granularity(layout, promises)
        return Measured(tuple(points), granularity(layout, promises), because, promises.retention)
    except UnsupportedLayout as error:
        return Measured(undetermined=f"not supported: {error}")
    except NotServed as error:
        return Measured(undetermined=f"not served: {error}")
    except HarnessError as error:
        return Measured(undetermined=f"harness: {error}")


def _each(target: Target, layout: Layout, asked: Question, case: Case) -> Iterator[Point]:
    for shared in asked.lengths:
        sent = _prompts(case, shared, asked.tail)
        server = Server(target, layout, sent)
        for number, (prompt, answer) in enumerate(sent):
            point = server.serve(f"r{number}", prompt, answer, shared, shared)
        yield point


def _conversation(target: Target, layout: Layout, asked: Question) -> Iterator[Point]:
    """One server for all turns. The last token of an answer is sampled and not run, so it is not shared."""
    turns = _turns(layout, asked.tail, max(asked.lengths, default=0))
    if not turns:
        return
    server, known = Server(target, layout, turns), 0
    for number, (prompt, answer) in enumerate(turns):
        point = server.serve(f"r{number}", prompt, answer, max(0, known - 1), known)
        if number:
            yield point
        known = len(prompt) + answer


# ---- stairs ----------------------------------------------------------------------------------------------------------


class Stair(msgspec.Struct, frozen=True):
    """Lengths, one measured after the other, that hit nothing, or as much as they can, or less and for one reason.
    ``lost``: they could hit more."""

    points: tuple[Point, ...]

    @property
    def first(self) -> Point:
        """The shortest."""
        return self.points[0]

    @property
    def last(self) -> Point:
        """The longest."""
        return self.points[-1]

    @property
    def lost(self) -> bool:
        """Whether these lengths could hit more."""
        return self.last.hit < self.last.most

    def takes(self, point: Point) -> bool:
        """Whether the next length belongs here."""
        last = self.last
        if last.hit < last.most:
            alike = without_lengths(last.why) == without_lengths(point.why)
            return point.hit < point.most and bool(last.hit) == bool(point.hit) and alike
        return point.hit == point.most and bool(last.hit) == bool(point.hit)


def stairs(points: Iterable[Point], unit: int = 0) -> list[Stair]:
    """The steps of a map. None goes on over more than ``unit`` tokens that were not measured; 0: over any number."""
    found: list[Stair] = []
    for point in points:
        near = bool(found) and (not unit or point.shared - found[-1].last.shared <= unit)
        if near and found[-1].takes(point):
            found[-1] = Stair((*found[-1].points, point))
        else:
            found.append(Stair((point,)))
    return found


def reasons(points: Iterable[Point]) -> list[str]:
    """The different reasons of some points; of those that differ in lengths only, the last."""
    return list({without_lengths(point.why): point.why for point in points}.values())


def without_lengths(why: str) -> str:
    """A reason without its numbers of tokens, and lists of them; those of groups stay."""
    return re.sub(r"(groups? [\d, to]*\d)|(\.\.\., )?\d+(, \d+)*", lambda found: found[1] or "", why)
