"""Random runs: actions drawn one by one in view of the server's state, and the end of a run.

Each run draws its own weights for the kinds of action, some of them zero, so that runs differ in character: some
never abort, some do little else. Requests are drawn as an index into those that live; the action stores the label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kvcheck.engines.execution import Execution
from kvcheck.engines.random_drafts import Acceptance
from kvcheck.engines.random_layouts import ALL_FEATURES, Features
from kvcheck.engines.random_prompts import Lengths, Prompts
from kvcheck.engines.source import Source
from kvcheck.invariants.progress import FROZEN_PASSES
from kvcheck.model.actions import (
    Abort,
    Action,
    Answer,
    Arrive,
    Complete,
    Evict,
    Extend,
    Pause,
    Reset,
    Schedule,
    Settle,
    Transfer,
)
from kvcheck.model.content import SAMPLED_TOKENS
from kvcheck.model.layout import Layout

MOST_LIVE: tuple[int, ...] = (4, 2, 6, 10)
"""How many requests a run lets live at a time: more only wait."""
SETTLE_PASSES = 2000
QUIET_PASSES = FROZEN_PASSES + 1
"""Passes without a change after which a run gives up: enough for a stall to be seen (progress.frozen)."""
SALT = "other"
ADAPTERS = 2
EARLIEST_PRIORITY = 20
"""Of the first request, where each is more urgent than those before."""
LONG_ANSWER = 16
"""Tokens of a long answer; longer ones repeat what these show."""


Emphasis = frozenset[str]
"""What a run is to have much of: kinds of action beside steps, "answers" and "failures" of the connector, "sessions",
"stores", and "long" answers, which are nearly all. The others get the most that any run may have of them."""


class RunGenerator:
    """Draws the actions of one run. ``paused``: scheduling was paused and not resumed since.

    In some runs only one group loses keys, so that the groups' hits differ more often.
    """

    def __init__(
        self,
        source: Source,
        layout: Layout,
        features: Features = ALL_FEATURES,
        emphasis: Emphasis = frozenset(),
    ) -> None:
        self._source = source
        self._layout = layout
        self._arrivals = _Arrivals(source, layout, features, emphasis)
        self._step_percent = source.choose((65, 55, 75, 85))
        self._eager_percent = source.choose((80, 20, 50, 100))
        self._accepts = Acceptance(source, layout)
        self._makers = [
            (make, max(weights) if kind in emphasis else source.choose(weights))
            for kind, make, weights in self._kinds(features)
        ]
        self._most_live = source.choose(MOST_LIVE[-2:] if "arrive" in emphasis else MOST_LIVE)
        self._swift_percent = source.choose((0, 0, 70)) if layout.connector is not None else 0
        groups = len(layout.groups)
        self._loses = source.integer(0, groups - 1) if groups > 1 and source.chance(40) else None
        self._burst = 0
        self.paused = False

    @property
    def sessions(self) -> bool:
        """Whether this run has sessions."""
        return self._arrivals.sessions

    def _kinds(self, features: Features) -> list[tuple[str, Callable[[Execution], Action | None], Sequence[int]]]:
        """The kinds of action beside steps that the layout has a use for, and the weights that each may get."""
        connector = self._layout.connector
        kinds: list[tuple[str, Callable[[Execution], Action | None], Sequence[int]]] = [
            ("arrive", self.arrive, (20, 10, 30)),
            ("abort", self.abort, (0, 0, 1, 3, 10)),
        ]
        if connector is not None:
            kinds.append(("transfer", self.transfer, (20, 5, 40)))
        if self.sessions:
            kinds.append(("extend", self.extend, (10, 5, 20)))
        if features.evictions and self._layout.caching:
            kinds.append(("evict", self.evict, (0, 2, 5, 20)))
        if features.resets:
            kinds.append(("reset", self.reset, (0, 0, 0, 1, 3)))
        if features.pauses:
            kinds.append(("pause", lambda _: self.pause(), (0, 0, 0, 1, 3)))
        return kinds

    # ---- the next action -----------------------------------------------------------------------------------------

    def next(self, execution: Execution) -> Action:
        """The next action of the run."""
        forced = self._forced(execution)
        if forced is not None:
            return forced
        if not self._source.chance(100 - self._step_percent):
            return self.step(execution)
        make = self._source.weighted(self._makers)
        return make(execution) or self.step(execution)

    def _forced(self, execution: Execution) -> Action | None:
        """What a burst of arrivals, an idle server or a pause asks for."""
        view, source = execution.view, self._source
        if self._burst > 0:
            self._burst -= 1
            return self.arrive(execution)
        if self.paused and source.chance(25):
            return self.unpause()
        if execution.shadow.loads and source.chance(self._swift_percent):
            return self.transfer(execution)
        idle = view is None or not view.requests
        if idle and not execution.in_flight and source.chance(90):
            return self.arrive(execution)
        return None

    def step(self, execution: Execution) -> Action:
        """Schedule or complete, whichever is possible; both are where steps overlap."""
        in_flight = len(execution.in_flight)
        if in_flight == 0:
            return Schedule()
        if in_flight >= self._layout.steps_in_flight or not self._source.chance(self._eager_percent):
            return self.complete(execution)
        return Schedule()

    # ---- each kind of action; None: it has no subject now --------------------------------------------------------

    def complete(self, execution: Execution) -> Complete:
        """The oldest step runs, with some of its drafts accepted and some number of drafts proposed."""
        return self._accepts.complete(execution)

    def arrive(self, execution: Execution) -> Action | None:
        """A request arrives, now and then the first of a burst."""
        view = execution.view
        if view is not None and len(view.requests) >= self._most_live:
            self._burst = 0
            return None
        if not self._burst and self._source.chance(25):
            self._burst = self._source.integer(1, 3)
        return self._arrivals.draw(execution)

    def extend(self, execution: Execution) -> Action | None:
        """A session gets more input, or ends."""
        labels = [label for label in _live(execution) if _open_session(execution, label)]
        if not labels:
            return None
        return self._arrivals.extend(execution, self._source.choose(labels))

    def abort(self, execution: Execution) -> Action | None:
        """The client of some request goes away, often while its load is under way (R7.11)."""
        labels = _live(execution)
        loading = [label for label in labels if label in execution.shadow.loads]
        if loading and self._source.chance(40):
            labels = loading
        return Abort(label=self._source.choose(labels)) if labels else None

    def transfer(self, execution: Execution) -> Action | None:
        """Some pending load or store is over; a connector that repeats itself may report a load again."""
        connector, source = self._layout.connector, self._source
        if connector is not None and connector.duplicates and execution.arrivals and source.chance(15):
            return Transfer(label=source.choose(list(execution.arrivals)), again=True)
        loads, stores = list(execution.shadow.loads), list(execution.stores)
        if not loads and not stores:
            return None
        place = source.integer(0, len(loads) + len(stores) - 1)
        if place < len(loads):
            return Transfer(label=loads[place])
        return Transfer(label=stores[place - len(loads)], what="store")

    def evict(self, execution: Execution) -> Action | None:
        """A cached prefix of some request is evicted from one group."""
        view, source = execution.view, self._source
        if view is None or not view.keys or not execution.arrivals:
            return None
        if source.chance(10):
            return self._evict_anything(execution)
        keys = [key for key in view.keys if self._loses in (None, key[0])]
        if not keys:
            return None
        group, _, length, key = source.choose(keys)
        label = _owner(execution, length, key)
        return None if label is None else Evict(group=group, label=label, prefix=length)

    def _evict_anything(self, execution: Execution) -> Evict:
        label = self._source.choose(list(execution.arrivals))
        hash_block = self._layout.hash_block
        units = max(1, len(execution.arrivals[label].prompt) // hash_block)
        group = self._source.integer(0, len(self._layout.groups) - 1)
        return Evict(group=group, label=label, prefix=hash_block * self._source.integer(1, units))

    def reset(self, execution: Execution) -> Action | None:
        """The prefix cache is reset, mostly with running requests preempted for it."""
        if execution.in_flight and not self._layout.asynchronous:
            return None
        return Reset(running=self._source.chance(60))

    def pause(self) -> Action:
        """Scheduling is paused, for new requests or for all."""
        self.paused = True
        return Pause(what="all" if self._source.chance(50) else "new")

    def unpause(self) -> Action:
        """Scheduling goes on."""
        self.paused = False
        return Pause(what="none")


class _Arrivals:
    """Draws requests, and the further input of sessions. What a run's requests may ask for is drawn once for it."""

    def __init__(self, source: Source, layout: Layout, features: Features, emphasis: Emphasis) -> None:
        self._source = source
        self._layout = layout
        self._prompts = Prompts(source, layout)
        self._lengths = Lengths(source, layout)
        self._answers = _Answers(source, layout, features, self._lengths, emphasis)
        produces = layout.connector is not None and layout.connector.role != "consumer"
        stores = (90,) if "stores" in emphasis else (40, 0, 90)
        self._store_percent = source.choose(stores) if produces and features.stores else 0
        self._special_percent = source.choose((0, 5, 20))
        self._skips_reading = features.skip_reading
        self._long_percent = source.choose((90,) if "long" in emphasis else (10, 0, 40))
        self._urgent_last = source.chance(60)
        able = features.sessions and not (layout.drafter and layout.has_mamba)
        self.sessions = able and ("sessions" in emphasis or source.chance(50))

    def draw(self, execution: Execution) -> Arrive:
        """A request; its label tells how many came before."""
        source = self._source
        prompt = self._prompts.draw(execution)
        special = source.chance(self._special_percent)
        return Arrive(
            label=f"r{len(execution.arrivals)}",
            prompt=prompt,
            max_tokens=self._max_tokens(len(prompt)),
            stop=source.choose(SAMPLED_TOKENS) if source.chance(10) else None,
            salt=SALT if special and source.chance(40) else "",
            adapter=source.integer(1, ADAPTERS) if special and source.chance(30) else 0,
            skip_reading=special and self._skips_reading and source.chance(40),
            priority=self._priority(len(execution.arrivals)) if self._layout.policy == "priority" else 0,
            session=self.sessions and source.chance(50),
            store=source.chance(self._store_percent),
            answers=self._answers.draw(len(prompt)),
        )

    def extend(self, execution: Execution, label: str) -> Extend:
        """More input for a session, if it still has room for some; else its end."""
        view = execution.view
        known = view.requests[label].known if view else 0
        room = self._lengths.longest - known
        if room < 1 or self._source.chance(35):
            return Extend(label=label)
        length = self._lengths.between(1, min(room, self._source.choose((4, 1, 12, room))))
        return Extend(label=label, prompt=self._prompts.tail(known, length), max_tokens=self._max_tokens(known))

    def _priority(self, before: int) -> int:
        """Of three; or more urgent than all before, so that those are preempted whose turn came first in a pass."""
        return max(0, EARLIEST_PRIORITY - before) if self._urgent_last else self._source.integer(0, 2)

    def _max_tokens(self, prompt: int) -> int:
        if self._source.chance(self._long_percent):
            return max(1, min(LONG_ANSWER, self._layout.max_model_len - prompt))
        return self._source.integer(1, self._source.choose((4, 1, 14)))


