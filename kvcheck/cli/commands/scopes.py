"""`kvcheck scopes`: what can be searched completely."""

from __future__ import annotations

import click

from kvcheck.cli.options import json_option, screen_for, write_report
from kvcheck.cli.status import PASSED
from kvcheck.explorer.scope import facts, names, scope_of
from kvcheck.report.lists import show_table


@click.command()
@json_option
def command(json_file: str | None) -> int:
    """List the scopes that `kvcheck explore` searches: name, what it is about, and its bounds."""
    screen = screen_for(json_file, no_color=True)
    scopes = {name: scope_of(name) for name in names()}
    rows = [(name, f"{scope.what} ({'; '.join(facts(scope).values())})") for name, scope in scopes.items()]
    show_table(screen, rows)
    entries = [
        {"scope": name, "what": scope.what, **facts(scope), "kills": list(scope.kills)}
        for name, scope in scopes.items()
    ]
    write_report(json_file, {"version": 1, "scopes": entries})
    return PASSED
