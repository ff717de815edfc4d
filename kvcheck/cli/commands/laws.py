"""`kvcheck laws`: what can be proved."""

from __future__ import annotations

import click

from kvcheck.cli.options import json_option, screen_for, write_report
from kvcheck.cli.status import PASSED
from kvcheck.prover.law import all_laws
from kvcheck.report.lists import show_table


@click.command()
@json_option
def command(json_file: str | None) -> int:
    """List the laws that `kvcheck prove` proves: id, claim, rules."""
    screen = screen_for(json_file, no_color=True)
    laws = all_laws()
    show_table(screen, [(one.id, f"{one.claim} ({' '.join(one.rules)})") for one in laws])
    entries = [
        {
            "law": one.id,
            "claim": one.claim,
            "rules": list(one.rules),
            "scope": one.said_for(one.sizes),
            "refutes": list(one.refutes),
        }
        for one in laws
    ]
    write_report(json_file, {"version": 1, "laws": entries})
    return PASSED
