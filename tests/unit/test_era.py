"""A release is dated by what it says of itself, and a tree that says nothing by what it can do."""

from __future__ import annotations

from pathlib import Path

import pytest
from releases import output_of, release

from kvcheck.model.observation import TargetInfo
from kvcheck.report.info import info_text
from kvcheck.targets.vllm.era import era_of
from kvcheck.targets.vllm.release import KNOWN_RELEASES

PROJECT = str(Path(__file__).parents[2])
DATED = """
import sys

from kvcheck.targets.vllm.era import era_of
from kvcheck.targets.vllm.loading import load
from kvcheck.targets.vllm.release import resolve

load(resolve(sys.argv[1]))
print(*era_of(None), *era_of("0.1.dev1+g12345"))
"""


@pytest.mark.parametrize("version", KNOWN_RELEASES)
def test_a_release_is_what_it_says(version: str) -> None:
    assert era_of(version) == era_of(f"{version}+cpu") == tuple(int(part) for part in version.split(".")[:2])


@pytest.mark.release
@pytest.mark.parametrize("version", KNOWN_RELEASES)
def test_a_tree_that_says_nothing_is_what_it_can_do(version: str) -> None:
    release(version)
    numbers = " ".join(map(str, era_of(version)))
    assert output_of(DATED, f"vllm=={version}", PYTHONPATH=PROJECT).strip() == f"{numbers} {numbers}"


def test_a_release_that_is_newer_than_all_is_said_to_be() -> None:
    assert "newer than" in info_text(TargetInfo(spec="path:x", version="9.1.0"))
    assert "newer than" not in info_text(TargetInfo(spec="path:x", version=KNOWN_RELEASES[-1]))
    assert "unknown" in info_text(TargetInfo(spec="path:x"))
