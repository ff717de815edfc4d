"""The action and the workflow: what GitHub would refuse, and what kvcheck would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from kvcheck.cli.commands.fuzz import command
from kvcheck.engines.database import ARTIFACT

ROOT = Path(__file__).parents[2]
ACTION = ROOT / "action.yml"
WORKFLOW = ROOT / "docs" / "workflows" / "kvcheck.yml"


def content(file: Path) -> Any:
    return YAML(typ="safe").load(file.read_text())


@pytest.mark.parametrize(("schema", "file"), [("workflows", WORKFLOW), ("actions", ACTION)])
def test_the_schema(schema: str, file: Path) -> None:
    line = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.github-{schema}", str(file)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def steps() -> list[Any]:
    jobs = content(WORKFLOW)["jobs"]
    return [step for job in jobs.values() for step in job["steps"] if step.get("uses") == "./.kvcheck"]


def test_the_workflow_gives_the_action_inputs_that_it_has() -> None:
    given = [set(step["with"]) for step in steps()]
    assert len(given) == 2
    assert set.union(*given) <= set(content(ACTION)["inputs"])


def test_the_limits_of_the_jobs() -> None:
    """Five minutes and an hour in all, with the most that shrinking may take."""
    gate, nightly = (int(step["with"]["seconds"]) for step in steps())
    assert gate + 60 <= 300
    assert nightly + 60 <= 3600


def test_the_artifact_is_the_one_that_is_read() -> None:
    uploads = [step["with"]["name"] for step in content(WORKFLOW)["jobs"]["collect"]["steps"] if "name" in step["with"]]
    assert uploads == [ARTIFACT]


def fuzzed(tmp_path: Path, status: int, **inputs: str) -> tuple[int, list[str], dict[str, str]]:
    """The action's step with a kvcheck that only notes its arguments: exit status, arguments, outputs."""
    (step,) = [one for one in content(ACTION)["runs"]["steps"] if one.get("id") == "fuzz"]
    program = tmp_path / "kvcheck" / "bin" / "kvcheck"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/arguments\nexit {status}\n')
    program.chmod(0o755)
    defaults = {name: str(entry["default"]) for name, entry in content(ACTION)["inputs"].items()}
    values = {**defaults, **inputs}
    environment = {key: _input(text, values) for key, text in step["env"].items()}
    environment |= {
        "PATH": os.environ["PATH"],
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_OUTPUT": str(tmp_path / "outputs"),
    }
    line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(line, env=environment, cwd=tmp_path, check=False)
    pairs = [text.split("=", 1) for text in (tmp_path / "outputs").read_text().splitlines()]
    return done.returncode, (tmp_path / "arguments").read_text().splitlines(), dict(pairs)


def _input(text: str, values: dict[str, str]) -> str:
    name = text.removeprefix("${{ inputs.").removesuffix(" }}")
    return values[name]


def test_the_step_calls_a_command_that_there_is(tmp_path: Path) -> None:
    inputs = {"seed": "7", "shard": "2/4", "baseline": "b c.json", "update-baseline": "true", "counterexamples": "x"}
    (tmp_path / "b c.json").touch()
    status, arguments, outputs = fuzzed(tmp_path, 1, **inputs)
    assert (status, outputs) == (1, {"shard": "2-of-4", "verdict": "violated"})
    assert arguments[0] == "fuzz"
    context = command.make_context("fuzz", arguments[1:])
    assert context.params["shard"] == (2, 4)
    assert (context.params["seed"], context.params["seconds"]) == (7, 230.0)
    assert context.params["baseline"] == Path("b c.json")
    assert (tmp_path / "kvcheck-out/reports/baseline.json").exists()


@pytest.mark.parametrize(("status", "verdict"), [(0, "passed"), (2, "undetermined"), (3, "failed")])
def test_the_step_with_nothing_set(tmp_path: Path, status: int, verdict: str) -> None:
    done, arguments, outputs = fuzzed(tmp_path, status)
    assert (done, outputs["verdict"]) == (status, verdict)
    assert not {"--seed", "--baseline", "--update-baseline", "--counterexamples"} & set(arguments)
    assert command.make_context("fuzz", arguments[1:]).params["shard"] == (1, 1)


def test_every_option_of_the_guide_is_one() -> None:
    told = CliRunner().invoke(command, ["--help"]).output
    words = (ROOT / "docs" / "ci.md").read_text().replace("`", " ").replace("|", " ").split()
    options = {word.strip(".,;:()") for word in words if word.startswith("--") and word.strip("-")}
    assert len(options) > 10
    assert not [option for option in options if option not in told]
