"""Ctrl-C and termination: what was found is reported."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

import click

from kvcheck.cli.status import UNDETERMINED, VIOLATED
from kvcheck.report.console import Screen


class Interruptible(Protocol):
    """Long work. ``interrupted``: it was told to end soon. ``found_something``: there is a violation to report."""

    interrupted: bool

    @property
    def found_something(self) -> bool: ...

    def interrupt(self) -> None:
        """End soon."""

    def kill(self) -> None:
        """End all workers at once."""


def answer_interruptions(work: Interruptible, screen: Screen) -> None:
    """From now to the end of the command Ctrl-C (or a termination) ends the work, and what was found is reported and
    kept; a second one waits for nothing that still works, and a third one ends everything."""
    click.get_current_context().with_resource(_answered(work, screen))


@contextmanager
def _answered(work: Interruptible, screen: Screen) -> Iterator[None]:
    times = 0

    def handler(_number: int, _frame: FrameType | None) -> None:
        nonlocal times
        times += 1
        if times == 1:
            work.interrupt()
        elif times == 2:
            work.kill()
        else:
            screen.console.show_cursor()
            os._exit(VIOLATED if work.found_something else UNDETERMINED)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
