"""The scopes that come with kvcheck: how large they are, and what a search of each finds."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from kvcheck.explorer.explore import Result, explore
from kvcheck.explorer.scope import FOLDER, ServerScope, names, scope_of
from kvcheck.files import InputError
from kvcheck.invariants.registry import REGISTRY, all_invariants
from kvcheck.model.faults import FAULTS

ROOT = Path(__file__).parents[2]
SIZES = {
    "connector": (1900, 4296, 19),
    "copy-on-write": (2852, 6432, 16),
    "loads": (1740, 3687, 16),
    "overlap": (1710, 3470, 15),
    "pool": (3975, 18924, 22),
    "retention": (99, 154, 18),
    "three-groups": (3488, 7356, 21),
    "turns": (80, 116, 21),
}
"""States, transitions and depth of the model without faults. A change of the model, of a scope or of what tells states
apart changes them: find out which it was."""


def searched(name: str, *faults: str) -> Result:
    return explore(name, scope_of(name), "+".join(["model", *faults]), lambda: True)


@pytest.mark.parametrize("name", names())
def test_a_scope_is_searched_completely_and_nothing_is_broken(name: str) -> None:
    result = searched(name)
    assert (result.verdict, result.shown) == ("passed", [])
    assert (result.states, result.transitions, result.depth) == SIZES[name]
    assert sum(result.taken.values()) == result.transitions
    assert sum(result.new.values()) == result.states - 1


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name in names() for fault in scope_of(name).kills])
def test_a_scope_finds_the_faults_that_it_says(name: str, fault: str) -> None:
    result = searched(name, fault)
    assert result.verdict == "violated"
    assert all(one.replays for one in result.shown)
    assert {one.violation.index + 1 for one in result.shown if one.run is not None} <= {result.depth, result.depth + 1}


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("three-groups", {"no-capability-check"}),
        ("connector", {"diverged-hit-maximum", "diverged-no-fallback"}),
        ("copy-on-write", {"partial-tail-registered-twice", "registration-does-not-move"}),
        ("loads", {"aborted-load-freed-at-once", "frees-not-fenced", "mamba-estimate-ignores-load"}),
        ("overlap", {"windows-move-on-planned"}),
        ("retention", {"replay-boundary-not-kept", "junction-not-kept"}),
        ("pool", {"unregistered-blocks-age"}),
        ("turns", {"given-up-counted-as-held"}),
    ],
)
def test_what_a_scope_is_made_for_is_among_what_it_finds(name: str, faults: set[str]) -> None:
    assert faults <= set(scope_of(name).kills) <= set(FAULTS)


def test_the_scope_of_the_guide_is_complete_and_finds_the_fault_that_it_names(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "exploring.md").read_text()
    file = tmp_path / "mine.json"
    file.write_text(guide.partition("```json\n")[2].partition("```")[0])
    assert explore("mine", scope_of(str(file)), "model", lambda: True).verdict == "passed"
    fault = guide.partition("here `--target ")[2].partition("`")[0]
    assert explore("mine", scope_of(str(file)), fault, lambda: True).verdict == "violated"


def test_a_complete_search_that_never_comes_to_what_it_is_made_for_is_undetermined(tmp_path: Path) -> None:
    made = msgspec.json.decode((FOLDER / "retention.json").read_bytes())
    made["requests"] = made["requests"][:1]
    file = tmp_path / "one.json"
    file.write_text(json.dumps(made))
    result = explore("one", scope_of(str(file)), "model", lambda: True)
    assert (result.complete, result.verdict) == (True, "undetermined")
    assert "what it is made for: " in result.undetermined
    assert {"hit", "junction"} <= set(result.undetermined.partition(": ")[2].split(", "))


def test_a_search_that_is_cut_says_what_is_left_and_nothing_of_what_it_did_not_reach() -> None:
    turns = iter([True] * 20)
    result = explore("connector", scope_of("connector"), "model", lambda: next(turns, False))
    assert (result.complete, result.verdict, result.unreached) == (False, "undetermined", ())
    assert result.left == result.states - 20


def stalling(steps_in_flight: int) -> str:
    """A scope in which one request stalls on a model whose threshold does not give way (R10.51)."""
    layout = {
        "groups": [{"kind": "full", "block_size": 2}],
        "num_blocks": 16,
        "max_model_len": 8,
        "token_budget": 8,
        "max_requests": 1,
        "steps_in_flight": steps_in_flight,
        "long_prefill_threshold": 1,
        "drafter": {"method": "mtp", "tokens": 2, "modules": 2},
    }
    requests = [{"label": "a", "prompt": [1, 2]}]
    return json.dumps({"world": "server", "version": 1, "what": "", "layout": layout, "requests": requests})


def test_a_server_that_gets_nowhere_is_found_as_a_cycle_that_replays(tmp_path: Path) -> None:
    file = tmp_path / "stall.json"
    file.write_text(stalling(1))
    scope = scope_of(str(file))
    assert explore("stall", scope, "model", lambda: True).verdict == "passed"
    result = explore("stall", scope, "model+threshold-below-lookahead", lambda: True)
    (shown,) = result.shown
    assert (result.verdict, shown.replays, shown.violation.invariant) == ("violated", True, "progress.frozen")
    assert shown.moves[:3] == ("arrive", "schedule", "complete")


def test_requests_that_differ_in_their_labels_only_are_one() -> None:
    both = scope_of("overlap")
    assert isinstance(both, ServerScope)
    a = both.requests[1]
    twins = msgspec.structs.replace(both, requests=(a, msgspec.structs.replace(a, label="z")))
    strangers = msgspec.structs.replace(both, requests=(a, msgspec.structs.replace(a, label="z", prompt=(1, 3))))
    counts = [explore("x", one, "model", lambda: True).states for one in (twins, strangers)]
    assert counts[0] < 0.6 * counts[1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", "world"),
        ('{"world": "server", "version": 2, "what": ""}', "version 2"),
        ('{"world": "pool", "version": 1, "what": "", "pool": {"blocks": 1, "requests": 1, "columns": 1}}', "2 to 250"),
        (
            '{"world": "pool", "version":1,"what":"","pool":{"blocks":3,"requests":1,"columns":1},"kills":["x"]}',
            "no such fault: x",
        ),
    ],
)
def test_what_is_no_scope_is_refused(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "scope.json"
    file.write_text(text)
    with pytest.raises(InputError, match=told):
        scope_of(str(file))


def test_a_scope_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="neither a scope"):
        scope_of("nothing")


# ---- what tells states apart, and what does not ----------------------------------------------------------------------


def counted(tmp_path: Path, layout: dict[str, object], requests: list[dict[str, object]], *also: str) -> Result:
    file = tmp_path / "scope.json"
    plain = {"num_blocks": 16, "max_model_len": 8, "token_budget": 8, "max_requests": 2, "watermark": 0.0}
    told = {"groups": [{"kind": "full", "block_size": 2}], **plain, **layout}
    whole = {"world": "server", "version": 1, "what": "", "layout": told, "requests": requests, "also": also}
    file.write_text(json.dumps(whole))
    ticks = iter(range(3000))
    return explore("x", scope_of(str(file)), "model", lambda: next(ticks, None) is not None)


def test_a_request_that_is_preempted_again_and_again_is_in_a_state_that_was_seen(tmp_path: Path) -> None:
    """Resets come from outside, so that they are no livelock either."""
    result = counted(tmp_path, {"token_budget": 2}, [{"label": "a", "prompt": [1, 2, 3]}], "reset")
    assert (result.complete, result.shown) == (True, [])


def test_a_connector_that_is_asked_again_and_again_is_in_a_state_that_was_seen(tmp_path: Path) -> None:
    later = [{"label": "a", "prompt": [1, 2, 3], "answers": [{"holds": None}]}]
    result = counted(tmp_path, {"connector": {"role": "consumer"}}, later)
    assert (result.complete, result.shown) == (True, [])


def test_fences_do_not_count_steps(tmp_path: Path) -> None:
    layout = {"connector": {"role": "consumer"}, "steps_in_flight": 2, "token_budget": 2}
    result = counted(tmp_path, layout, [{"label": "a", "prompt": [1, 2, 3]}], "reset")
    assert (result.complete, result.shown) == (True, [])


def test_who_of_two_requests_is_left_matters_if_their_connector_knows_other_things(tmp_path: Path) -> None:
    layout = {"connector": {"role": "consumer"}}
    knows = {"answers": [{"holds": 2, "asynchronous": True}]}
    alike = [{"label": "a", "prompt": [1, 2, 3]}, {"label": "b", "prompt": [1, 2, 3]}]
    differing = [alike[0], {**alike[1], **knows}]
    few, many = (counted(tmp_path, layout, both, "abort", "transfer") for both in (alike, differing))
    assert few.complete
    assert many.complete
    assert many.witnesses["load-asynchronous"] > 0
    assert many.states > 2 * few.states


def test_requests_that_take_turns_with_their_loads_are_found_as_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """If nobody looks at what a load leaves for others, the search comes back to where it was."""
    all_invariants()
    for invariant in ("estimate.reserved", "estimate.remaining"):
        monkeypatch.delitem(REGISTRY, invariant)
    (shown,) = searched("turns", "given-up-counted-as-held").shown
    assert (shown.replays, shown.violation.invariant) == (True, "progress.livelock")


def test_a_stall_with_overlapping_steps_replays(tmp_path: Path) -> None:
    file = tmp_path / "stall.json"
    file.write_text(stalling(2))
    (shown,) = explore("x", scope_of(str(file)), "model+threshold-below-lookahead", lambda: True).shown
    assert (shown.replays, shown.violation.invariant) == (True, "progress.frozen")


@pytest.mark.parametrize(
    ("layout", "request_", "told"),
    [
        ({}, {"prompt": [1] * 8}, "no server would accept"),
        ({}, {"prompt": []}, "no server would accept"),
        ({}, {"prompt": [2**62]}, "has a token"),
        ({}, {"label": "", "prompt": [1]}, "label is empty"),
        ({}, {"prompt": [1], "session": True}, "sessions"),
        ({"events": True}, {"prompt": [1]}, "events"),
    ],
)
def test_a_scope_that_would_say_less_than_it_seems_to_is_refused(
    tmp_path: Path, layout: dict[str, object], request_: dict[str, object], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        counted(tmp_path, layout, [{"label": "a", **request_}])


@pytest.mark.parametrize("move", ["transfer", "accept"])
def test_moves_that_can_never_happen_are_refused(tmp_path: Path, move: str) -> None:
    with pytest.raises(InputError, match=f"{move}: this layout has none"):
        counted(tmp_path, {}, [{"label": "a", "prompt": [1]}], move)


def test_a_layout_that_the_model_cannot_express_is_undetermined(tmp_path: Path) -> None:
    mamba = {"kind": "mamba", "block_size": 2, "checkpoint_blocks": 1, "checkpoint_alignment": 1}
    result = counted(tmp_path, {"groups": [{"kind": "full", "block_size": 2}, mamba]}, [{"label": "a", "prompt": [1]}])
    assert (result.verdict, result.states) == ("undetermined", 0)
    assert "checkpoints" in result.undetermined


def test_a_stall_behind_a_connector_that_once_said_later_is_found(tmp_path: Path) -> None:
    """What the connector said last is no part of a state, so it must not decide what the server does next."""
    run = json.loads((ROOT / "counterexamples" / "waiting-load-holds-blocks" / "run.json").read_text())
    requests = [
        {key: value for key, value in action.items() if key != "type"}
        for action in run["actions"]
        if action["type"] == "arrive"
    ]
    whole = {"world": "server", "version": 1, "what": "", "layout": run["layout"], "requests": requests}
    file = tmp_path / "scope.json"
    file.write_text(json.dumps({**whole, "also": ["transfer"]}))
    (shown,) = explore("x", scope_of(str(file)), "model+finished-load-not-preempted", lambda: True).shown
    assert (shown.replays, shown.violation.invariant) == (True, "progress.frozen")
    assert explore("x", scope_of(str(file)), "model", lambda: True).verdict == "passed"
