"""docs/on-paper-first.md: what the page shows is what its commands print."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = Path("docs/on-paper-first.md")
SECONDS = re.compile(r" \(\d+(\.\d+)? s\)")


class Shown(NamedTuple):
    """A command of the page, and lines that it shows of what the command prints."""

    command: str
    lines: list[str]


def shown_on(page: str) -> list[Shown]:
    shown: list[Shown] = []
    for line in page.splitlines():
        if line.startswith("    $ "):
            shown.append(Shown(line.removeprefix("    $ "), []))
        elif line.startswith("    "):
            shown[-1].lines.append(line.removeprefix("    "))
    return shown


def printed_by(command: str, folder: Path) -> list[str]:
    program, *arguments = shlex.split(command)
    line = [sys.executable, "-m", "kvcheck", *arguments] if program == "kvcheck" else [program, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder), "KVCHECK_OUT": str(folder / "out")}
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False)
    verdict = {0: "passed", 1: "violated", 2: "undetermined"}
    assert done.returncode in verdict, f"{command}: {done.stderr}"
    assert program == "kvcheck" or done.returncode == 0, f"{command}: {done.stderr}"
    assert "kvcheck" not in program or verdict[done.returncode] in done.stdout, f"{command}: {done.stdout}"
    return [SECONDS.sub("", text) for text in done.stdout.splitlines()]


def test_every_command_prints_what_the_page_shows(tmp_path: Path) -> None:
    for name in ("model", "invariants", "kvcheck", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shown = shown_on((ROOT / PAGE).read_text(encoding="utf-8"))
    assert len(shown) > 10
    for command, lines in shown:
        printed = iter(printed_by(command, tmp_path))
        for line in lines:
            assert any(text.startswith(line) for text in printed), f"{command} does not print: {line}"
