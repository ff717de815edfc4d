"""Worker processes and what is made of those that hang, die or grow."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from toys import LAYOUT, LOADER, SEARCHER, run_of

from kvcheck.engines.pulse import Frames, common_frames, frames_of
from kvcheck.engines.watched import Stopped, Watched, code_and_message
from kvcheck.engines.workers import Limits, Worker, WorkerDied
from kvcheck.targets.errors import TargetError

PATIENCE = Limits(stall_seconds=1.5)


def toy(spec: str = "toy", limits: Limits = PATIENCE) -> Watched:
    return Watched(spec, limits=limits, loader=LOADER, searcher=SEARCHER)


@pytest.fixture
def watched() -> Iterator[Watched]:
    one = toy()
    yield one
    one.close()


def test_a_quiet_run_passes_and_can_be_recorded(watched: Watched) -> None:
    result = watched.judge(run_of("a"), record=True)
    assert not result.violations
    assert not result.undetermined
    assert result.trace is not None
    assert len(result.trace.observations) == result.actions == 3


def test_an_exception_of_the_system_is_a_violation(watched: Watched) -> None:
    (violation,) = watched.judge(run_of("fail-boom")).violations
    assert violation.signature == "system.exception AssertionError fail"
    assert violation.index == 1


def test_a_hang_that_repeats_is_a_violation_of_the_function_that_loops(watched: Watched) -> None:
    (violation,) = watched.judge(run_of("a", "hang")).violations
    assert violation.signature == "system.hang spin"
    assert violation.severity == "stall"
    assert violation.index == 2
    assert not watched.judge(run_of("a")).violations


def test_a_hang_that_does_not_repeat_is_undetermined(watched: Watched, tmp_path: Path) -> None:
    result = watched.judge(run_of(f"once-{tmp_path / 'flag'}"))
    assert not result.violations
    assert code_and_message(result.undetermined)[0] == "hung-once"


def test_a_hang_outside_the_system_is_undetermined(watched: Watched) -> None:
    result = watched.judge(run_of("stuck"))
    assert not result.violations
    assert code_and_message(result.undetermined)[0] == "hung"


def test_slow_is_not_hung(watched: Watched) -> None:
    slow = run_of(*(f"nap-0.3{i}" for i in range(6)))
    result = watched.judge(slow)
    assert not result.violations
    assert not result.undetermined


def test_a_hang_in_a_search_is_judged_again(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_LABELS", "hang")
    result = watched.search(5)
    assert [v.signature for v in result.violations] == ["system.hang spin"]
    assert result.run.actions[-1].label == "hang"  # type: ignore[union-attr]
    assert result.violations[0].index == len(result.run.actions) - 1


def test_a_hang_is_shrunk(watched: Watched) -> None:
    shrunk = watched.shrink(run_of("a", "b", "c", "hang", "d"), "system.hang spin", 8)
    labels = [getattr(action, "label", "") for action in shrunk.run.actions]
    assert len(labels) <= 5
    assert labels[-1] == "hang"
    assert shrunk.violation is not None
    assert shrunk.violation.index == len(labels) - 1


@pytest.mark.parametrize(
    ("label", "told"), [("crash", "SIGSEGV"), ("leave", "exit status 7"), ("exhausted", "MemoryError")]
)
def test_a_worker_that_dies_leaves_its_run_undetermined(watched: Watched, label: str, told: str) -> None:
    result = watched.judge(run_of(label))
    code, message = code_and_message(result.undetermined)
    assert code == "worker-died"
    assert told in message
    assert "\n" not in message
    assert not result.violations
    assert not watched.judge(run_of("a")).undetermined


def test_a_mistake_of_the_harness_is_undetermined(watched: Watched) -> None:
    assert code_and_message(watched.judge(run_of("mistake")).undetermined)[0] == "harness-error"


def test_a_worker_that_grew_is_replaced_between_runs() -> None:
    watched = toy(limits=Limits(stall_seconds=5, memory_mb=150))
    try:
        watched.judge(run_of("a"))
        small = watched._worker
        watched.judge(run_of("eat-120", "nap-1.2"))
        assert watched._worker is small
        assert not watched.judge(run_of("a")).undetermined
        assert watched._worker is not small
    finally:
        watched.close()


def test_the_memory_of_a_parent_is_not_that_of_its_worker() -> None:
    ask = "from kvcheck.engines.pulse import memory_mb; print(memory_mb())"
    parent = f"import subprocess, sys; held = b'x' * 300_000_000; subprocess.run([sys.executable, '-c', {ask!r}])"
    done = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 200


def test_a_worker_that_holds_far_too_much_is_killed() -> None:
    watched = toy(limits=Limits(stall_seconds=5, memory_mb=60))
    try:
        code, message = code_and_message(watched.judge(run_of("eat-300", "nap-2")).undetermined)
        assert code == "worker-died"
        assert "MB of memory" in message
    finally:
        watched.close()


def test_shrinking_finds_the_failing_arrival(watched: Watched) -> None:
    shrunk = watched.shrink(run_of("a", "b", "fail-x", "c"), "system.exception AssertionError fail", 10)
    assert len(shrunk.run.actions) == 1
    assert shrunk.violation is not None


def test_a_target_that_cannot_be_loaded() -> None:
    with pytest.raises(TargetError, match="no such toy"):
        toy("refused").start()
    with pytest.raises(TargetError, match="broken: cannot be loaded: ValueError: line one line two"):
        toy("broken").start()
    with pytest.raises(WorkerDied, match="exit status 3"):
        toy("dies").start()


def test_a_target_that_changes_is_noticed(watched: Watched) -> None:
    other = Watched("other", limits=PATIENCE, loader=LOADER, expected=watched.start())
    with pytest.raises(TargetError, match="have changed"):
        other.start()
    other.close()


def test_the_layout_of_all_searches_is_checked() -> None:
    two = toy()
    two._layout = LAYOUT.__class__(groups=LAYOUT.groups * 2, num_blocks=40, max_model_len=16, token_budget=16)
    assert two.unsupported() == "a toy has one group"
    two.close()


def test_hash_seed_is_set_before_the_interpreter_starts() -> None:
    worker = Worker("toy", limits=PATIENCE, loader=LOADER)
    worker.loaded()
    environment = Path(f"/proc/{worker.pid}/environ")
    if environment.exists():
        assert b"PYTHONHASHSEED=0" in environment.read_bytes()
    worker.kill()


def test_stopping_from_another_thread(watched: Watched) -> None:
    watched.start()
    threading.Timer(0.3, watched.stop).start()
    with pytest.raises(Stopped):
        watched.judge(run_of("hang"))
    with pytest.raises(Stopped):
        watched.judge(run_of("a"))


def test_workers_end_when_whoever_watches_is_killed(tmp_path: Path) -> None:
    script = (
        "import os, sys; from toys import *; from kvcheck.engines.workers import *;"
        "w = Worker('toy', limits=Limits(), loader=LOADER); w.loaded(); print(w.pid, flush=True);"
        "from kvcheck.engines.worker_protocol import Judge; w.ask(Judge(run_of('hang')))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.5)
        parent.kill()
    for _ in range(60):
        if not _is_running(pid):
            return
        time.sleep(0.1)
    os.kill(pid, 9)
    pytest.fail("the worker outlived its watcher")


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_what_two_looks_at_a_stack_have_in_common() -> None:
    def step() -> Frames:
        return frames_of(sys._getframe())

    first, second = step(), step()
    assert first[-1].f_code.co_name == "step"
    assert common_frames(None, first) == first
    assert common_frames(first, second) == first[:-1]
    assert common_frames(first, []) == []
