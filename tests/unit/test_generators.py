"""The generators: what they draw is valid and reproducible, and nothing that the vocabulary can say is never drawn.

Most tests drive a toy server, which admits everybody and caches nothing; the last ones drive a real release.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from helpers import full, layout_of, window
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from releases import output_of, release

from kvcheck.engines.execution import Execution
from kvcheck.engines.random_layouts import ALL_FEATURES, Features, random_layout
from kvcheck.engines.random_prompts import Lengths
from kvcheck.engines.random_runs import RunGenerator, settle_actions
from kvcheck.engines.source import HypothesisSource, RandomSource, Source
from kvcheck.engines.thinned_runs import ThinnedGenerator
from kvcheck.model.actions import (
    ACTION_KINDS,
    Abort,
    Action,
    Answer,
    Arrive,
    Complete,
    Evict,
    Extend,
    Pause,
    Reset,
    Run,
    Schedule,
    Transfer,
    kind_of,
)
from kvcheck.model.content import SAMPLED_TOKENS, Prefixes
from kvcheck.model.layout import Group, Layout, problems
from kvcheck.model.observation import (
    CacheView,
    Load,
    Processed,
    Promises,
    RequestView,
    Scheduled,
    StepPlan,
    Store,
    TargetInfo,
)
from kvcheck.targets.base import StepOutput
from kvcheck.targets.loading import load_target

RUNS = 500
LENGTH = 60
SMALL = Layout(groups=(Group(kind="full", block_size=4),), num_blocks=40, max_model_len=32, token_budget=16)


class ToyRequest:
    def __init__(self, arrive: Arrive) -> None:
        self.arrive = arrive
        self.tokens = list(arrive.prompt)
        self.left = arrive.max_tokens
        self.status = "waiting"
        self.started = False


class ToyServer:
    """Runs every request at once, whole, and keeps nothing. Its blocks do not exist: it is never judged."""

    promises = Promises()

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.requests: dict[str, ToyRequest] = {}
        self.keys: dict[tuple[int, int], int] = {}
        self.paused = "none"
        self.stores: list[Store] = []
        self.ending: set[str] = set()
        self.plans: deque[StepPlan] = deque()
        self.passes = 0
        self.nothing = ((),) * len(layout.groups)

    def arrive(self, request: Arrive) -> None:
        self.requests[request.label] = ToyRequest(request)
        prefixes = Prefixes(request.prompt, request.salt, request.adapter)
        for length in range(self.layout.hash_block, len(request.prompt) + 1, self.layout.hash_block):
            self.keys[length, prefixes.id_of(length)] = 1

    def extend(self, update: Extend) -> None:
        request = self.requests[update.label]
        if update.prompt:
            request.tokens += update.prompt
            request.left, request.status = update.max_tokens, "waiting"
        elif request.status == "idle":
            del self.requests[update.label]
        else:
            self.ending.add(update.label)

    def schedule(self) -> StepPlan:
        self.passes += 1
        in_flight = {item.label for plan in self.plans for item in plan.requests}
        items, loads = [], []
        for label, request in self.requests.items():
            if label in in_flight or self.paused != "none" or request.status not in ("waiting", "running"):
                continue
            answer = next((a for a in request.arrive.answers if a.holds), Answer())
            if answer.asynchronous and not request.started:
                request.status, request.started = "loading", True
                external = min(answer.holds or 0, len(request.tokens))
                loads.append(Load(label, 0, external, True, self.nothing, (), answer.arrives))
            else:
                items.append(self._item(label, request))
        plan = StepPlan(seq=self.passes, requests=tuple(items), loads=tuple(loads))
        self.plans.append(plan)
        return plan

    def _item(self, label: str, request: ToyRequest) -> Scheduled:
        known, drafts = len(request.tokens), self.layout.draft_tokens
        if request.status == "running":
            return Scheduled(label, "running", known - 1, 1 + drafts, drafts, known, ())
        request.status = "running"
        return Scheduled(label, "new", 0, known, 0, known, self.nothing, tuple(request.tokens))

    def process(self, output: StepOutput) -> Processed:
        self.plans.popleft()
        for label in (*output.received, *output.failed):
            if label in self.requests:
                self.requests[label].status = "waiting"
        for label in output.sent:
            self.requests.pop(label, None)
        for label, tokens in output.sampled.items():
            if label in self.requests and self.requests[label].status == "running":
                self._advance(label, tokens)
        return Processed({})

    def _advance(self, label: str, tokens: tuple[int, ...]) -> None:
        request = self.requests[label]
        request.tokens += tokens[: request.left]
        request.left -= len(tokens)
        if request.left > 0 and len(request.tokens) < self.layout.max_model_len:
            return
        if request.arrive.session and label not in self.ending:
            request.status = "idle"
        elif request.arrive.store:
            request.status = "held"
            self.stores.append(Store(label, 0, self.nothing))
        else:
            del self.requests[label]

    def abort(self, label: str) -> None:
        del self.requests[label]

    def evict(self, group: int, label: str, prefix: int) -> bool:
        return True

    def reset(self, running: bool) -> bool:
        self.keys.clear()
        return True

    def pause(self, what: str) -> bool:
        self.paused = what
        return True

    def settle(self) -> None:
        pass

    def view(self) -> CacheView:
        keys = tuple((0, 1, length, key) for length, key in self.keys)
        requests = {
            label: RequestView(r.status, len(r.arrive.prompt), len(r.tokens), 0, 0, 0)  # type: ignore[arg-type]
            for label, r in self.requests.items()
        }
        return CacheView((), (), 0, keys, keys, {}, (), requests, (), ())

    def take_log(self) -> tuple[()]:
        return ()

    def take_stores(self) -> tuple[Store, ...]:
        stores, self.stores = tuple(self.stores), []
        return stores


class ToyTarget:
    info = TargetInfo(spec="toy")

    def supports(self, layout: Layout) -> str:
        return ""

    def start(self, layout: Layout, level: str = "scheduler") -> ToyServer:
        return ToyServer(layout)


def source_of(seed: int) -> RandomSource:
    return RandomSource(random.Random(seed))


def drive(source: Source, layout: Layout, features: Features = ALL_FEATURES) -> Iterator[tuple[Action, Execution]]:
    """Random actions and the end of a run; each action is applied before the next is drawn."""
    execution = Execution(ToyServer(layout), layout)
    generator = RunGenerator(source, layout, features)
    for _ in range(LENGTH):
        action = generator.next(execution)
        execution.apply(action)
        yield action, execution
    for action in settle_actions(execution):
        execution.apply(action)
        yield action, execution


def random_run(seed: int) -> Run:
    source = source_of(seed)
    layout = random_layout(source)
    return Run(layout=layout, actions=tuple(action for action, _ in drive(source, layout)))


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return [random_run(seed) for seed in range(RUNS)]


# ---- layouts ---------------------------------------------------------------------------------------------------------


def kinds(layout: Layout) -> list[str]:
    return [g.kind for g in layout.groups]


def mamba_block(layout: Layout) -> int:
    return max((g.block_size for g in layout.groups if g.kind == "mamba"), default=0)


def attention_blocks(layout: Layout) -> list[int]:
    return [g.block_size for g in layout.groups if g.is_attention]


def window_blocks(layout: Layout) -> list[int]:
    return [g.block_size for g in layout.groups if g.kind == "sliding_window"]


def connector(layout: Layout, **fields: object) -> bool:
    return layout.connector is not None and all(getattr(layout.connector, k) == v for k, v in fields.items())


def drafter(layout: Layout, method: str) -> bool:
    return layout.drafter is not None and layout.drafter.method == method


def flags(layout: Layout) -> tuple[int, int]:
    return sum(g.eagle for g in layout.groups), len(layout.groups)


LAYOUTS: dict[str, Callable[[Layout], bool]] = {
    "full attention": lambda x: "full" in kinds(x),
    "MLA": lambda x: "mla" in kinds(x),
    "sliding window": lambda x: "sliding_window" in kinds(x),
    "a window that ends inside a block": lambda x: any(g.window % g.block_size for g in x.groups),
    "a lone windowed group": lambda x: kinds(x) == ["sliding_window"],
    "chunked local": lambda x: "chunked_local" in kinds(x),
    "chunked local beside Mamba": lambda x: {"chunked_local", "mamba"} <= set(kinds(x)),
    "Mamba": lambda x: x.has_mamba,
    "Mamba alone": lambda x: set(kinds(x)) == {"mamba"},
    "several Mamba groups": lambda x: kinds(x).count("mamba") > 1,
    "Mamba groups that differ": lambda x: len({g.variant for g in x.groups if g.kind == "mamba"}) > 1,
    "full-attention groups that differ": lambda x: len({g for g in x.groups if g.keeps_whole_prefix}) > 1,
    "one group": lambda x: len(x.groups) == 1,
    "six groups": lambda x: len(x.groups) >= 6,
    "attention and Mamba blocks equal": lambda x: mamba_block(x) > 0 and set(attention_blocks(x)) == {mamba_block(x)},
    "attention below the Mamba block": lambda x: 0 < min(attention_blocks(x), default=99) < mamba_block(x),
    "fine hashes without a match unit": lambda x: x.partial_hits and x.match_unit is None,
    "R5.3: hash unit 2, full attention 2, Mamba 8": lambda x: (
        x.hash_block == 2 and mamba_block(x) == 8 and ("full", 2) in [(g.kind, g.block_size) for g in x.groups]
    ),
    "a windowed group whose block does not divide": lambda x: (
        x.has_mamba and any(w % mamba_block(x) and mamba_block(x) % w for w in window_blocks(x))
    ),
    "hash block 1 below all blocks": lambda x: x.hash_block == 1 < min(g.block_size for g in x.groups),
    "a match unit": lambda x: x.match_unit is not None,
    "a match unit that gives no partial hits": lambda x: x.hash_block < x.scheduler_block and not x.partial_hits,
    "partial hits": lambda x: x.partial_hits,
    "partial hits with EAGLE": lambda x: x.partial_hits and bool(x.eagle_groups),
    "the smallest block as chunk grid": lambda x: x.has_mamba and x.grid == "smallest",
    "DCP": lambda x: x.dcp == 2,
    "DCP with Mamba": lambda x: x.dcp == 2 and x.has_mamba,
    "eagle": lambda x: drafter(x, "eagle"),
    "eagle3": lambda x: drafter(x, "eagle3"),
    "mtp": lambda x: drafter(x, "mtp"),
    "dflash": lambda x: drafter(x, "dflash"),
    "dspark": lambda x: drafter(x, "dspark"),
    "draft_model": lambda x: drafter(x, "draft_model"),
    "ngram": lambda x: drafter(x, "ngram"),
    "several draft modules": lambda x: x.reprefillable > 0,
    "several draft modules with Mamba": lambda x: x.reprefillable > 0 and x.has_mamba,
    "no group marked": lambda x: bool(x.eagle_groups) and flags(x)[0] == 0,
    "one group of several marked": lambda x: flags(x)[0] == 1 < flags(x)[1],
    "some groups marked": lambda x: 1 < flags(x)[0] < flags(x)[1],
    "all groups marked": lambda x: flags(x)[0] == flags(x)[1] > 1,
    "speculative states": lambda x: any(g.speculative_blocks for g in x.groups),
    "dense retention": lambda x: x.retention == "dense",
    "retention of replay boundaries": lambda x: x.retention == 0,
    "a retention interval": lambda x: isinstance(x.retention, int) and x.retention > 0,
    "the release's retention": lambda x: x.retention == "release",
    "no connector": lambda x: x.connector is None,
    "a connector for both": lambda x: connector(x, role="both"),
    "a consumer": lambda x: connector(x, role="consumer"),
    "a producer": lambda x: connector(x, role="producer"),
    "a divergent connector with Mamba": lambda x: connector(x, divergent=True) and x.has_mamba,
    "failed loads fail the request": lambda x: connector(x, failure="fail"),
    "failed loads are recomputed": lambda x: connector(x, failure="recompute"),
    "failed loads told by request": lambda x: connector(x, reports="request"),
    "failed loads told by blocks": lambda x: connector(x, reports="blocks"),
    "a connector that repeats itself": lambda x: connector(x, duplicates=True),
    "one step in flight": lambda x: x.steps_in_flight == 1,
    "two steps in flight": lambda x: x.steps_in_flight == 2,
    "three steps in flight": lambda x: x.steps_in_flight == 3,
    "overlapping steps with drafts": lambda x: x.asynchronous and x.draft_tokens > 0,
    "overlapping steps with a consumer": lambda x: x.asynchronous and connector(x, role="consumer"),
    "the second worker generation": lambda x: x.worker_generation == 2,
    "zeroing": lambda x: x.zeroing,
    "events": lambda x: x.events,
    "priorities": lambda x: x.policy == "priority",
    "a watermark": lambda x: x.watermark > 0,
    "admission by first chunk": lambda x: not x.admit_whole,
    "a long-prefill threshold": lambda x: x.long_prefill_threshold > 0,
    "caching off": lambda x: not x.caching,
    "a budget below a Mamba block": lambda x: x.token_budget < mamba_block(x),
    "a budget below most prompts": lambda x: x.token_budget < x.max_model_len / 4,
    "a budget for everything": lambda x: x.token_budget >= x.max_model_len,
    "one request at a time": lambda x: x.max_requests == 1,
    "five requests at a time": lambda x: x.max_requests == 5,
    "a tight pool": lambda x: x.num_blocks == x.min_blocks,
    "a roomy pool": lambda x: x.num_blocks > x.min_blocks + 20,
    "short requests only": lambda x: x.max_model_len <= 30,
    "long requests": lambda x: x.max_model_len >= 90,
}


def test_a_thousand_random_layouts_are_valid() -> None:
    for seed in range(1000):
        layout = random_layout(source_of(seed))
        assert problems(layout) == [], (seed, layout)
        assert layout.num_blocks >= layout.min_blocks


@pytest.mark.parametrize("feature", LAYOUTS)
def test_every_feature_of_a_layout_is_drawn(runs: list[Run], feature: str) -> None:
    assert any(LAYOUTS[feature](run.layout) for run in runs)


OFF: dict[str, Callable[[Layout], bool]] = {
    "sliding_window": LAYOUTS["sliding window"],
    "chunked_local": LAYOUTS["chunked local"],
    "mamba": LAYOUTS["Mamba"],
    "dcp": LAYOUTS["DCP"],
    "drafter": lambda x: x.drafter is not None,
    "asynchronous": lambda x: x.asynchronous,
    "connector": lambda x: x.connector is not None,
    "divergent": lambda x: connector(x, divergent=True),
    "reports_requests": LAYOUTS["failed loads told by request"],
    "duplicates": LAYOUTS["a connector that repeats itself"],
    "events": LAYOUTS["events"],
    "priorities": LAYOUTS["priorities"],
    "retention": lambda x: x.retention != "dense",
    "smallest_grid": lambda x: x.grid == "smallest",
}


@pytest.mark.parametrize("feature", OFF)
def test_a_feature_that_is_off_is_not_drawn(feature: str) -> None:
    features = Features(**{feature: False})
    assert not any(OFF[feature](random_layout(source_of(seed), features)) for seed in range(400))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_layouts_drawn_by_hypothesis_are_valid(data: st.DataObject) -> None:
    assert problems(random_layout(HypothesisSource(data.draw))) == []


def test_hypothesis_shrinks_a_layout_to_a_plain_one() -> None:
    @st.composite
    def layouts(draw: Callable[..., int]) -> Layout:
        return random_layout(HypothesisSource(draw))

    quick = settings(max_examples=100, phases=[Phase.generate, Phase.shrink], database=None)
    plainest = find(layouts(), lambda layout: True, settings=quick)
    assert kinds(plainest) == ["full"]
    assert (plainest.drafter, plainest.connector, plainest.steps_in_flight) == (None, None, 1)


# ---- actions ---------------------------------------------------------------------------------------------------------


def arrivals(run: Run) -> list[Arrive]:
    return [a for a in run.actions if isinstance(a, Arrive)]


def is_near_miss(one: Arrive, other: Arrive) -> bool:
    if len(one.prompt) != len(other.prompt):
        return False
    return sum(a != b for a, b in zip(one.prompt, other.prompt, strict=True)) == 1


def shared(one: Arrive, other: Arrive) -> int:
    pairs = enumerate(zip(one.prompt, other.prompt, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one.prompt), len(other.prompt)))


def pairs(run: Run) -> Iterator[tuple[Arrive, Arrive]]:
    """Every request with each of the next four."""
    those = arrivals(run)
    return ((those[i], b) for i in range(len(those)) for b in those[i + 1 : i + 5])


def any_arrival(test: Callable[[Arrive, Layout], bool]) -> Callable[[Run], bool]:
    return lambda run: any(test(a, run.layout) for a in arrivals(run))


def any_action(kind: type, test: Callable[..., bool]) -> Callable[[Run], bool]:
    return lambda run: any(isinstance(a, kind) and test(a) for a in run.actions)


def any_answer(test: Callable[[Answer, Layout], bool]) -> Callable[[Run], bool]:
    return any_arrival(lambda a, layout: any(test(answer, layout) for answer in a.answers))


def has_burst(run: Run) -> bool:
    return any(
        isinstance(a, Arrive) and isinstance(b, Arrive) and shared(a, b) >= run.layout.granularity
        for a, b in pairwise(run.actions)
    )


def has_a_b_a(run: Run) -> bool:
    those = arrivals(run)
    return any(
        a.prompt == c.prompt and shared(a, b) < run.layout.hash_block
        for a, b, c in zip(those, those[1:], those[2:], strict=False)
    )


def has_four_siblings(run: Run) -> bool:
    g = run.layout.granularity
    heads = [a.prompt[:g] for a in arrivals(run) if len(a.prompt) > g]
    whole = {a.prompt for a in arrivals(run)}
    return any(heads.count(head) >= 4 and sum(p[:g] == head for p in whole) >= 4 for head in set(heads))


def has_long_pause(run: Run) -> bool:
    whats = [a.what for a in run.actions if isinstance(a, Pause)]
    return "all" in whats and whats[-1] == "none"


def at(distance: int) -> Callable[[Arrive, Layout], bool]:
    return lambda a, layout: len(a.prompt) > 2 and (len(a.prompt) - distance) % layout.scheduler_block == 0


RUN_FEATURES: dict[str, Callable[[Run], bool]] = {
    "a salt": any_arrival(lambda a, _: bool(a.salt)),
    "an adapter": any_arrival(lambda a, _: a.adapter > 1),
    "no reading of the cache": any_arrival(lambda a, _: a.skip_reading),
    "no reading of the cache, and a load": any_arrival(lambda a, _: a.skip_reading and bool(a.answers)),
    "a stop token": any_arrival(lambda a, _: a.stop is not None),
    "a priority": any_arrival(lambda a, layout: a.priority > 1 and layout.policy == "priority"),
    "a session": any_arrival(lambda a, _: a.session),
    "a store": any_arrival(lambda a, _: a.store),
    "one token": any_arrival(lambda a, _: a.max_tokens == 1),
    "as many tokens as there is room for": any_arrival(
        lambda a, layout: len(a.prompt) + a.max_tokens == layout.max_model_len and a.max_tokens > 14
    ),
    "the longest prompt": any_arrival(lambda a, layout: len(a.prompt) == layout.max_model_len - 1),
    "a prompt at a scheduler block": any_arrival(at(0)),
    "a prompt just below a scheduler block": any_arrival(at(-1)),
    "a prompt just above a scheduler block": any_arrival(at(1)),
    "a prompt with a sampled answer in it": any_arrival(
        lambda a, _: a.prompt[0] not in SAMPLED_TOKENS and any(t in SAMPLED_TOKENS for t in a.prompt)
    ),
    "a repeat": lambda run: any(a.prompt == b.prompt for a, b in pairs(run)),
    "A, B, A": has_a_b_a,
    "a near miss": lambda run: any(is_near_miss(a, b) for a, b in pairs(run)),
    "an extension": lambda run: any(
        shared(a, b) == len(a.prompt) < len(b.prompt) and len(a.prompt) > 4 for a, b in pairs(run)
    ),
    "four siblings": has_four_siblings,
    "a burst that shares a prefix": has_burst,
    "the same prompt under another salt": lambda run: any(
        a.salt != b.salt and shared(a, b) >= run.layout.granularity for a, b in pairs(run)
    ),
    "asked later": any_answer(lambda x, _: x.holds is None),
    "always asked later": any_arrival(lambda a, _: bool(a.answers) and a.answers[-1].holds is None),
    "nothing outside": any_answer(lambda x, _: x.holds == 0),
    "a synchronous load": any_answer(lambda x, _: bool(x.holds) and not x.asynchronous),
    "an asynchronous load": any_answer(lambda x, _: bool(x.holds) and x.asynchronous),
    "a load inside a scheduler block": any_answer(lambda x, layout: bool((x.holds or 0) % layout.scheduler_block)),
    "a load that fails": any_answer(lambda x, _: x.arrives is not None),
    "a load of which nothing arrives": any_answer(lambda x, _: x.arrives == 0),
    "several answers": any_arrival(lambda a, _: len(a.answers) >= 3),
    "a session goes on": any_action(Extend, lambda a: bool(a.prompt)),
    "a session ends": any_action(Extend, lambda a: not a.prompt),
    "a load is over": any_action(Transfer, lambda a: a.what == "load" and not a.again),
    "a load is reported twice": any_action(Transfer, lambda a: a.again),
    "a store is over": any_action(Transfer, lambda a: a.what == "store"),
    "drafts accepted": any_action(Complete, lambda a: bool(a.accepted)),
    "fewer drafts proposed": any_action(Complete, lambda a: bool(a.proposed)),
    "an eviction from a later group": any_action(Evict, lambda a: a.group > 0),
    "a reset with running requests": any_action(Reset, lambda a: a.running),
    "a reset without": any_action(Reset, lambda a: not a.running),
    "a pause for new requests": any_action(Pause, lambda a: a.what == "new"),
    "a pause for all, that ends": has_long_pause,
    "no abort in the whole run": lambda run: not any(kind_of(a) == "abort" for a in run.actions),
    "many aborts": lambda run: [kind_of(a) for a in run.actions].count("abort") >= 5,
    "many evictions": lambda run: [kind_of(a) for a in run.actions].count("evict") >= 5,
}


@pytest.mark.parametrize("kind", ACTION_KINDS)
def test_every_kind_of_action_is_drawn(runs: list[Run], kind: str) -> None:
    assert any(kind_of(action) == kind for run in runs for action in run.actions)


@pytest.mark.parametrize("feature", RUN_FEATURES)
def test_every_feature_of_a_run_is_drawn(runs: list[Run], feature: str) -> None:
    assert any(RUN_FEATURES[feature](run) for run in runs)


def test_in_some_runs_one_group_alone_loses_keys_and_in_others_all_do() -> None:
    layout = layout_of(full(2), window(2, 8), num_blocks=40)
    execution = Execution(load_target("model").start(layout), layout)
    for action in (Arrive(label="a", prompt=tuple(range(1, 21))), Schedule()):
        execution.apply(action)
    shares = []
    for seed in range(60):
        generator = RunGenerator(source_of(seed), layout)
        lost = [action.group for _ in range(40) if isinstance(action := generator.evict(execution), Evict)]
        shares.append(lost.count(0) / len(lost))
    assert sum(share < 0.2 for share in shares) > 5
    assert sum(share > 0.8 for share in shares) > 5
    assert sum(0.3 < share < 0.7 for share in shares) > 20


def test_steps_dominate(runs: list[Run]) -> None:
    drawn = [kind_of(action) for run in runs for action in run.actions[:LENGTH]]
    steps = sum(kind in ("schedule", "complete") for kind in drawn)
    assert 0.55 < steps / len(drawn) < 0.8


def test_the_same_seed_gives_the_same_run() -> None:
    assert [random_run(seed) for seed in range(30)] == [random_run(seed) for seed in range(30)]
    assert random_run(1) != random_run(2)


def test_labels_are_never_used_twice(runs: list[Run]) -> None:
    for run in runs:
        labels = [a.label for a in arrivals(run)]
        assert len(labels) == len(set(labels))


def test_every_prompt_is_one_that_a_server_takes(runs: list[Run]) -> None:
    for run in runs:
        assert all(0 < len(a.prompt) < run.layout.max_model_len and a.max_tokens > 0 for a in arrivals(run))


def test_sessions_are_not_combined_with_a_drafter_on_mamba_layouts(runs: list[Run]) -> None:
    for run in runs:
        if run.layout.drafter and run.layout.has_mamba:
            assert not any(a.session for a in arrivals(run))


@pytest.mark.parametrize("feature", ["sessions", "stores", "failed_loads", "resets", "pauses", "evictions"])
def test_a_feature_of_runs_that_is_off_is_not_drawn(feature: str) -> None:
    features = Features(**{feature: False})
    wanted: dict[str, Callable[[Action], bool]] = {
        "sessions": lambda a: isinstance(a, Extend) or (isinstance(a, Arrive) and a.session),
        "stores": lambda a: isinstance(a, Arrive) and a.store,
        "failed_loads": lambda a: isinstance(a, Arrive) and any(x.arrives is not None for x in a.answers),
        "resets": lambda a: isinstance(a, Reset),
        "pauses": lambda a: isinstance(a, Pause) and a.what != "none",
        "evictions": lambda a: isinstance(a, Evict),
    }
    for seed in range(60):
        source = source_of(seed)
        assert not any(wanted[feature](a) for a, _ in drive(source, random_layout(source, features), features))


def test_evictions_name_keys_that_exist() -> None:
    named = found = 0
    for seed in range(200):
        source = source_of(seed)
        layout = random_layout(source)
        execution = Execution(ToyServer(layout), layout)
        generator = RunGenerator(source, layout)
        for _ in range(LENGTH):
            action = generator.next(execution)
            if isinstance(action, Evict):
                named += 1
                key = execution.shadow.prefixes[action.label].id_of(action.prefix)
                found += execution.view is not None and (0, 1, action.prefix, key) in execution.view.keys
            execution.apply(action)
    assert found > 0.8 * named > 100


def thinned_run(seed: int) -> tuple[Run, int]:
    """A run that asks for one text again and again, and how many of its evictions named a key that was there."""
    source, layout = source_of(seed), layout_of(full(2), window(2, 8), num_blocks=60, token_budget=8)
    execution = Execution(load_target("model").start(layout), layout)
    generator, actions, found = ThinnedGenerator(source, layout), [], 0
    for _ in range(LENGTH):
        action = generator.next(execution)
        if isinstance(action, Evict) and execution.view is not None:
            key = execution.shadow.prefixes[action.label].id_of(action.prefix)
            found += any(
                (group, length, k) == (action.group, action.prefix, key) for group, _, length, k in execution.view.keys
            )
        execution.apply(action)
        actions.append(action)
    return Run(layout=layout, actions=tuple(actions)), found


def test_thinned_runs_ask_for_one_text_again_after_a_few_of_its_keys_are_gone() -> None:
    evictions = named = aborts = 0
    for seed in range(20):
        run, found = thinned_run(seed)
        asked = arrivals(run)
        longest = max((a.prompt for a in asked), key=len)
        assert all(a.prompt == longest[: len(a.prompt)] for a in asked)
        assert all(run.layout.max_model_len // 2 - 1 <= len(a.prompt) < run.layout.max_model_len for a in asked)
        aborts += sum(isinstance(action, Abort) for action in run.actions)
        evictions += sum(isinstance(action, Evict) for action in run.actions)
        named += found
    assert named > 0.8 * evictions > 40
    assert aborts > 10


# ---- the end of a run ------------------------------------------------------------------------------------------------


def test_a_settled_run_has_nothing_left() -> None:
    for seed in range(100):
        source = source_of(seed)
        *_, (_, execution) = drive(source, random_layout(source))
        assert execution.view is not None
        assert not execution.view.requests, seed
        assert not execution.in_flight
        assert not execution.shadow.loads
        assert not execution.stores


def test_a_server_that_stalls_does_not_settle_for_ever() -> None:
    server = ToyServer(SMALL)
    execution = Execution(server, SMALL)
    execution.apply(Arrive(label="r0", prompt=(5, 6)))
    server.pause = lambda what: False  # type: ignore[method-assign]
    server.paused = "all"
    assert len([execution.apply(action) for action in settle_actions(execution)]) < 12


def test_a_server_that_works_for_ever_is_left_after_the_limit() -> None:
    server = ToyServer(SMALL)
    execution = Execution(server, SMALL)
    execution.apply(Arrive(label="r0", prompt=(5, 6), max_tokens=30))
    assert len([execution.apply(action) for action in settle_actions(execution, limit=7)]) == 2 + 7 * 2


# ---- sources and lengths ---------------------------------------------------------------------------------------------


def test_random_choices_cover_their_range() -> None:
    source = source_of(0)
    assert {source.integer(2, 5) for _ in range(200)} == {2, 3, 4, 5}
    assert {source.choose("abc") for _ in range(200)} == set("abc")
    assert {source.weighted((("a", 1), ("b", 0), ("c", 3))) for _ in range(200)} == {"a", "c"}
    assert 100 < sum(source.chance(20) for _ in range(1000)) < 300
    assert not any(source.chance(0) for _ in range(100))
    assert all(source.chance(100) for _ in range(100))


@given(st.data())
def test_choices_drawn_by_hypothesis_are_in_range(data: st.DataObject) -> None:
    source = HypothesisSource(data.draw)
    assert 2 <= source.integer(2, 5) <= 5
    assert source.choose("abc") in "abc"
    assert source.weighted((("a", 1), ("b", 0), ("c", 3))) in "ac"
    assert not source.chance(0)
    assert source.chance(100)


def test_the_simplest_choices_come_first() -> None:
    source = HypothesisSource(lambda strategy: 0)
    assert source.choose("abc") == "a"
    assert source.weighted((("a", 1), ("b", 5))) == "a"
    assert not source.chance(99)


def test_lengths_stay_in_range_and_prefer_boundaries() -> None:
    lengths = Lengths(source_of(0), SMALL)
    drawn = [lengths.between(3, 30) for _ in range(2000)]
    assert set(drawn) == set(range(3, 31))
    assert sum(length % 4 == 0 for length in drawn) > 500
    assert lengths.units == [4, 16]


# ---- a real release --------------------------------------------------------------------------------------------------

REAL = """
    import json, logging, random, sys
    from collections import Counter

    from kvcheck.engines.execution import Execution
    from kvcheck.targets.failures import HarnessError
    from kvcheck.engines.random_layouts import random_layout
    from kvcheck.engines.random_runs import RunGenerator, settle_actions
    from kvcheck.engines.source import RandomSource
    from kvcheck.targets.base import UnsupportedLayout
    from kvcheck.targets.loading import load_target

    logging.disable(logging.CRITICAL)
    target, seen = load_target("vllm==0.28.0"), Counter()

    def notice(moment):
        plan = moment.observation.plan
        if plan is not None:
            seen["hit"] += any(r.kind != "running" and r.start for r in plan.requests)
            seen["copy"] += len(plan.copies)
            seen["preempted"] += len(plan.preempted)
            seen["load"] += sum(not load.asynchronous for load in plan.loads)
            seen["asynchronous load"] += sum(load.asynchronous for load in plan.loads)
        seen["store"] += len(moment.observation.stores)
        seen["skipped"] += bool(moment.observation.skipped)
        seen["actions"] += 1

    for seed in range(150):
        source = RandomSource(random.Random(seed))
        layout = random_layout(source)
        try:
            execution = Execution(target.start(layout), layout)
        except UnsupportedLayout:
            seen["unsupported"] += 1
            continue
        generator = RunGenerator(source, layout)
        try:
            for _ in range(60):
                notice(execution.apply(generator.next(execution)))
            for action in settle_actions(execution):
                notice(execution.apply(action))
        except HarnessError:
            seen["harness error"] += 1
        seen["died"] += execution.dead
        seen["finished"] += not execution.dead and not execution.view.requests
        seen["runs"] += 1
    print(json.dumps(seen))
