"""What a person sees: progress while a campaign works, lines, and colours where a terminal has them."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from types import TracebackType
from typing import IO, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from kvcheck.engines.campaign import Progress
from kvcheck.report.describe import counted

LINE_SECONDS = 10.0
"""How often progress is told where nothing can be overwritten."""
MOST_LINES = 8
STYLES = {"passed": "bold green", "violated": "bold red", "undetermined": "bold yellow"}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Nobody reads any more: that is told to whoever writes; by default the process would exit with 1."""
        raise BrokenPipeError


class Screen:
    """Writes lines to one stream. Lines are never wrapped: commands in them can be copied.

    A stream that takes no more (a closed pipe, a full disk) ends nothing: the verdict and the report come all the same.
    """

    def __init__(self, stream: TextIO, no_color: bool = False) -> None:
        self._mute = False
        self.console = _Console(
            file=stream, no_color=True if no_color else None, highlight=False, markup=False, emoji=False
        )

    @property
    def live(self) -> bool:
        """Whether lines can be overwritten."""
        return self.console.is_terminal and not self.console.is_dumb_terminal

    def line(self, text: str = "", style: str = "") -> None:
        """One line."""
        self._print(Text(text, style=style))

    def verdict(self, verdict: str, text: str) -> None:
        """A verdict in its colour, and what it means."""
        self._print(Text.assemble((verdict, STYLES[verdict]), text))

    def _print(self, text: Text) -> None:
        if self._mute:
            return
        try:
            self.console.print(text, soft_wrap=True)
            self.console.file.flush()
        except OSError as error:
            self._mute = True
            silence(self.console.file)
            if not isinstance(error, BrokenPipeError):
                sys.stderr.write(f"kvcheck: cannot go on writing to the screen: {error.strerror}\n")


def silence(stream: IO[str]) -> None:
    """Nothing that is still in the stream's buffer is tried again, at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class ProgressView:
    """Shows progress: in place on a terminal, otherwise a line from time to time."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._last_line = time.monotonic()
        self._live = Live(console=screen.console, auto_refresh=False, transient=True) if screen.live else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Show it."""
        if self._live is not None:
            self._live.update(self._picture(progress), refresh=True)
        elif time.monotonic() - self._last_line >= LINE_SECONDS:
            self._last_line = time.monotonic()
            self._screen.line(summary(progress))

    def _picture(self, progress: Progress) -> Text:
        lines = [summary(progress)]
        lines += [f"  {times:>5} x {signature}  ({state})" for signature, times, state in progress.buckets[:MOST_LINES]]
        if len(progress.buckets) > MOST_LINES:
            lines.append(f"  and {len(progress.buckets) - MOST_LINES} more")
        return Text("\n".join(lines), overflow="ellipsis", no_wrap=True)


def summary(progress: Progress) -> str:
    """Progress in one line."""
    speed = progress.actions / progress.seconds if progress.seconds > 0 else 0.0
    parts = [
        f"{progress.seconds:.0f} s",
        counted(progress.runs, "run"),
        f"{counted(progress.actions, 'action')} ({speed:.0f}/s)",
        f"{progress.reached} of {progress.possible} situations reached",
        counted(len(progress.buckets), "violation"),
    ]
    if progress.undetermined:
        parts.append(f"{progress.undetermined} undetermined")
    if not progress.searching:
        parts.append("shrinking and replaying")
    return ", ".join(parts)
