"""What all tests share is importable by name, here and in worker processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs no release comes first: it is quick, and tells most."""
    items.sort(key=lambda item: item.get_closest_marker("release") is not None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Figures that tests have measured (`record_property("measured", text)`) are printed, not only asserted."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    measured = [text for report in reports for name, text in report.user_properties if name == "measured"]
    if measured:
        terminalreporter.section("measured")
        for text in measured:
            terminalreporter.write_line(text)
