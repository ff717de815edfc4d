"""What all tests share is importable by name, here and in worker processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs no release comes first: it is quick, and tells most."""
    items.sort(key=lambda item: item.get_closest_marker("release") is not None)
