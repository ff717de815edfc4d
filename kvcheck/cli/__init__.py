"""The command line."""

from kvcheck.cli.main import main

__all__ = ["main"]
