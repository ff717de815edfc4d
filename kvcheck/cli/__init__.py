"""The command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit. Ctrl-C is heard also while the modules load."""
    try:
        from kvcheck.cli.main import main as run_and_exit  # noqa: PLC0415
    except KeyboardInterrupt:
        sys.stderr.write("kvcheck: interrupted\n")
        sys.exit(2)
    run_and_exit()
