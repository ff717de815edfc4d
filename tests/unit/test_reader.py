"""What a reader of the model can predict: three scenarios of the rules with their numbers, without and with a fault."""

from __future__ import annotations

import pytest
from helpers import found, full, layout_of, mamba, window

from kvcheck.engines.execution import Execution
from kvcheck.engines.judging import judge_run
from kvcheck.model import laws
from kvcheck.model.actions import Action, Arrive, Complete, Evict, Run, Schedule
from kvcheck.model.cache import Cache
from kvcheck.model.faults import NO_FAULTS, faults_on
from kvcheck.model.layout import Connector, Drafter, Layout
from kvcheck.model.pool import ServerError
from kvcheck.model.request import Request
from kvcheck.targets.loading import load_target

EAGLE = Drafter(method="eagle3", tokens=1)
STEP = (Schedule(), Complete())


def arrive(label: str, tokens: int) -> Arrive:
    return Arrive(label=label, prompt=tuple(range(1, tokens + 1)))


def after(spec: str, layout: Layout, *actions: Action) -> Execution:
    """A server of the model after these actions, all of which happened."""
    execution = Execution(load_target(spec).start(layout), layout)
    for action in actions:
        seen = execution.apply(action).observation
        assert (seen.skipped, seen.failure) == ("", None)
    return execution


def starts(execution: Execution) -> dict[str, int]:
    """Where the requests of the last plan go on."""
    assert execution.last
    assert execution.last.plan
    return {item.label: item.start for item in execution.last.plan.requests}


def broken(spec: str, layout: Layout, *actions: Action) -> set[str]:
    return found(judge_run(load_target(spec), Run(layout=layout, actions=actions)).violations)


# ---- R3: a sliding-window drafter beside full attention and Mamba ----------------------------------------------------

WINDOW_DRAFTER = layout_of(
    full(2), mamba(4, drafts=1), window(4, 3, eagle=True), num_blocks=31, token_budget=8, drafter=EAGLE
)


def test_a_window_with_blocks_above_h_switches_partial_hits_off_for_all_groups() -> None:
    coordinator = Cache(WINDOW_DRAFTER, NO_FAULTS).coordinator
    assert (WINDOW_DRAFTER.hash_block, WINDOW_DRAFTER.scheduler_block) == (2, 4)
    assert (coordinator.partial, coordinator.granularity) == (False, 4)


def test_then_a_lookup_hits_multiples_of_the_scheduler_block() -> None:
    actions = (arrive("a", 15), *STEP * 2, arrive("b", 15), Schedule())
    assert starts(after("model", WINDOW_DRAFTER, *actions)) == {"b": 8}
    assert broken("model", WINDOW_DRAFTER, *actions) == set()


def test_without_the_check_the_windows_own_lookup_fails_at_the_first_request() -> None:
    faults = faults_on(["no-capability-check"])
    cache = Cache(WINDOW_DRAFTER, faults)
    assert (cache.coordinator.partial, cache.coordinator.granularity) == (True, 2)
    with pytest.raises(ServerError, match=r"^fine-grained-window$"):
        cache.lookup(Request(arrive("a", 9), 1, 2, faults))
    spec = "model+no-capability-check"
    assert broken(spec, WINDOW_DRAFTER, arrive("a", 9), Schedule()) == {"system.exception"}


# ---- R5.3: the bound of an EAGLE group with partial hits -------------------------------------------------------------

EAGLE_BESIDE_MAMBA = layout_of(full(2, eagle=True), mamba(8, drafts=1), num_blocks=30, drafter=EAGLE)


@pytest.mark.parametrize(("faults", "bounds"), [((), (22, 22)), (("eagle-bound-rounded",), (18, 22))])
def test_with_partial_hits_both_groups_register_all_22_tokens(faults: tuple[str, ...], bounds: tuple[int, int]) -> None:
    layout, on = EAGLE_BESIDE_MAMBA, faults_on(faults)
    assert (layout.hash_block, layout.scheduler_block, layout.partial_hits, layout.eagle_groups) == (2, 8, True, {0})
    eagle, ordinary = laws.eagle_bound(22, 0, 2, True, 8, on), laws.ordinary_bound(22, True, 8, 2, on)
    assert (eagle, ordinary) == bounds
    actions = (arrive("a", 22), *STEP * 2)
    execution = after("+".join(("model", *faults)), layout, *actions)
    assert execution.view
    longest = [max(length for group, _, length, _ in execution.view.keys if group == index) for index in (0, 1)]
    assert tuple(longest) == bounds
    assert broken("+".join(("model", *faults)), layout, *actions) == ({"registration.complete"} if faults else set())


# ---- R7: groups whose own hits diverge -------------------------------------------------------------------------------

DIVERGENT = layout_of(full(2), mamba(4), num_blocks=30, token_budget=8, connector=Connector(divergent=True))
TAIL_EVICTED = Evict(group=0, label="a", prefix=12)
"""Full attention has 10 tokens, and there are states after 8 and 16."""
STATE_EVICTED = Evict(group=1, label="a", prefix=16)
"""Full attention has 16 tokens, and there is a state after 8 only."""


@pytest.mark.parametrize(
    ("fault", "evicted", "resumes"),
    [
        ("", TAIL_EVICTED, 8),
        ("", STATE_EVICTED, 8),
        ("+diverged-no-fallback", TAIL_EVICTED, 8),
        ("+diverged-no-fallback", STATE_EVICTED, 16),
        ("+diverged-hit-maximum", TAIL_EVICTED, 16),
        ("+diverged-hit-maximum+diverged-no-fallback", STATE_EVICTED, 16),
    ],
)
def test_a_request_without_external_tokens_resumes_where_every_group_has_something(
    fault: str, evicted: Evict, resumes: int
) -> None:
    actions = (arrive("a", 17), *STEP * 3, evicted, arrive("b", 17), Schedule())
    assert starts(after("model" + fault, DIVERGENT, *actions)) == {"b": resumes}
    expected = {"agreement.resume"} if resumes == 16 else set()
    assert broken("model" + fault, DIVERGENT, *actions) == expected
