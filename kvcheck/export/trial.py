"""An exported test is tried where it should fail: one that passes there would be worth nothing."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from kvcheck.engines.workers import environment_of_workers
from kvcheck.export.found import Found

TRIAL_SECONDS = 300.0
_CRASH = re.compile(r"^(?P<file>.*?\.py):(?P<line>\d+): (?P<what>.*)$", re.MULTILINE)


def tried(text: str, found: Found) -> str:
    """Why the test is worth nothing; empty if it fails on the target of the recording for the reason that it is about.

    Raises:
        LookupError: there is no pytest to try it with.
    """
    if importlib.util.find_spec("pytest") is None:
        raise LookupError("pytest is not installed")
    with tempfile.TemporaryDirectory(prefix="kvcheck-") as folder:
        file = Path(folder) / "test_exported.py"
        file.write_text(text, encoding="utf-8")
        return _judged(_pytest(file, found), file, found)


def _pytest(file: Path, found: Found) -> subprocess.CompletedProcess[str] | None:
    """A session with this test alone, on the release as it was loaded for the recording; None: it did not end."""
    info = found.trace.target
    plugins = ["-p", "no:cacheprovider", "-p", "kvcheck.pytest_plugin"]
    light = ["--kvcheck-light", info.spec] if info.mode == "light" else []
    line = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-q",
        "--tb=line",
        "--rootdir",
        str(file.parent),
        *plugins,
        *light,
        str(file),
    ]
    try:
        return subprocess.run(  # noqa: S603  our own command
            line, env=environment_of_workers(), capture_output=True, text=True, check=False, timeout=TRIAL_SECONDS
        )
    except subprocess.TimeoutExpired:
        return None


def _judged(done: subprocess.CompletedProcess[str] | None, file: Path, found: Found) -> str:
    if done is None:
        return "the test does not end"
    if done.returncode == 0 and " skipped" in done.stdout:
        return "the test is skipped there: it cannot make the server"
    if done.returncode == 0:
        return "the test passes there: what is broken does not show in what it asserts"
    crash = _CRASH.search(done.stdout)
    if done.returncode != 1 or crash is None:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        return f"the test cannot be run: {lines[-1] if lines else f'pytest ended with {done.returncode}'}"
    failure, what = found.moment.observation.failure, crash["what"]
    if failure is not None:
        right = what.startswith(failure.type) and crash["file"].endswith(Path(failure.file).name)
    else:
        right = Path(crash["file"]).name == file.name and what.startswith(("AssertionError", "assert"))
    return "" if right else f"the test fails for another reason: {Path(crash['file']).name}:{crash['line']}: {what}"