class _Answers:
    """What the connector says of a request: by run, how often it has something, late, asynchronously or in part.

    One that supports divergence fills blocks below the local hit too, which real ones only do asynchronously (R7).
    """

    def __init__(
        self, source: Source, layout: Layout, features: Features, lengths: Lengths, emphasis: Emphasis
    ) -> None:
        connector = layout.connector
        self._source = source
        self._lengths = lengths
        self._block = layout.scheduler_block
        self._has_percent = 0
        if connector is not None and connector.role != "producer":
            self._has_percent = source.choose((100,) if "answers" in emphasis else (70, 30, 100))
        always = connector is not None and connector.divergent
        self._asynchronous_percent = 100 if always else source.choose((50, 0, 100))
        self._later_percent = source.choose((0, 5, 25))
        self._unaligned_percent = source.choose((0, 10, 40))
        fails = features.failed_loads and ("failures" in emphasis or source.chance(45))
        self._failed_percent = source.choose((30, 60)) if fails else 0

    def draw(self, prompt: int) -> tuple[Answer, ...]:
        """One to three answers for a prompt of so many tokens; none, if the connector has nothing."""
        if not self._has_percent or not self._source.chance(self._has_percent):
            return ()
        answers = [self._answer(prompt) for _ in range(self._source.weighted(((1, 6), (2, 2), (3, 1))))]
        if self._source.chance(self._later_percent):
            answers.insert(0, Answer(holds=None))
        return tuple(answers)

    def _answer(self, prompt: int) -> Answer:
        source = self._source
        if source.chance(self._later_percent):
            return Answer(holds=None)
        holds = self._holds(prompt)
        arrives = source.integer(0, holds - 1) if holds and source.chance(self._failed_percent) else None
        return Answer(holds=holds, asynchronous=source.chance(self._asynchronous_percent), arrives=arrives)

    def _holds(self, prompt: int) -> int:
        """How long a prefix the connector has: whole scheduler blocks, as real ones answer, seldom other lengths."""
        source = self._source
        if source.chance(self._unaligned_percent):
            return self._lengths.between(0, prompt)
        blocks = prompt // self._block
        if source.chance(50):
            return blocks * self._block
        return source.integer(0, blocks) * self._block


