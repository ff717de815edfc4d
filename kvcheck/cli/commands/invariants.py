"""`kvcheck invariants`: what is checked."""

from __future__ import annotations

import click

from kvcheck.cli.options import json_option, screen_for, write_report
from kvcheck.cli.status import PASSED
from kvcheck.invariants.registry import MEANING, all_invariants
from kvcheck.report.lists import show_table


@click.command()
@json_option
def command(json_file: str | None) -> int:
    """List the invariants: id, severity, claim, rules."""
    screen = screen_for(json_file, no_color=True)
    known = all_invariants()
    show_table(screen, [(one.id, str(one.severity), f"{one.claim} ({' '.join(one.rules)})") for one in known])
    entries = [
        {
            "id": one.id,
            "severity": str(one.severity),
            "meaning": MEANING[one.severity],
            "kind": one.kind,
            "claim": one.claim,
            "rules": list(one.rules),
        }
        for one in known
    ]
    write_report(json_file, {"version": 1, "invariants": entries})
    return PASSED
