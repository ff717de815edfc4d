"""The pytest plugin, in sessions of its own: silent unless it is asked for, and right when it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from releases import release

from kvcheck.files import versioned, write_json
from kvcheck.model.layout import Group, Layout

ROOT = Path(__file__).parents[2]
OWN = "def test_of_the_checkout():\n    pass\n"
HEAVY = """
import sys

def test_nothing_of_kvcheck_is_loaded():
    loaded = {name for name in sys.modules if name.startswith("kvcheck")}
    assert loaded <= {"kvcheck", "kvcheck.pytest_plugin"}
    assert not {"msgspec", "click", "rich", "z3", "numpy"} & set(sys.modules)
"""


def session(folder: Path, *arguments: str, test: str = OWN) -> tuple[int, str]:
    """Exit status and output of a pytest session in a folder with one test."""
    (folder / "test_own.py").write_text(test, encoding="utf-8")
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    line = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-q",
        "-W",
        "error",
        "-p",
        "kvcheck.pytest_plugin",
        "--strict-markers",
    ]
    environment = {**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("KVCHECK_OUT", None)
    done = subprocess.run(
        [*line, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_a_session_that_does_not_ask_is_left_alone(tmp_path: Path) -> None:
    status, output = session(tmp_path, test=HEAVY)
    assert status == 0, output
    assert "1 passed" in output
    assert output.count("kvcheck") == 0


def test_the_machine_runs_beside_the_other_tests(tmp_path: Path) -> None:
    status, output = session(tmp_path, "--kvcheck-target=model", "--kvcheck-seconds=0.1", "--kvcheck-seed=1")
    assert status == 0, output
    assert "1 passed, 1 undetermined" in output
    told = re.search(
        r"^kvcheck: undetermined: model: nothing broken in (\d+) runs, (\d+) actions, seed 1, "
        r"but (\d+) of (\d+) situations that the layouts allow never came up: (.+)$",
        output,
        re.MULTILINE,
    )
    assert told is not None
    assert int(told[1]) >= 10
    assert int(told[2]) >= 100
    assert len(told[5].split(", ")) == int(told[3]) < int(told[4])


def test_what_lies_in_the_current_folder_is_not_what_python_or_kvcheck_needs(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit('not this one')\n")
    (tmp_path / "kvcheck").mkdir()
    (tmp_path / "kvcheck" / "__init__.py").touch()
    status, output = session(tmp_path, "--kvcheck-target=model", "--kvcheck-seconds=0.1")
    assert status == 0, output
    assert "kvcheck: undetermined: model: nothing broken in" in output


def test_a_machine_that_came_to_everything_has_passed(tmp_path: Path) -> None:
    layout = Layout(
        groups=(Group(kind="full", block_size=2),), num_blocks=30, max_model_len=16, token_budget=16, caching=False
    )
    write_json(tmp_path / "layout.json", versioned(layout))
    options = ["--kvcheck-target=model", "--kvcheck-layout=layout.json", "--kvcheck-seconds=3", "--kvcheck-seed=1"]
    status, output = session(tmp_path, *options)
    assert status == 0, output
    assert "2 passed" in output
    assert re.search(r"^kvcheck: model: .*, in all \d+ situations that the layouts allow$", output, re.MULTILINE)


def test_it_can_be_selected(tmp_path: Path) -> None:
    options = ["--kvcheck-target=model", "--kvcheck-seconds=0.1"]
    assert "1 passed, 1 deselected" in session(tmp_path, *options, "-k", "checkout")[1]
    assert "1 deselected, 1 undetermined" in session(tmp_path, *options, "-m", "kvcheck")[1]
    collected = session(tmp_path, *options, "--collect-only")[1]
    assert "kvcheck[model]" in collected


def test_what_it_finds_is_told_with_the_shortest_run(tmp_path: Path) -> None:
    fault = "model+mamba-estimate-ignores-load"
    layout = str(ROOT / "counterexamples/mamba-external-estimate/run.json")
    options = [f"--kvcheck-target={fault}", f"--kvcheck-layout={layout}", "--kvcheck-seconds=60", "--kvcheck-seed=1"]
    status, output = session(tmp_path, *options)
    assert status == 1, output
    assert "1 failed, 1 passed" in output
    assert re.search(r"^\[1\] (estimate.covers|system.exception)", output, re.MULTILINE)
    assert "Traceback" not in output
    command = re.search(r"reproduce: +kvcheck replay (\S+run\.json) --target model\+", output)
    assert command is not None
    assert (tmp_path / command[1]).is_file()
    shown = re.search(r"broken: +at action (\d+)", output)
    assert shown is not None
    assert int(shown[1]) <= 4


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--kvcheck-target=nothing"], "undetermined: 'nothing' names no target: write "),
        (["--kvcheck-target=path:."], "undetermined: path:.: "),
        (["--kvcheck-target=model", "--kvcheck-layout=nowhere"], "undetermined: 'nowhere' is neither a preset "),
    ],
)
def test_what_cannot_be_said_is_not_passed(options: list[str], reason: str, tmp_path: Path) -> None:
    status, output = session(tmp_path, *options)
    assert status == 1
    assert reason in output
    assert "Traceback" not in output


def test_a_release_that_cannot_be_loaded_light_is_wrong_usage(tmp_path: Path) -> None:
    status, output = session(tmp_path, "--kvcheck-light=nothing")
    assert status == 4
    assert "ERROR: --kvcheck-light: 'nothing' names no target" in output


@pytest.mark.parametrize("seconds", ["nan", "0", "-1", "soon"])
def test_a_time_is_a_number_above_zero(seconds: str, tmp_path: Path) -> None:
    status, output = session(tmp_path, f"--kvcheck-seconds={seconds}")
    assert status == 4
    assert f"--kvcheck-seconds: '{seconds}' is not a number of seconds above 0" in output


def test_a_seed_is_not_below_zero(tmp_path: Path) -> None:
    status, output = session(tmp_path, "--kvcheck-seed=-1")
    assert status == 4
    assert "--kvcheck-seed: '-1' is not a whole number of 0 or more" in output


@pytest.mark.release
def test_a_release_is_driven_and_its_defect_found(tmp_path: Path) -> None:
    release("0.27.1")
    layout = str(ROOT / "counterexamples/window-drafter-lookup-assertion/run.json")
    options = ["--kvcheck-target=vllm==0.27.1", f"--kvcheck-layout={layout}", "--kvcheck-seed=1"]
    status, output = session(tmp_path, *options)
    assert status == 1, output
    assert "[1] system.exception AssertionError find_longest_cache_hit" in output
    assert "test_own.py" not in output.split("short test summary")[1]
