"""The entry point: finds the command, and turns whatever goes wrong into one line and an exit status."""

from __future__ import annotations

import errno
import importlib
import io
import os
import pkgutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import click

import kvcheck
from kvcheck.cli import commands
from kvcheck.cli.status import UNDETERMINED, WRONG_USAGE
from kvcheck.files import InputError, OutputError, one_line
from kvcheck.report.console import silence
from kvcheck.targets.errors import TargetError


class Commands(click.Group):
    """Every module of `kvcheck.cli.commands` is a command; only the one that is asked for is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """The names of all commands."""
        return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{commands.__name__}.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.version_option(kvcheck.__version__, prog_name="kvcheck", message="%(prog)s %(version)s")
def cli() -> None:
    """Check the bookkeeping of a hybrid KV cache: drive a real vLLM scheduler with random layouts and actions.

    Exit status: 0 passed, 1 violated, 2 undetermined, 3 wrong usage or unreadable input.
    """


def main() -> None:
    """Run the command line and exit."""
    if sys.stdout is None:  # it was closed when the process began
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  open until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may be no text
    signal.signal(signal.SIGINT, _interrupted)
    status = run(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said
    sys.exit(status)


class _Interrupted(KeyboardInterrupt):
    """Python ends with the signal itself, not with our status, if a plain one once passed through code in a string,
    such as that of a class that is being made."""


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    raise _Interrupted


def run(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    try:
        status: Any = cli.main(list(arguments), prog_name="kvcheck", standalone_mode=False)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        return _complain("interrupted", UNDETERMINED)
    except BrokenPipeError:
        silence(sys.stdout)
        return UNDETERMINED
    except Exception as error:  # noqa: BLE001  the last place where it can be told
        return _complain(*_told(error))
    return status if isinstance(status, int) else 0


def _told(error: Exception) -> tuple[str, int]:
    """What went wrong, in one line, and the exit status."""
    if isinstance(error, click.ClickException):
        return _usage_text(error), WRONG_USAGE
    if isinstance(error, TargetError | InputError):
        return one_line(error), WRONG_USAGE
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"{error.strerror}: {error.filename}", WRONG_USAGE
    if isinstance(error, OutputError | OSError):  # a full disk, no more processes, ...
        return one_line(error), UNDETERMINED
    return _own_mistake(error), UNDETERMINED


def _complain(text: str, status: int) -> int:
    click.echo(f"kvcheck: {text}", err=True)
    return status


def _usage_text(error: click.ClickException) -> str:
    text = " ".join(error.format_message().split())
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{text} (see {context.command_path} --help)" if context is not None else text


def _own_mistake(error: Exception) -> str:
    told = f"{type(error).__name__}: {one_line(error)}; this is a bug of kvcheck"
    file = Path(os.environ.get("KVCHECK_OUT", "kvcheck-out")) / f"error-{int(time.time())}-{os.getpid()}.txt"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    except OSError:
        return told
    return f"{told}: {file} has the traceback"
