"""docs/releases.md: made from its data, and no difference in it without a cause."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "releases"
DATA = ROOT / "docs" / "releases.json"
PAGE = ROOT / "docs" / "releases.md"
CHANGES: list[dict[str, Any]] = json.loads(DATA.read_text(encoding="utf-8"))["changes"]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = SourceFileLoader("releases_script", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data(script: ModuleType) -> Any:
    return msgspec.json.decode(DATA.read_bytes(), type=script.Data)


def test_the_page_is_what_the_data_gives_and_every_difference_is_explained() -> None:
    result = run("--check")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout == ""


def test_the_script_is_executable() -> None:
    assert SCRIPT.stat().st_mode & 0o111


def test_a_page_that_was_edited_by_hand_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text(encoding="utf-8") + "\nmore\n", encoding="utf-8")
    result = run("--check", "--page", page)
    assert result.returncode == 1
    assert result.stdout == "the page is not what the data gives: run scripts/releases\n"


def test_a_list_without_one_of_its_changes_fails(tmp_path: Path) -> None:
    whole = json.loads(DATA.read_text(encoding="utf-8"))
    del whole["changes"][0]
    tampered = tmp_path / "data.json"
    tampered.write_text(json.dumps(whole), encoding="utf-8")
    result = run("--check", "--data", tampered)
    assert result.returncode == 1
    assert "unexplained: " in result.stdout


@pytest.mark.parametrize("index", range(len(CHANGES)), ids=[f"{c['rule']}-{c['first']}" for c in CHANGES])
def test_every_change_explains_what_no_other_does(script: ModuleType, data: Any, index: int) -> None:
    changes = data.changes[:index] + data.changes[index + 1 :]
    found = list(script.faults_in(script.Data(changes, data.hits)))
    assert found
    assert all(line.startswith("unexplained: ") for line in found)


@pytest.mark.parametrize(
    ("index", "edit", "told"),
    [
        (0, {"probes": ("no such layout *",)}, "matches no probe"),
        (0, {"first": "0.31.0", "until": "0.31.0"}, "unexplained: "),
        (-1, {"fault": "no-such-fault"}, "the model's fault no-such-fault is not one of"),
    ],
)
def test_a_change_that_is_not_true_fails(
    script: ModuleType, data: Any, index: int, edit: dict[str, Any], told: str
) -> None:
    changes = list(data.changes)
    changes[index] = msgspec.structs.replace(changes[index], **edit)
    assert any(told in line for line in script.faults_in(script.Data(tuple(changes), data.hits)))


def test_what_is_written_down_shortly_is_read_whole(script: ModuleType, data: Any) -> None:
    table = data.table()
    columns = {name: {probe: row[name] for probe, row in table.items()} for name in script.TARGETS}
    assert script.told_shortly(columns) == data.hits
    assert script.encoded(data) == DATA.read_text(encoding="utf-8")
