"""docs/guarantees.md: made from the laws, the scopes, the invariants and the faults."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT, PAGE, RULES = ROOT / "scripts" / "guarantees", ROOT / "docs" / "guarantees.md", ROOT / "docs" / "rules.md"


def test_the_page_is_what_the_registries_give() -> None:
    command = [sys.executable, str(SCRIPT), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_every_rule_of_a_correct_server_has_its_line() -> None:
    told = re.findall(r"^\| (R\d[\d.]*) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    rules = re.findall(r"^- \*\*(R[1-8]\.[\d.]+)\*\*", RULES.read_text(encoding="utf-8"), re.MULTILINE)
    assert told == rules
