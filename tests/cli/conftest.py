"""What tests of commands share: a folder of their own, and toy targets in the place of releases."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from toys import LOADER, SEARCHER

from kvcheck.cli.commands import fuzz, replay, shrink
from kvcheck.engines.campaign import Plan
from kvcheck.engines.watched import Watched
from kvcheck.engines.workers import Limits
from kvcheck.model.observation import TargetInfo


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("KVCHECK_OUT", "KVCHECK_DATABASE", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let commands drive toys; called with the labels of the runs to draw."""
    limits = Limits(stall_seconds=1.0)
    watched = functools.partial(Watched, limits=limits, loader=LOADER, searcher=SEARCHER)
    monkeypatch.setattr(fuzz, "Plan", functools.partial(Plan, limits=limits, loader=LOADER))
    monkeypatch.setitem(fuzz.SEARCHERS, "scheduler", SEARCHER)
    monkeypatch.setattr(replay, "Watched", watched)
    monkeypatch.setattr(shrink, "Watched", watched)
    for module in (fuzz, replay, shrink):
        monkeypatch.setattr(module, "describe", lambda spec: TargetInfo(spec=spec, version="1"))
    return lambda labels: monkeypatch.setenv("TOY_LABELS", labels)
