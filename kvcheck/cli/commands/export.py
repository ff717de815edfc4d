"""`kvcheck export`: a run in another form."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click

from kvcheck.cli.export_pages import page_of
from kvcheck.cli.export_tests import own_test, server_test
from kvcheck.cli.exported import Exported
from kvcheck.cli.options import STDOUT, color_option, signature_option, target_option
from kvcheck.files import InputError, encoded, name_of, require_writable, write_text
from kvcheck.report.console import Screen
from kvcheck.report.pages.render import require_extra


class Format(NamedTuple):
    """A form: what it is, how its file is called by default (NAME: as the run), how it is made of a run, a target and a
    signature (None: not named), and what must hold before that."""

    what: str
    called: str
    make: Callable[[Path, str | None, str | None, Screen], Exported]
    require: Callable[[], None] = lambda: None

    def file_for(self, path: Path) -> Path:
        """The file of the default name: in the current folder, so that no folder of counterexamples gets another."""
        return Path(self.called.replace("NAME", name_of(path)))


def _require_ours(file: Path, text: str) -> None:
    """A file of the default name is not written over, unless it says the same.

    Raises:
        InputError: it says something else.
    """
    if file.exists() and file.read_bytes() != encoded(text):
        raise InputError(f"{file} is there already and says something else: name a file with --out")


FORMATS = {
    "html": Format("one page to look at", "NAME.html", page_of, require_extra),
    "pytest": Format("a test that uses kvcheck", "test_kvcheck_NAME.py", own_test),
    "vllm-test": Format("a test in the style of the server's own", "test_NAME.py", server_test),
}


@click.command()
@click.argument("path", metavar="RUN|TRACE", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "form",
    type=click.Choice(list(FORMATS)),
    required=True,
    help="; ".join(f"{name}: {form.what}" for name, form in FORMATS.items()) + ".",
)
@target_option(None, note="  [default: what RUN was kept for or recorded on, else the model]")
@signature_option("Which violation to test", "the first")
@click.option(
    "--out",
    metavar="FILE",
    help=f"Where to write it ({STDOUT}: to stdout).  [default: in the current folder, called as the run: "
    f"{', '.join(form.called for form in FORMATS.values())}]",
)
@color_option
def command(path: Path, form: str, target: str | None, signature: str | None, out: str | None, no_color: bool) -> int:
    """Turn a run (a counterexample's folder, a run file, or the trace that kvcheck replay --record wrote) into a page,
    or into a test that fails on the target and passes where the violation is gone. A recording of a running server
    becomes a run first (kvcheck record FILE --out RUN).

    Exit status: 0 if it was written, whatever the run shows; 2 if it could not be seen what the run does.
    """
    screen = Screen(sys.stderr if out == STDOUT else sys.stdout, no_color)
    chosen = FORMATS[form]
    chosen.require()
    file = None if out == STDOUT else Path(out) if out else chosen.file_for(path)
    if file is not None:
        require_writable(file, path)
    exported = chosen.make(path, target, signature, screen)
    if exported.text is None:
        screen.verdict("undetermined", f": not exported: {exported.told}")
    elif file is None:
        sys.stdout.write(exported.text)
    else:
        if out is None:
            _require_ours(file, exported.text)
        write_text(file, exported.text)
        screen.line(f"{file}: {exported.told}")
    return exported.status
