"""`kvcheck witnesses`: situations that a campaign should come to."""

from __future__ import annotations

import click

from kvcheck.cli.options import json_option, screen_for, write_report
from kvcheck.cli.status import PASSED
from kvcheck.invariants.witnesses import WITNESSES
from kvcheck.report.lists import show_table


@click.command()
@json_option
def command(json_file: str | None) -> int:
    """List the situations that a campaign must come to, where its layouts allow them, to count as passed."""
    screen = screen_for(json_file, no_color=True)
    show_table(screen, [(one.name, one.description) for one in WITNESSES.values()])
    entries = [{"name": one.name, "description": one.description} for one in WITNESSES.values()]
    write_report(json_file, {"version": 1, "witnesses": entries})
    return PASSED
