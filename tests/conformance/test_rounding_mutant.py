"""A fault that no release has: 0.28.0 with the bound of EAGLE groups rounded down again (R5.3.1) must be found.

The faulty tree is made as docs/design-change.md says, by one edit of a copy of the release's own source.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from helpers import release_worker
from releases import release

from kvcheck.cli.main import run as run_command
from kvcheck.engines.watched import Watched
from kvcheck.files import versioned, write_json
from kvcheck.invariants.registry import Violation
from kvcheck.model.actions import Arrive, Complete, Run, Schedule
from kvcheck.model.layout import Layout
from kvcheck.model.observation import Register

pytestmark = pytest.mark.release

VERSION = "0.28.0"
MOST_RUNS = 400
GUIDE = (Path(__file__).parents[2] / "docs" / "design-change.md").read_text(encoding="utf-8")
LOST = ("registration.complete", "hits.complete")


def shown(first: str) -> str:
    """The block of the guide that begins so."""
    found = re.search(rf"^    {re.escape(first)}(?:.*\n(?:    .*\n)*)", GUIDE, re.MULTILINE)
    assert found is not None
    return found[0]


LAYOUT = msgspec.json.decode(shown("{"), type=Layout)
RUN = Run(
    layout=LAYOUT,
    actions=(Arrive(label="a", prompt=tuple(range(1, 23))), Schedule(), Complete(), Schedule(), Complete()),
)


@pytest.fixture(scope="module")
def mutant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("rounded")
    commands = shown("cp -r").replace(f"~/.cache/kvcheck/releases/{VERSION}", shlex.quote(str(release(VERSION).root)))
    subprocess.run(["sh", "-ec", commands], cwd=folder, check=True)
    worker = Watched(f"path:{folder / 'rounded'}")
    try:
        yield worker
    finally:
        worker.close()


@pytest.fixture(scope="module")
def original() -> Iterator[Watched]:
    with release_worker(VERSION) as worker:
        yield worker


def registered(worker: Watched) -> tuple[list[int], tuple[Violation, ...]]:
    """The longest registered prefix of each group, and what the run breaks."""
    result = worker.judge(RUN, record=True)
    assert result.trace is not None
    assert not result.undetermined
    events = [event for seen in result.trace.observations for event in seen.log if isinstance(event, Register)]
    return [max(event.length for event in events if event.group == group) for group in (0, 1)], result.violations


def test_the_tree_is_the_release_but_for_the_edit(mutant: Watched, original: Watched) -> None:
    faulty, sound = mutant.start(), original.start()
    assert faulty.version == sound.version == VERSION
    assert faulty.digest != sound.digest
    assert LAYOUT.hash_block == 2
    assert LAYOUT.partial_hits


def test_twenty_two_tokens_are_registered_up_to_18_by_the_mutant(mutant: Watched) -> None:
    longest, violations = registered(mutant)
    assert longest == [18, 22]
    assert [v.signature for v in violations] == ["registration.complete full schedule"]
    assert violations[0].message == "a has 22 computed tokens, but its first 20 are not registered in group 0"


def test_a_comparison_with_the_release_tells_the_lost_hit_tokens(mutant: Watched, tmp_path: Path) -> None:
    """Nothing crashes: it shows as keys that are missing, and as tokens computed again."""
    layout, report = tmp_path / "layout.json", tmp_path / "diff.json"
    write_json(layout, versioned(LAYOUT))
    targets = ["--base", f"vllm=={VERSION}", "--head", mutant.spec]
    bound = ["--layout", str(layout), "--runs", "12", "--seed", "1", "--out", str(tmp_path)]
    assert run_command(["diff", *targets, *bound, "--limit", "hit_tokens=0", "--json", str(report)]) == 1
    found = json.loads(report.read_text())
    assert found["exceeded"] == ["hit_tokens"]
    assert found["measures"]["hit_tokens"]["head"] < found["measures"]["hit_tokens"]["base"]
    assert {one["invariant"] for one in found["new"]} <= set(LOST)
    assert found["fixed"] == []
    worse = next(one for one in found["worse"] if one["measure"] == "hit_tokens")
    assert worse["base"] > worse["head"]


def test_twenty_two_tokens_are_registered_whole_by_the_release(original: Watched) -> None:
    assert registered(original) == ([22, 22], ())


def test_a_search_from_random_layouts_finds_the_mutant(mutant: Watched, original: Watched) -> None:
    """A run counts if it shows lost reuse on the mutant that the release itself does not show."""
    for seed in range(MOST_RUNS):
        result = mutant.search(seed)
        signatures = {v.signature for v in result.violations if v.invariant in LOST}
        if signatures and not signatures & {v.signature for v in original.judge(result.run).violations}:
            break
    else:
        pytest.fail(f"nothing found in {MOST_RUNS} runs")
    again = {v.signature for v in mutant.judge(result.run).violations}
    assert signatures <= again