"""


@pytest.mark.release
def test_random_runs_of_a_real_server_finish_and_come_to_interesting_situations() -> None:
    release("0.28.0")
    seen = json.loads(output_of(REAL))
    assert not seen.get("harness error")
    assert seen["runs"] > 100
    assert seen["finished"] > 0.75 * seen["runs"]  # others come to what this release does wrong: most of them die
    assert seen["finished"] + seen["died"] > 0.9 * seen["runs"]
    assert seen["skipped"] < 0.1 * seen["actions"]
    for situation in ("hit", "copy", "preempted", "load", "asynchronous load", "store"):
        assert seen[situation] > 10, situation


MACHINE = """
    import logging
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis.stateful import run_state_machine_as_test

    from kvcheck.engines.judging import judge_run
    from kvcheck.machine import ViolationFound, machine_for
    from kvcheck.targets.loading import load_target

    logging.disable(logging.CRITICAL)
    target = load_target("vllm==0.28.0")
    quick = settings(
        max_examples=12, phases=[Phase.generate], derandomize=True, database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(machine_for(target), settings=quick)
        print("passed")
    except ViolationFound as found:
        again = judge_run(target, found.run).violations
        assert {v.signature for v in again} == {v.signature for v in found.violations}
        print("found")
"""


@pytest.mark.release
def test_the_state_machine_runs_and_what_it_finds_replays() -> None:
    release("0.28.0")
    assert output_of(MACHINE).split()[-1] in ("passed", "found")
