"""The model's scheduler: what each pass runs, who gives way, what becomes of loads, sessions and steps in flight."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import full, layout_of, mamba, replace, window

from kvcheck.engines.execution import Execution
from kvcheck.model.actions import (
    Abort,
    Action,
    Answer,
    Arrive,
    Complete,
    Extend,
    Pause,
    Reset,
    Schedule,
    Transfer,
)
from kvcheck.model.layout import Connector, Drafter, Layout, validate
from kvcheck.model.observation import CacheView, Observation, RequestView, StepPlan
from kvcheck.targets.loading import load_target

EAGLE = Drafter(method="eagle3", tokens=1)
MTP = Drafter(method="mtp", tokens=3, modules=3)


class Server(Execution):
    """A server of the model; whatever is asked of it happens."""

    def __init__(self, layout: Layout, spec: str = "model") -> None:
        super().__init__(load_target(spec).start(validate(layout)), layout)

    def do(self, *actions: Action) -> Observation:
        """What the last of these showed."""
        for action in actions:
            seen = self.apply(action).observation
            assert (seen.skipped, seen.failure) == ("", None)
        return seen

    def arrive(self, label: str, tokens: int, first: int = 1, **fields: Any) -> None:
        """A request; those with the same first token have the same prompt, as far as it goes."""
        self.do(Arrive(label=label, prompt=(first, *range(2, tokens + 1)), **fields))

    def plan(self) -> StepPlan:
        plan = self.do(Schedule()).plan
        assert plan
        return plan

    def step(self) -> dict[str, tuple[int, int]]:
        """Plan a step and process it: from where to where each request ran."""
        ran = {item.label: (item.start, item.start + item.count) for item in self.plan().requests}
        self.do(Complete())
        return ran

    def chunks(self, label: str) -> list[int]:
        """Run until the prompt is computed: where the request began, and where each chunk ended."""
        ends: list[int] = []
        while not ends or ends[-1] < len(self.arrivals[label].prompt):
            start, end = self.step()[label]
            ends += [end] if ends else [start, end]
        return ends

    @property
    def cache(self) -> CacheView:
        assert self.view
        return self.view

    def request(self, label: str) -> RequestView:
        return self.cache.requests[label]

    def where(self, label: str) -> tuple[str, int]:
        """What a request does, and how many of its tokens are computed."""
        return self.request(label).status, self.request(label).computed

    def lengths(self, group: int = 0) -> list[int]:
        """What can be found in a group."""
        return sorted(length for index, _, length, _ in self.cache.keys if index == group)


# ---- chunks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "prompt", "ends"),
    [
        ({"token_budget": 32}, 10, [10]),
        ({"token_budget": 4}, 10, [4, 8, 10]),
        ({"long_prefill_threshold": 3}, 10, [3, 6, 9, 10]),
        ({"token_budget": 8, "drafter": MTP}, 9, [6, 9]),
        ({"token_budget": 8, "drafter": MTP}, 11, [8, 11]),
    ],
)
def test_a_prefill_runs_in_chunks(settings: dict[str, Any], prompt: int, ends: list[int]) -> None:
    server = Server(layout_of(full(4), num_blocks=20, **settings))
    server.arrive("a", prompt)
    assert server.chunks("a") == [0, *ends]


@pytest.mark.parametrize(
    ("settings", "prompt", "ends"),
    [
        ({}, 16, [16]),
        ({}, 17, [16, 17]),
        ({}, 22, [16, 22]),
        ({}, 23, [16, 22, 23]),
        ({"match_unit": 1}, 23, [16, 23]),
        ({"drafter": EAGLE}, 23, [8, 22, 23]),
        ({"token_budget": 12}, 23, [8, 16, 22, 23]),
        ({"token_budget": 6}, 23, [6, 8, 14, 16, 22, 23]),
        ({"long_prefill_threshold": 6}, 23, [6, 8, 14, 16, 22, 23]),
    ],
)
def test_beside_mamba_chunks_end_where_a_state_is_worth_keeping(
    settings: dict[str, Any], prompt: int, ends: list[int]
) -> None:
    drafts = 1 if "drafter" in settings else 0
    server = Server(layout_of(full(2), mamba(8, drafts), num_blocks=30, **settings))
    server.arrive("a", prompt)
    assert server.chunks("a") == [0, *ends]


def test_who_is_left_too_little_for_a_mamba_block_waits_for_the_next_pass() -> None:
    server = Server(layout_of(full(2), mamba(8), num_blocks=30, token_budget=8))
    server.arrive("a", 5)
    server.arrive("b", 12, first=9)
    assert [server.step() for _ in range(3)] == [{"a": (0, 4)}, {"a": (4, 5)}, {"b": (0, 8)}]


def test_running_requests_come_first_and_share_the_budget_with_new_ones() -> None:
    server = Server(layout_of(full(2), num_blocks=20, token_budget=6))
    server.arrive("a", 4, max_tokens=3)
    server.arrive("b", 8, first=9)
    ran = [server.step() for _ in range(3)]
    assert ran == [{"a": (0, 4), "b": (0, 2)}, {"a": (4, 5), "b": (2, 7)}, {"a": (5, 6), "b": (7, 8)}]


def test_a_junction_is_kept_by_the_second_and_hit_by_the_third_sibling() -> None:
    server = Server(layout_of(full(4), mamba(4), num_blocks=30))
    chunks = []
    for label, own in (("a", 50), ("b", 60), ("c", 70)):
        server.do(Arrive(label=label, prompt=(*range(1, 13), *range(own, own + 9))))
        chunks.append(server.chunks(label))
    assert chunks == [[0, 20, 21], [0, 12, 20, 21], [12, 20, 21]]


REPEATS = {None: {16: 0, 17: 16, 22: 16, 24: 0, 25: 24, 30: 24}, EAGLE: {16: 0, 17: 8, 22: 8, 24: 0, 25: 16, 30: 16}}
"""R11.3: what the first repeat of a prompt hits, by drafter and length."""


@pytest.mark.parametrize("match_unit", [2, 8])
@pytest.mark.parametrize("drafter", REPEATS)
@pytest.mark.parametrize("spec", ["model", "model@0.28.0"])
def test_repeats_hit_what_the_table_says(spec: str, drafter: Drafter | None, match_unit: int) -> None:
    layout = layout_of(full(8), mamba(8, 1 if drafter else 0), num_blocks=30, match_unit=match_unit, drafter=drafter)
    hits = {}
    for prompt in REPEATS[drafter]:
        server = Server(layout, spec)
        server.arrive("a", prompt)
        server.chunks("a")
        server.arrive("b", prompt)
        hits[prompt] = server.chunks("b")[0]
    assert hits == REPEATS[drafter]


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "stays", "victim", "again"),
    [
        ("fcfs", "a", "b", [{"b": (2, 5), "c": (0, 1)}, {"b": (5, 6)}, {"b": (6, 7)}]),
        ("priority", "b", "a", [{"a": (2, 6), "c": (0, 1)}, {"a": (6, 7)}]),
    ],
)
def test_when_memory_runs_out_the_last_or_the_lowest_request_gives_way(
    policy: str, stays: str, victim: str, again: list[dict[str, tuple[int, int]]]
) -> None:
    server = Server(layout_of(full(2), num_blocks=6, max_model_len=8, policy=policy))
    server.arrive("a", 4, max_tokens=4, priority=2)
    assert server.step() == {"a": (0, 4)}
    server.arrive("b", 4, first=9, max_tokens=4, priority=1)
    assert server.step() == {"a": (4, 5), "b": (0, 4)}
    server.arrive("c", 1, first=8, priority=3)
    plan = server.plan()
    assert ([item.label for item in plan.requests], plan.preempted) == ([stays], (victim,))
    assert (server.where(victim), server.cache.waiting) == (("preempted", 0), (victim, "c"))
    server.do(Complete())
    later = [server.step() for _ in range(5)]
    assert [step for step in later if victim in step] == again
    assert later[-1] == {}


def test_a_request_is_admitted_if_its_whole_sequence_fits_and_waits_else() -> None:
    server = Server(layout_of(full(2), num_blocks=6, max_model_len=8, token_budget=4))
    server.arrive("a", 4, max_tokens=2)
    server.arrive("b", 7, first=9)
    assert [server.step() for _ in range(3)] == [{"a": (0, 4)}, {"a": (4, 5)}, {"b": (0, 4)}]


@pytest.mark.parametrize(
    ("watermark", "ran"),
    [
        (0.0, [{"a": (0, 4)}, {"a": (4, 5), "b": (0, 12)}, {}]),
        (0.2, [{"a": (0, 4)}, {"a": (4, 5)}, {"b": (0, 12)}]),
    ],
)
def test_the_watermark_is_kept_free_while_others_run_and_only_then(
    watermark: float, ran: list[dict[str, tuple[int, int]]]
) -> None:
    server = Server(layout_of(full(2), num_blocks=11, max_model_len=16, watermark=watermark))
    server.arrive("a", 4, max_tokens=2)
    first = server.step()
    server.arrive("b", 12, first=9)  # it needs six blocks; of ten the other has three
    assert [first, server.step(), server.step()] == ran


def test_who_hits_inside_a_block_writes_to_a_copy() -> None:
    server = Server(layout_of(full(4), mamba(4), num_blocks=30, match_unit=2))
    server.arrive("a", 7)
    assert server.chunks("a") == [0, 4, 6, 7]
    found = {group: block for group, block, length, _ in server.cache.keys if length == 6}
    server.arrive("b", 7)
    plan = server.plan()
    (item,) = plan.requests
    sources = [source for source, _ in plan.copies]
    assert (item.start, [table[1] for table in item.tables]) == (6, [target for _, target in plan.copies])
    assert sources == [found[0], found[1]]
    assert [server.cache.refs[block] for copy in plan.copies for block in copy] == [0, 1, 0, 1]


def test_a_session_that_waits_with_blocks_gives_them_back_when_nobody_else_can_run() -> None:
    server = Server(layout_of(full(2), num_blocks=9, max_model_len=16))
    for label, first in (("a", 1), ("b", 9)):
        server.arrive(label, 8, first=first, session=True)
    assert server.step() == {"a": (0, 8), "b": (0, 8)}
    server.do(*[Extend(label=label, prompt=(7, 7, 7, 7)) for label in ("a", "b")])
    assert server.cache.free_count == 0
    assert [server.step() for _ in range(2)] == [{}, {"a": (8, 12)}]
    assert server.where("b") == ("waiting", 0)


# ---- drafts ----------------------------------------------------------------------------------------------------------

DRAFTING = layout_of(full(2), num_blocks=33, drafter=Drafter(method="mtp", tokens=2))


@pytest.mark.parametrize(
    ("method", "ran"),
    [
        ("mtp", [{"a": (0, 8)}, {"a": (8, 10), "b": (0, 6)}]),
        ("draft_model", [{"a": (0, 7)}, {"a": (7, 10), "b": (0, 3)}]),
        ("dflash", [{"a": (0, 6)}, {"a": (6, 10)}]),
    ],
)
def test_drafters_take_places_of_the_budget(method: Any, ran: list[dict[str, tuple[int, int]]]) -> None:
    server = Server(replace(DRAFTING, token_budget=8, drafter=Drafter(method=method, tokens=2)))
    server.arrive("a", 10)
    server.arrive("b", 10, first=9)
    assert [server.step(), server.step()] == ran


def test_rejected_drafts_are_not_computed() -> None:
    server = Server(DRAFTING)
    server.arrive("a", 4, max_tokens=9)
    ran = []
    for accepted in (0, 1, 2, 0):
        (item,) = server.plan().requests
        server.do(Complete(accepted={"a": accepted}))
        ran.append((item.start, item.count, item.drafts, server.request("a").known))
    assert ran == [(0, 4, 0, 5), (4, 3, 2, 7), (6, 3, 2, 10), (9, 3, 2, 11)]


def test_drafts_that_overlapping_steps_verify_are_taken_back_when_they_are_rejected() -> None:
    server = Server(replace(DRAFTING, steps_in_flight=2))
    server.arrive("a", 4, max_tokens=9)
    server.do(Schedule(), Schedule())
    assert (server.where("a"), server.request("a").placeholders) == (("running", 7), 4)
    server.do(Complete(), Complete(accepted={"a": 1}))
    assert (server.where("a"), server.request("a").known, server.request("a").placeholders) == (("running", 6), 7, 0)


def test_nothing_runs_past_the_longest_request() -> None:
    server = Server(replace(DRAFTING, max_model_len=8))
    server.arrive("a", 4, max_tokens=9)
    ran = []
    for _ in range(3):
        ran += [(item.start, item.count, item.drafts) for item in server.plan().requests]
        server.do(Complete(accepted={"a": 1}))
    assert ran == [(0, 4, 0), (4, 3, 2), (6, 1, 0)]
    assert server.cache.requests == {}


def test_a_prompt_of_one_token_beside_running_requests_is_padded_to_a_speculative_step() -> None:
    server = Server(DRAFTING)
    server.arrive("a", 1, max_tokens=9)
    assert [(item.count, item.drafts) for item in server.plan().requests] == [(1, 0)]
    server.do(Complete())
    server.arrive("b", 1, first=9)
    assert [(item.label, item.count, item.drafts) for item in server.plan().requests] == [("a", 3, 2), ("b", 3, 2)]


@pytest.mark.parametrize(("groups", "computed"), [((full(2),), 5), ((full(2), mamba(4, 2)), 0)])
def test_drafts_accepted_behind_the_end_of_a_turn_do_not_count(groups: tuple[Any, ...], computed: int) -> None:
    server = Server(layout_of(*groups, num_blocks=40, drafter=DRAFTING.drafter))
    server.arrive("a", 4, max_tokens=2, session=True)
    server.chunks("a")
    server.do(Schedule(), Complete(accepted={"a": 2}))
    assert (server.where("a"), server.request("a").known) == (("idle", computed), 6)


# ---- steps in flight -------------------------------------------------------------------------------------------------

OVERLAPPING = layout_of(full(2), num_blocks=17, steps_in_flight=2)


def test_a_step_is_planned_before_the_output_of_the_one_before_it_is_known() -> None:
    server = Server(OVERLAPPING)
    server.arrive("a", 4, max_tokens=3)
    plans = [server.plan(), server.plan()]
    assert [(item.start, item.count, item.known) for plan in plans for item in plan.requests] == [(0, 4, 4), (4, 1, 5)]
    assert (server.request("a").in_flight, server.request("a").placeholders, server.request("a").known) == (5, 2, 4)
    server.do(Complete())
    assert (server.request("a").in_flight, server.request("a").placeholders, server.request("a").known) == (1, 1, 5)
    server.plan()
    assert server.apply(Schedule()).observation.skipped
    assert server.do(Complete(), Complete()).processed.ended == ("a",)  # type: ignore[union-attr]
    assert server.plan().requests == ()


@pytest.mark.parametrize(
    ("connector", "fault", "fenced"),
    [(None, "", 0), (Connector(), "", 2), (Connector(role="producer"), "", 0), (Connector(), "+frees-not-fenced", 0)],
)
def test_beside_a_connector_that_loads_frees_wait_for_the_steps_in_flight(
    connector: Connector | None, fault: str, fenced: int
) -> None:
    server = Server(replace(OVERLAPPING, connector=connector), "model" + fault)
    server.arrive("a", 4, max_tokens=9)
    server.do(Schedule(), Abort(label="a"))
    assert (server.cache.deferred, server.cache.free_count) == (fenced, 16 - fenced)
    server.do(Complete())
    assert (server.cache.deferred, server.cache.free_count) == (0, 16)


def test_both_ends_of_a_copy_are_fenced_until_its_step_is_processed() -> None:
    groups = (full(4), mamba(4))
    server = Server(layout_of(*groups, num_blocks=30, match_unit=2, steps_in_flight=2, connector=Connector()))
    server.arrive("a", 7)
    server.chunks("a")
    server.arrive("b", 7)
    plan = server.plan()
    ends = [block for copy in plan.copies for block in copy]
    assert [item.start for item in plan.requests] == [6]
    server.do(Abort(label="b"))
    assert (server.cache.deferred, [server.cache.refs[block] for block in ends]) == (8, [1, 2, 1, 2])
    server.do(Complete())
    assert (server.cache.deferred, [server.cache.refs[block] for block in ends]) == (0, [0, 0, 0, 0])


def test_fences_open_in_the_order_of_the_steps() -> None:
    server = Server(replace(OVERLAPPING, connector=Connector()))
    server.arrive("a", 4, max_tokens=9)
    server.arrive("b", 6, max_tokens=9)
    server.do(Schedule(), Abort(label="a"), Schedule(), Abort(label="b"))
    deferred = [server.cache.deferred, *(server.do(Complete()).view.deferred for _ in range(2))]  # type: ignore[union-attr]
    assert deferred == [6, 4, 0]


def test_a_window_moves_on_processed_tokens_not_on_planned_ones() -> None:
    server = Server(layout_of(window(2, 3), full(4), num_blocks=40, token_budget=4, steps_in_flight=2))
    server.arrive("a", 12)
    tables = []
    for action in (Schedule(), Schedule(), Complete(), Schedule(), Complete(), Complete(), Schedule()):
        server.do(action)
        tables.append([bool(block) for block in server.cache.tables.get("a", ((),))[0]])
    assert tables[1] == [True] * 4
    assert tables[3] == [False] + [True] * 5  # four tokens are processed: the next sees two more
    assert tables[4] == tables[3]


# ---- loads -----------------------------------------------------------------------------------------------------------

LOADING = layout_of(full(2), num_blocks=17, connector=Connector(duplicates=True))
ASYNCHRONOUS = Answer(holds=8, asynchronous=True)


def loading(layout: Layout = LOADING, tokens: int = 10, spec: str = "model", **answer: Any) -> Server:
    """A server whose request ``a`` waits for a load of eight tokens; asked again, there is none."""
    server = Server(layout, spec)
    server.arrive("a", tokens, max_tokens=2, answers=(replace(ASYNCHRONOUS, **answer), Answer()))
    plan = server.plan()
    assert not plan.requests
    assert [(load.label, load.local, load.asynchronous) for load in plan.loads] == [("a", 0, True)]
    server.do(Complete())
    return server


def test_a_load_before_the_step_counts_as_computed_in_it() -> None:
    server = Server(LOADING)
    server.arrive("a", 10, answers=(replace(ASYNCHRONOUS, asynchronous=False),))
    assert server.step() == {"a": (8, 10)}
    assert server.lengths() == [2, 4, 6, 8, 10]


def test_an_asynchronous_load_holds_blocks_without_keys_until_it_is_reported() -> None:
    server = loading()
    assert server.where("a") == ("loading", 8)
    assert (len(server.cache.tables["a"][0]), server.lengths(), server.cache.waiting) == (4, [], ("a",))
    assert server.step() == {}
    server.do(Transfer(label="a"))
    assert server.step() == {}
    assert (server.where("a"), server.lengths()) == (("loading", 8), [])
    assert server.step() == {"a": (8, 10)}
    assert server.lengths() == [2, 4, 6, 8, 10]


def test_a_load_leaves_room_for_what_prefills_in_flight_still_need() -> None:
    server = Server(layout_of(full(2), num_blocks=12, max_model_len=16, token_budget=4, connector=Connector()))
    server.arrive("a", 15, max_tokens=1, answers=(Answer(),))
    server.arrive("b", 10, first=9, max_tokens=1, answers=(ASYNCHRONOUS,))
    loads = []
    for _ in range(5):
        loads.append([load.label for load in server.plan().loads])
        server.do(Complete())
    assert loads == [[], [], [], [], ["b"]]  # until then "a" needs more than it leaves


def test_of_the_blocks_of_a_load_those_without_a_key_are_fresh() -> None:
    server = Server(LOADING)
    server.arrive("a", 4)
    server.step()
    server.arrive("b", 10, answers=(ASYNCHRONOUS,))
    (load,) = server.plan().loads
    assert (load.local, load.external, load.fresh) == (4, 4, load.tables[0][2:])


def test_of_a_load_of_everything_the_last_token_is_computed_again() -> None:
    server = loading(tokens=8)
    server.do(Transfer(label="a"))
    assert [server.step(), server.step()] == [{}, {"a": (7, 8)}]


def test_who_must_ask_later_waits_and_holds_nothing() -> None:
    server = Server(LOADING)
    server.arrive("a", 10, answers=(Answer(holds=None), Answer(holds=4)))
    assert server.step() == {}
    assert (server.where("a"), server.cache.free_count) == (("waiting", 0), 16)
    assert server.step() == {"a": (4, 10)}


def test_who_must_compute_its_whole_prompt_takes_no_hit_of_any_kind() -> None:
    server = Server(LOADING)
    server.arrive("a", 10)
    server.chunks("a")
    server.arrive("b", 10, skip_reading=True, answers=(ASYNCHRONOUS,))
    assert server.step() == {"b": (0, 10)}


@pytest.mark.parametrize(("beside", "valid"), [((), 4), ((window(2, 4),), 0), ((mamba(4),), 0)])
def test_a_failed_load_sets_its_request_back_to_where_every_group_is_valid(beside: tuple[Any, ...], valid: int) -> None:
    layout = layout_of(full(2), *beside, num_blocks=50, connector=Connector())
    server = loading(layout, arrives=5)
    server.do(Transfer(label="a"))
    assert server.step() == {}
    assert (server.where("a"), server.lengths()) == (("loading", valid), [])
    assert server.step()["a"][0] == valid


def test_a_load_that_failed_before_its_step_takes_the_output_of_the_step_along() -> None:
    server = Server(LOADING)
    server.arrive("a", 10, answers=(Answer(holds=8, arrives=5),))
    assert server.step() == {"a": (8, 10)}
    assert (server.where("a"), server.request("a").known, server.lengths()) == (("running", 4), 10, [2, 4])
    assert server.step() == {"a": (4, 10)}


def test_a_failed_load_ends_its_request_if_that_is_configured() -> None:
    server = loading(replace(LOADING, connector=Connector(failure="fail")), arrives=5)
    server.do(Transfer(label="a"), Schedule())
    assert server.do(Complete()).processed.ended == ("a",)  # type: ignore[union-attr]
    assert (server.cache.requests, server.cache.free_count) == ({}, 16)


@pytest.mark.parametrize(
    ("fault", "aborted", "reported"),
    [("", 12, 16), ("+aborted-load-freed-at-once", 16, 16), ("+aborted-load-never-freed", 12, 12)],
)
def test_an_aborted_load_keeps_its_blocks_until_it_is_reported(fault: str, aborted: int, reported: int) -> None:
    server = loading(spec="model" + fault)
    server.do(Abort(label="a"))
    assert server.cache.free_count == aborted
    server.do(Transfer(label="a"))
    server.step()
    assert server.cache.free_count == reported


def test_a_second_report_of_a_load_is_no_news() -> None:
    server = loading()
    server.do(Abort(label="a"))
    for again in (False, True):
        server.do(Transfer(label="a", again=again))
        assert server.step() == {}
        assert (server.cache.requests, server.cache.free_count) == ({}, 16)


def test_the_blocks_of_a_finished_request_are_kept_until_the_connector_has_stored_them() -> None:
    server = Server(LOADING)
    server.arrive("a", 4, store=True)
    server.step()
    assert (server.where("a")[0], server.cache.free_count) == ("held", 14)
    server.do(Transfer(label="a", what="store"))
    server.step()
    assert (server.cache.requests, server.cache.free_count) == ({}, 16)


# ---- sessions, pauses and resets -------------------------------------------------------------------------------------


def test_a_session_goes_on_behind_its_tokens_but_the_last_one() -> None:
    server = Server(layout_of(full(2), num_blocks=17))
    server.arrive("a", 4, max_tokens=2, session=True)
    assert [server.step() for _ in range(3)] == [{"a": (0, 4)}, {"a": (4, 5)}, {}]
    assert (server.where("a"), server.request("a").known, server.lengths()) == (("idle", 5), 6, [2, 4])
    server.do(Extend(label="a", prompt=(7, 8, 9), max_tokens=2))
    assert (server.where("a"), server.request("a").known) == (("waiting", 5), 8)
    assert [server.step() for _ in range(3)] == [{"a": (5, 8)}, {"a": (8, 9)}, {}]
    server.do(Extend(label="a"))
    assert (server.cache.requests, server.cache.free_count) == ({}, 16)


def test_an_input_that_comes_during_a_turn_waits_for_its_end_and_no_input_ends_the_session_there() -> None:
    server = Server(layout_of(full(2), num_blocks=17))
    server.arrive("a", 4, session=True)
    server.do(Schedule(), Extend(label="a", prompt=(7, 8)), Extend(label="a"))
    assert server.request("a").known == 4
    server.do(Complete())
    assert (server.where("a"), server.request("a").known) == (("waiting", 4), 6)
    assert server.step() == {"a": (4, 6)}
    assert server.cache.requests == {}


def test_a_session_that_goes_on_came_later_than_all_before_its_input() -> None:
    server = Server(layout_of(full(2), num_blocks=13, max_model_len=24, policy="priority"))
    server.arrive("a", 2, session=True)
    server.arrive("b", 12, first=9, max_tokens=12)
    server.step()
    server.do(Extend(label="a", prompt=(7,) * 6, max_tokens=12))
    plan = server.plan()
    while not plan.preempted:
        server.do(Complete())
        plan = server.plan()
    assert plan.preempted == ("a",)


def test_an_idle_session_keeps_its_place() -> None:
    server = Server(layout_of(full(2), num_blocks=40, max_requests=1))
    server.arrive("a", 4, session=True)
    server.arrive("b", 4)
    assert [server.step(), server.step()] == [{"a": (0, 4)}, {}]
    server.do(Abort(label="a"))
    assert server.step() == {"b": (2, 4)}


def test_a_pause_admits_nobody_or_runs_nobody() -> None:
    server = Server(layout_of(full(2), num_blocks=40))
    server.arrive("a", 2, max_tokens=9)
    server.step()
    server.arrive("b", 4)
    ran = []
    for what in ("all", "new", "none"):
        server.do(Pause(what=what))
        ran.append(server.step())
    assert ran == [{}, {"a": (2, 3)}, {"a": (3, 4), "b": (2, 4)}]


@pytest.mark.parametrize(("generation", "kind"), [(1, "resumed"), (2, "new")])
def test_a_reset_is_declined_while_a_request_runs_unless_it_may_preempt(generation: int, kind: str) -> None:
    server = Server(layout_of(full(2), num_blocks=17, worker_generation=generation))
    server.arrive("a", 4, max_tokens=9)
    server.step()
    assert server.do(Reset()).refused
    assert server.lengths() == [2, 4]
    assert not server.do(Reset(running=True)).refused
    assert (server.where("a"), server.request("a").known, server.lengths()) == (("preempted", 0), 5, [])
    assert [(item.kind, item.start, item.count) for item in server.plan().requests] == [(kind, 0, 5)]


def test_a_reset_drops_all_output_in_flight() -> None:
    server = Server(OVERLAPPING)
    server.arrive("a", 4, max_tokens=9)
    server.do(Schedule(), Schedule())
    assert not server.do(Reset(running=True)).refused
    known = [server.request("a").known]
    for action in (Complete(), Complete(), Schedule(), Complete()):
        server.do(action)
        known.append(server.request("a").known)
    assert known == [4, 4, 4, 4, 5]
