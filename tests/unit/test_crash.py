"""What a report says of a crash, and which violations are it."""

from __future__ import annotations

import pytest

from kvcheck.engines.crash import Crash, crash_in
from kvcheck.invariants.registry import Violation

LOGGED = """
(EngineCore pid=1) ERROR 11-30 12:00:00 [core.py:710] Traceback (most recent call last):
(EngineCore pid=1) ERROR 11-30 12:00:00 [core.py:710]   File "/x-packages/vllm/v1/engine/core.py", line 7, in run
(EngineCore pid=1) ERROR 11-30 12:00:00 [core.py:710]     raise TypeError(self.step())
(EngineCore pid=1) ERROR 11-30 12:00:00 [core.py:710]   File "/x-packages/vllm/v1/core/block_pool.py", line 7, in take
(EngineCore pid=1) ERROR 11-30 12:00:00 [core.py:710]     raise ValueError("none left")
(EngineCore pid=1) ERROR 11-30 12:00:00 [core.py:710] ValueError: none left
Traceback (most recent call last):
  File "/x-packages/vllm/v1/engine/async_llm.py", line 9, in generate
    raise self._error()
vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue
"""
DEEPER = """
  File "/srv/venv/lib/python3.11/site-packages/vllm/v1/core/sched/scheduler.py", line 7, in schedule
    pick(self)
  File "/srv/venv/lib/python3.11/site-packages/sorted/lists.py", line 9, in pick
    self._queue[0]
    ~~~~~~~~~~~^^^
IndexError
"""
HEARD = LOGGED[LOGGED.index("\nTraceback") :]
TREE = 'File "src/vllm/v1/request.py", line 3, in append'


@pytest.mark.parametrize(
    ("text", "crash"),
    [
        ("AssertionError in find_hit", Crash(type="AssertionError", function="find_hit")),
        ("AssertionError: in use, in `Manager.find_hit()`", Crash(type="AssertionError", function="find_hit")),
        ("AssertionError find_hit", Crash(type="AssertionError", function="find_hit")),
        ("An AssertionError find_hit. Twice", Crash(type="AssertionError", function="find_hit")),
        ("AssertionError find_hit=3", Crash(type="AssertionError")),
        ("AssertionError: num_blocks is 3", Crash(type="AssertionError")),
        ("vllm.errors.KeyError raised in schedule", Crash(type="KeyError", function="schedule")),
        ("the engine died: queue.Empty", Crash(type="Empty")),
        ("EngineDeadError after a ValueError in get_new_blocks", Crash(type="ValueError", function="get_new_blocks")),
        ("it crashes in get_new_blocks", Crash(function="get_new_blocks")),
        ("  progress.frozen\n waiting ", Crash(signature="progress.frozen waiting")),
        ("system.hang spin", Crash(signature="system.hang spin")),
        (LOGGED, Crash(type="ValueError", function="take")),
        (DEEPER, Crash(type="IndexError", function="schedule")),
        (TREE, Crash(function="append")),
        ("find_longest_cache_hit", Crash(function="find_longest_cache_hit")),
        ("Manager.find_hit()", Crash(function="find_hit")),
        ("AssertionError: not self.is_full()", Crash(type="AssertionError")),
        ("it dies when free() is called, always", Crash(function="free")),
        (HEARD, None),
        ("EngineDeadError", None),
        ("it crashes in production", None),
        ("", None),
    ],
)
def test_what_a_report_says(text: str, crash: Crash | None) -> None:
    assert crash_in(text) == crash


def violation(signature: str) -> Violation:
    return Violation(signature.partition(" ")[0], "crash", "", signature, 0)


@pytest.mark.parametrize(
    ("crash", "signature", "shown"),
    [
        (Crash(type="KeyError", function="step"), "system.exception KeyError step", True),
        (Crash(type="KeyError"), "system.exception KeyError step", True),
        (Crash(function="step"), "system.exception KeyError step", True),
        (Crash(type="KeyError", function="step"), "system.exception KeyError steps", False),
        (Crash(type="KeyError", function="step"), "system.exception ValueError step", False),
        (Crash(type="KeyError"), "progress.frozen KeyError schedule", False),
        (Crash(signature="progress.frozen"), "progress.frozen waiting - schedule", True),
        (Crash(signature="progress.frozen wait"), "progress.frozen waiting - schedule", False),
    ],
)
def test_which_violations_are_it(crash: Crash, signature: str, shown: bool) -> None:
    assert crash.is_shown_by(violation(signature)) is shown
