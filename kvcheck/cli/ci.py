"""What a fuzz job in CI needs around a campaign: the failures of earlier jobs, known failures, reports for its tools.

The options are one object, so that the command reads as what it does.
"""

from __future__ import annotations

import functools
import importlib
import os
import shlex
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from kvcheck.cli.options import RANDOM, written
from kvcheck.engines.afterwards import places
from kvcheck.engines.baseline import (
    Baseline,
    Standing,
    excused,
    read_baseline,
    standings,
    today,
    updated,
    write_baseline,
)
from kvcheck.engines.campaign import CampaignResult, Plan
from kvcheck.engines.database import FORMS, Database, open_database
from kvcheck.engines.earlier import Earlier, counterexamples_in, family, in_order, missed, remember, stored_in
from kvcheck.files import (
    InputError,
    OutputError,
    append_text,
    extra,
    one_line,
    require_writable,
    write_json,
    write_whole,
)
from kvcheck.model.actions import Level
from kvcheck.report.console import Screen
from kvcheck.report.known import baseline_entry, show_earlier, show_known, update_text
from kvcheck.report.sarif import sarif_report
from kvcheck.report.summary import summary_report

Command = TypeVar("Command", bound=Callable[..., Any])

COUNTEREXAMPLES = Path("counterexamples")
DATABASE = "database"
"""Where failures are kept, below the folder for what is found."""
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


class CiOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What these options say."""

    database: tuple[str, ...]
    counterexamples: tuple[Path, ...]
    fresh: bool
    baseline: Path | None
    update_baseline: bool
    junit: Path | None
    sarif: Path | None
    summary: Path | None


def _only_one(_context: click.Context, _parameter: click.Parameter, files: tuple[Path, ...]) -> Path | None:
    """Of two files one would be left out, and nobody would know."""
    if len(files) > 1:
        raise click.BadParameter("may be given only once")
    return files[0] if files else None


def _file(name: str, told: str, **more: Any) -> Callable[[Command], Command]:
    return click.option(name, type=click.Path(path_type=Path), metavar="FILE", help=told, **more)


_OPTIONS = (
    click.option(
        "--database",
        metavar="WHERE",
        multiple=True,
        help=f"Where failures are kept for later campaigns, which replay them first: {FORMS}; may be given again.  "
        "[default: $KVCHECK_DATABASE, which is one place, or the folder database below --out]",
    ),
    click.option(
        "--counterexamples",
        type=click.Path(path_type=Path),
        metavar="DIR",
        multiple=True,
        help=f"Counterexamples to replay first; may be given again.  [default: {COUNTEREXAMPLES}, if it is there and "
        "the layouts are random]",
    ),
    click.option("--fresh", is_flag=True, help="Replay nothing first."),
    _file("--baseline", "Known failures, which do not make the verdict violated.", multiple=True, callback=_only_one),
    click.option("--update-baseline", is_flag=True, help="Write into that file what this campaign says of it."),
    _file("--junit", "Write a report as JUnit's XML."),
    _file("--sarif", "Write a report as SARIF, which points into the server's source."),
    _file(
        "--summary",
        f"Add a report in Markdown to a file.  [default: ${STEP_SUMMARY}, if it is set]",
        envvar=STEP_SUMMARY,
    ),
)


def ci_options(command: Command) -> Command:
    """All these options, as the argument ``ci``."""

    @functools.wraps(command)
    def wrapped(**arguments: Any) -> Any:
        ours = {name: arguments.pop(name) for name in CiOptions.__struct_fields__}
        return command(ci=CiOptions(**ours), **arguments)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


class Ci:
    """One job around one campaign.

    Raises (when it is made):
        InputError: a file cannot be read, a place is no database, or a library is missing.
        OutputError: a report could not be written.
    """

    def __init__(self, options: CiOptions, out: Path) -> None:
        self.options = options
        self._check_outputs()
        if options.update_baseline and options.baseline is None:
            raise InputError("--update-baseline needs a --baseline")
        if options.fresh and options.counterexamples:
            raise InputError("--fresh replays nothing: it cannot go with --counterexamples")
        self._day: date = today()
        self._baseline = Baseline()
        if options.baseline is not None:
            self._baseline = read_baseline(options.baseline, may_be_missing=options.update_baseline)
        places = options.database or tuple(filter(None, [os.environ.get("KVCHECK_DATABASE")]))
        self._database: Database = open_database(places, out / DATABASE)
        self._family = ""
        self._command = ""
        self._standings: list[Standing] = []

    def _check_outputs(self) -> None:
        options = self.options
        known = (options.baseline,) if options.baseline else ()
        for file in filter(None, (options.junit, options.sarif)):
            require_writable(file, *known)
        if options.update_baseline and options.baseline:
            require_writable(options.baseline)
        if options.summary:
            require_writable(options.summary, *known, appended=True)
        if options.junit is not None:
            try:
                importlib.import_module("junitparser")
            except ImportError as error:
                raise InputError(f"--junit needs {extra('junit')}: {one_line(error)}") from error

    # ---- before the campaign -------------------------------------------------------------------------------------

    def prepared(self, screen: Screen, plan: Plan, layout: str, level: Level) -> Plan:
        """The plan, with what is known and what is to be replayed first. Folders that hold none of that are told."""
        self._family = family(plan.spec, layout, level)
        self._command = _command_of(plan, layout, level)
        earlier, unread = self._earlier(screen, plan.spec, layout, level)
        return msgspec.structs.replace(
            plan, known=excused(self._baseline, self._day), earlier=in_order(earlier), unread=tuple(unread)
        )

    def _earlier(self, screen: Screen, spec: str, layout: str, level: Level) -> tuple[list[Earlier], list[str]]:
        if self.options.fresh:
            return [], []
        earlier, unread = stored_in(self._database, self._family)
        for text in unread:
            screen.line(f"earlier  {text}", "yellow")
        folders = self.options.counterexamples
        if not folders and layout == RANDOM and COUNTEREXAMPLES.is_dir():
            folders = (COUNTEREXAMPLES,)
        for folder in folders:
            found = counterexamples_in(folder, spec, level)
            if not found:
                screen.line(f"earlier  {folder} holds no counterexample of level {level}", "yellow")
            earlier += found
        return earlier, unread

    # ---- after it ------------------------------------------------------------------------------------------------

    def conclude(self, result: CampaignResult) -> dict[str, Any] | None:
        """What the campaign says of known failures, for the JSON report; None without a baseline."""
        shown = {bucket.signature for bucket in result.buckets}
        self._standings = standings(
            self._baseline, shown, missed(result.earlier), whole=not result.undetermined, day=self._day
        )
        if self.options.baseline is None:
            return None
        writes = self.options.update_baseline and not result.interrupted
        return baseline_entry(self._standings, str(self.options.baseline), writes)

    @property
    def standings(self) -> tuple[Sequence[Standing], str]:
        """What the campaign says of each known failure, and the file that names them; empty if there is none."""
        return self._standings, str(self.options.baseline or "")

    def show(self, screen: Screen, result: CampaignResult) -> None:
        """What came of earlier failures and of known ones."""
        show_earlier(screen, result)
        if self.options.baseline is not None:
            show_known(screen, self._standings, str(self.options.baseline))

    def write(self, screen: Screen, result: CampaignResult) -> bool:
        """Write the reports, and the baseline if it is to be updated; whether all could be written."""
        done = [written(lambda: self._write_baseline(screen, result))]
        writers = [self._write_junit, self._write_summary, self._write_sarif]
        done += [written(partial(writer, result)) for writer in writers]  # each, whatever became of the others
        return all(done)

    def keep(self, result: CampaignResult) -> None:
        """Keep what was found for later campaigns.

        Raises:
            OutputError: that cannot be done.
        """
        if not remember(self._database, self._family, result.buckets):
            raise OutputError(f"what was found is not kept for later campaigns: {self._database.error}")

    def _write_baseline(self, screen: Screen, result: CampaignResult) -> None:
        file = self.options.baseline
        if file is None or not self.options.update_baseline:
            return
        if result.interrupted:
            screen.line(f"{file} is left as it was: the campaign was interrupted", "yellow")
            return
        confirmed = [bucket.signature for bucket in result.buckets if bucket.confirmed]
        baseline = updated(self._standings, confirmed, f"nobody has said why yet; found by {self._command}", self._day)
        write_baseline(file, baseline)
        screen.line(update_text(str(file), self._baseline, baseline, result))

    def _write_junit(self, result: CampaignResult) -> None:
        if self.options.junit is not None:
            from kvcheck.report.junit import junit_report  # noqa: PLC0415  needs an extra

            write_whole(self.options.junit, junit_report(result, self._standings))

    def _write_summary(self, result: CampaignResult) -> None:
        if self.options.summary is not None:
            append_text(self.options.summary, summary_report(result, self._standings, str(self.options.baseline)))

    def _write_sarif(self, result: CampaignResult) -> None:
        if self.options.sarif is not None:
            write_json(self.options.sarif, sarif_report(result, self._standings, places(result)))


def _command_of(plan: Plan, layout: str, level: Level) -> str:
    """The command that makes the runs of this campaign, as far as they do not depend on time."""
    words = ["kvcheck", "fuzz", "--target", plan.spec, "--seed", str(plan.seed)]
    words += ["--layout", layout] if layout != RANDOM else []
    words += ["--level", level] if level != "scheduler" else []
    words += ["--shard", "/".join(map(str, plan.shard))] if plan.shard != (1, 1) else []
    return shlex.join(words)


def shard_of(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[int, int]:
    """--shard."""
    if value is None:
        return 1, 1
    which, slash, of = value.partition("/")
    if not (slash and which.isdecimal() and of.isdecimal() and 1 <= int(which) <= int(of)):
        raise click.BadParameter(f"{value!r} is not I/N, such as 2/4")
    return int(which), int(of)
