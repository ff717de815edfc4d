"""The command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit. Ctrl-C is heard also while the modules load, and a mistake in one of them, which
    people edit, is no violation."""
    try:
        from kvcheck.cli.main import main as run_and_exit  # noqa: PLC0415
    except KeyboardInterrupt:
        sys.stderr.write("kvcheck: interrupted\n")
        sys.exit(2)
    except Exception as error:  # noqa: BLE001  whatever an edited model raises when it is imported
        sys.stderr.write(f"kvcheck: cannot be loaded: {type(error).__name__}: {error}\n")
        sys.exit(2)
    run_and_exit()
