"""Actions that have no subject, or that no server would accept, are no-ops; whoever watches knows the level."""

from __future__ import annotations

import msgspec
import pytest
from toys import LAYOUT, ToySession

from kvcheck.engines.execution import Execution
from kvcheck.engines.pulse import Pulse
from kvcheck.model.actions import Action, Arrive, Complete, Evict, Schedule
from kvcheck.model.layout import MOST_GROUPS, Group, problems

SOUND = Arrive(label="a", prompt=(1, 2, 3))


@pytest.mark.parametrize(
    "action",
    [
        Complete(),
        Arrive(label="", prompt=(1,)),
        Arrive(label="b", prompt=()),
        Arrive(label="b", prompt=(1,) * LAYOUT.max_model_len),
        Arrive(label="b", prompt=(1,), max_tokens=0),
        Arrive(label="b", prompt=(1,), adapter=-1),
        SOUND,
        Evict(group=-1, label="a", prefix=2),
        Evict(group=1, label="a", prefix=2),
        Evict(group=0, label="nobody", prefix=2),
    ],
)
def test_what_cannot_happen_is_skipped(action: Action) -> None:
    execution = Execution(ToySession(), LAYOUT)  # type: ignore[arg-type]
    assert not execution.apply(SOUND).observation.skipped
    assert execution.apply(action).observation.skipped


def test_whoever_watches_knows_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pulse = Pulse()
    monkeypatch.setattr(Execution, "watcher", pulse)
    execution = Execution(ToySession(), LAYOUT, "manager")  # type: ignore[arg-type]
    execution.apply(SOUND)
    execution.apply(Schedule())
    run = pulse.run()
    assert run is not None
    assert (run.level, run.layout, run.actions) == ("manager", LAYOUT, (SOUND, Schedule()))


def test_a_layout_has_no_more_groups_than_can_be_told_apart() -> None:
    groups = (Group(kind="mla", block_size=2), *(Group(kind="full", block_size=2),) * MOST_GROUPS)
    assert not problems(msgspec.structs.replace(LAYOUT, groups=groups[:-1], num_blocks=1000))
    assert problems(msgspec.structs.replace(LAYOUT, groups=groups, num_blocks=1000))
