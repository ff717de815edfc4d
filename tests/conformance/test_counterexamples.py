"""Every counterexample shows on each release what its folder says: verdict and signature."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from releases import output_of, release

from kvcheck.files import read_run, run_text
from kvcheck.invariants.registry import all_invariants
from kvcheck.targets.vllm.release import KNOWN_RELEASES

ROOT = Path(__file__).parents[2]
LIST = (ROOT / "counterexamples/README.md").read_text(encoding="utf-8")
FOLDERS = sorted(path.parent for path in (ROOT / "counterexamples").glob("*/run.json"))

REPLAY_ALL = """
    import json, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from kvcheck.engines.judging import judge_run
    from kvcheck.files import read_run
    from kvcheck.targets.vllm.release import resolve
    from kvcheck.targets.vllm.target import VllmTarget

    target, seen = VllmTarget(resolve(sys.argv[2])), {}
    for folder in sys.argv[3:]:
        result = judge_run(target, read_run(Path(folder)))
        happened = result.actions > result.skipped and not result.undetermined
        verdict = "violated" if result.violations else "passed" if happened else "undetermined"
        seen[Path(folder).name] = [verdict, [v.signature for v in result.violations], result.undetermined]
    print(json.dumps(seen))
"""


def expected_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.release
@pytest.mark.parametrize("version", KNOWN_RELEASES)
def test_all_of_them_on_one_release(version: str) -> None:
    release(version)
    spec = f"vllm=={version}"
    seen = json.loads(output_of(REPLAY_ALL, ROOT, spec, *FOLDERS, PYTHONHASHSEED="0"))
    wrong = {}
    for folder in FOLDERS:
        stated = expected_of(folder)
        verdict, signatures, undetermined = seen[folder.name]
        shows = verdict != "violated" or stated["signature"] in signatures
        if verdict != stated["expected"][spec] or not shows:
            wrong[folder.name] = (verdict, signatures, undetermined)
    assert wrong == {}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_is_whole(folder: Path) -> None:
    """A run that explains itself, a verdict for each release of which one is "violated", and a page with the same."""
    run, stated = read_run(folder), expected_of(folder)
    assert run.note
    assert (folder / "run.json").read_text(encoding="utf-8") == run_text(run)
    assert msgspec.json.decode((folder / "expected.json").read_bytes())["version"] == 1
    assert list(stated["expected"]) == [f"vllm=={version}" for version in KNOWN_RELEASES]
    assert "violated" in stated["expected"].values()
    page = (folder / "README.md").read_text(encoding="utf-8")
    verdicts = re.search(r"^\|---.*\|\n\|(.*)\|$", page, re.MULTILINE)
    assert verdicts is not None
    assert [cell.strip() for cell in verdicts[1].split("|")] == list(stated["expected"].values())
    assert f"`{stated['signature']}`" in page
    severity = next(one.severity for one in all_invariants() if one.id == stated["signature"].split()[0])
    assert f"**Severity: {severity}.**" in page
    assert f"[{folder.name}]({folder.name}/README.md) | {severity} |" in LIST


def test_the_list_names_every_folder() -> None:
    listed = re.findall(r"^\| \[([a-z0-9-]+)\]", LIST, re.MULTILINE)
    assert sorted(listed) == [folder.name for folder in FOLDERS]


def test_pages_cite_rules_that_exist() -> None:
    rules = (ROOT / "docs/rules.md").read_text(encoding="utf-8")
    known = set(re.findall(r"\*\*(R\d+(?:\.\d+)+)\*\*", rules))
    for folder in FOLDERS:
        cited = set(re.findall(r"\bR\d+(?:\.\d+)+", (folder / "README.md").read_text(encoding="utf-8")))
        assert cited, folder.name
        assert cited <= known, (folder.name, cited - known)
