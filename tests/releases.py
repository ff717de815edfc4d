"""Help for tests that need a real release of vLLM, or a process of their own to load one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kvcheck.targets.errors import RegistryUnreachable
from kvcheck.targets.vllm.release import Mode, Release, resolve


def release(version: str, mode: Mode | None = None) -> Release:
    """A fetched release; without a network the test is skipped, in CI it fails."""
    try:
        return resolve(f"vllm=={version}", mode=mode)
    except RegistryUnreachable as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI must reach the package index: {error}")
        pytest.skip(str(error))


def run_python(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter; `arguments` are its sys.argv[1:]."""
    line = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)]
    variables = {**os.environ, **environment}
    return subprocess.run(line, env=variables, capture_output=True, text=True, timeout=600, check=False)


def output_of(code: str, *arguments: object, **environment: str) -> str:
    """What the code prints; the test fails with its traceback if it fails."""
    result = run_python(code, *arguments, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """Make a tree of files for a test; returns its root."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(content), encoding="utf-8")
    return root
