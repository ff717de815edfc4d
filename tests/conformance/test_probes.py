"""The stored hits of docs/releases.json are what the releases and the model hit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from releases import release

from kvcheck.engines.probes import LENGTHS, STORIES, all_probes, hits_of, layouts
from kvcheck.model.layout import problems
from kvcheck.targets.loading import load_target
from kvcheck.targets.vllm.release import KNOWN_RELEASES

ROOT = Path(__file__).parents[2]
STORED: dict[str, dict[str, Any]] = json.loads((ROOT / "docs/releases.json").read_text(encoding="utf-8"))["hits"]


def stored(names: Iterable[str]) -> dict[str, Any]:
    """The hits that hold for the last of these releases: the last that is written down."""
    order = list(names)
    return {probe: next(row[name] for name in reversed(order) if name in row) for probe, row in STORED.items()}


def measured(spec: str) -> dict[str, Any]:
    """The hits of a target on all probes, in a process of its own: only one release fits into one."""
    line = [sys.executable, str(ROOT / "scripts/releases"), "--target", spec]
    result = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    hits: dict[str, Any] = json.loads(result.stdout)
    return hits


def apart(left: dict[str, Any], right: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Probes on which two targets differ."""
    assert list(left) == list(right)
    return {probe: (left[probe], right[probe]) for probe in left if left[probe] != right[probe]}


@pytest.fixture(scope="module")
def model() -> dict[str, Any]:
    target = load_target("model")
    return {probe.name: list(hits_of(target, probe) or ()) for probe in all_probes()}


def test_every_layout_is_one_that_a_server_starts_with() -> None:
    assert {name: problems(layout) for name, layout in layouts().items() if problems(layout)} == {}


def test_names_tell_layout_story_and_length() -> None:
    names = [probe.name for probe in all_probes()]
    assert len(set(names)) == len(names) == len(layouts()) * len(STORIES) * len(LENGTHS)
    assert names == list(STORED)


def test_nobody_hits_on_an_empty_cache(model: dict[str, Any]) -> None:
    assert {hits[0] for hits in model.values()} == {0}


def test_the_model_hits_what_is_stored(model: dict[str, Any]) -> None:
    assert apart({probe: row["model"] for probe, row in STORED.items()}, model) == {}


@pytest.mark.release
@pytest.mark.parametrize("version", ["0.28.0", "0.33.0"])
def test_a_release_hits_what_is_stored(version: str) -> None:
    release(version)
    assert apart(stored(KNOWN_RELEASES[: KNOWN_RELEASES.index(version) + 1]), measured(f"vllm=={version}")) == {}


def test_the_model_with_the_faults_of_its_release_hits_what_that_release_hits() -> None:
    assert apart(stored(KNOWN_RELEASES[:3]), measured("model@0.28.0")) == {}