def _live(execution: Execution) -> list[str]:
    """Labels of the requests that somebody waits for, in order of arrival."""
    view = execution.view
    return [label for label, r in view.requests.items() if r.status != "held"] if view else []


def _open_session(execution: Execution, label: str) -> bool:
    """Whether this request is a session that was not ended."""
    return execution.arrivals[label].session and label not in execution.ended_sessions


def _owner(execution: Execution, length: int, key: int) -> str | None:
    """A request whose first ``length`` tokens have this key: keys may cover tokens after them too (R12.18)."""
    covered = length + execution.session.promises.hash_lookahead
    for label, prefixes in execution.shadow.prefixes.items():
        if len(prefixes.tokens) >= covered and prefixes.id_of(covered) == key:
            return label
    return None


# ---- the end of a run ------------------------------------------------------------------------------------------------


def settle_actions(execution: Execution, limit: int = SETTLE_PASSES) -> Iterator[Action]:
    """The faults stop, and everything that has begun is brought to its end.

    The caller applies each action before it asks for the next. Ends after ``limit`` passes at the latest, and when
    some passes have changed nothing though nothing outside was awaited: a server that stalls is left as it is.
    """
    yield Settle()
    yield Pause(what="none")
    while execution.in_flight and not execution.dead:
        yield Complete()
    quiet, seen = 0, (execution.view, _awaited(execution))
    for _ in range(limit):
        yield from _awaited(execution)
        yield Schedule()
        while execution.in_flight and not execution.dead:
            yield Complete()
        if execution.dead or is_settled(execution):
            return
        now = execution.view, _awaited(execution)
        quiet = quiet + 1 if now == seen else 0
        if quiet == QUIET_PASSES:
            return
        seen = now


def _awaited(execution: Execution) -> list[Action]:
    """What the server waits for: loads, stores, and the end of sessions."""
    loads = [Transfer(label=label) for label in execution.shadow.loads]
    stores = [Transfer(label=label, what="store") for label in execution.stores]
    ends = [Extend(label=label) for label in _live(execution) if _open_session(execution, label)]
    return [*loads, *stores, *ends]


def is_settled(execution: Execution) -> bool:
    """Whether nothing is left to do, and nothing awaited."""
    view = execution.view
    nothing_left = view is not None and not view.requests and not view.deferred
    return nothing_left and not execution.in_flight and not execution.shadow.loads and not execution.stores
