"""`kvcheck faults`: what the model can do wrong."""

from __future__ import annotations

import click

from kvcheck.cli.options import json_option, screen_for, write_report
from kvcheck.cli.status import PASSED
from kvcheck.model.faults import FAULTS, Fault
from kvcheck.report.lists import show_table


@click.command()
@json_option
def command(json_file: str | None) -> int:
    """List the faults of the model: name, releases that have it, what goes wrong, rules and issues."""
    screen = screen_for(json_file, no_color=True)
    show_table(screen, [(name, _releases(one), f"{one.claim} ({one.rules})") for name, one in FAULTS.items()])
    entries = [
        {"name": name, "claim": one.claim, "rules": one.rules.split(), "since": one.since, "until": one.until}
        for name, one in FAULTS.items()
    ]
    write_report(json_file, {"version": 1, "faults": entries})
    return PASSED


def _releases(fault: Fault) -> str:
    if not fault.since:
        return "none looked at"
    return fault.since if fault.since == fault.until else f"{fault.since} to {fault.until}"
