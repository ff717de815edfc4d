"""Where in the server a violation comes from."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType

import pytest
from toys import LOADER, run_of

import kvcheck.model
from kvcheck.engines.judging import judge_run
from kvcheck.engines.locating import located
from kvcheck.engines.watched import Watched
from kvcheck.engines.workers import Limits
from kvcheck.files import read_run, stated_signature
from kvcheck.model import cache, managers, scheduler
from kvcheck.targets.places import Place
from kvcheck.targets.reference.target import ReferenceTarget

COUNTEREXAMPLES = Path(__file__).parents[2] / "counterexamples"
MODEL = Path(kvcheck.model.__file__).resolve().parent


def place(name: str) -> Place | None:
    path = COUNTEREXAMPLES / name
    signature = stated_signature(path)
    assert signature is not None
    return located(ReferenceTarget("model@0.28.0"), read_run(path), signature)


def is_in(found: Place | None, module: ModuleType, calls: str) -> None:
    """The place is a line of this module, and has this call."""
    assert found is not None
    assert found.file == f"model/{Path(str(module.__file__)).name}"
    assert calls in inspect.getsourcelines(module)[0][found.line - 1]


@pytest.mark.parametrize("name", ["async-partial-tail-registered-twice", "mtp-registers-wrong-tail"])
def test_a_block_that_holds_something_else_is_placed_where_it_was_registered(name: str) -> None:
    is_in(place(name), managers, "pool.register(")


def test_a_lookup_is_placed_where_it_was_made() -> None:
    is_in(place("eagle-window-run-too-short"), cache, "agree(")


def test_a_crash_is_placed_where_it_was_raised() -> None:
    target = ReferenceTarget("model@0.28.0")
    run = read_run(COUNTEREXAMPLES / "mamba-external-estimate")
    (violation,) = [v for v in judge_run(target, run).violations if v.invariant == "system.exception"]
    found = located(target, run, violation.signature)
    assert found is not None
    lines = (MODEL.parent / found.file).read_text().splitlines()
    assert "raise" in lines[found.line - 1]


def test_what_a_run_does_not_show_has_no_place() -> None:
    run = read_run(COUNTEREXAMPLES / "mamba-external-estimate")
    assert located(ReferenceTarget("model"), run, "system.exception ValueError get_new_blocks") is None


def test_a_hang_is_placed_at_its_function() -> None:
    watched = Watched("toy", limits=Limits(stall_seconds=4.0), loader=LOADER)
    try:
        assert watched.locate(run_of("hang"), "system.hang spin") == Place("vllm/toy.py", 7, "spin")
        assert watched.locate(run_of("fine"), "system.hang spin") is None
    finally:
        watched.close()


def test_what_nobody_can_place_is_put_at_the_last_thing_that_happened() -> None:
    found = place("continued-sessions-deadlock")
    assert found is not None
    assert found.file == f"model/{Path(str(scheduler.__file__)).name}"
