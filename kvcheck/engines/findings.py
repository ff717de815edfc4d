"""The folder in which a campaign keeps what it finds, from the moment that it is found."""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from pathlib import Path

from kvcheck.files import (
    EXPECTED_FILE,
    RUN_FILE,
    TRACE_FILE,
    OutputError,
    Stated,
    encoded,
    versioned,
    write_json,
    write_run,
    write_trace,
)
from kvcheck.model.actions import Run
from kvcheck.model.observation import Trace

ACCOUNT_FILE = "account.txt"
OF_THE_RUN = ("trace*.json", ACCOUNT_FILE)
"""What is kept beside a run and says nothing of another one. What people make of a run goes elsewhere."""
UNDETERMINED = "undetermined"
"""The folder of runs of which nothing can be said."""
LONGEST_NAME = 80


class Findings:
    """One folder a bucket: ``run.json``, the expected verdict with its signature (of a run of which nothing can be
    said, the target), and a recording and an account once there are.

    A file that cannot be written never ends a campaign: the first reason is kept in ``error``.
    """

    def __init__(self, root: Path, spec: str) -> None:
        self.root = root
        self.error = ""
        self._spec = spec
        self._lock = threading.Lock()

    def save(self, signature: str, run: Run, traces: tuple[Trace, ...] = ()) -> Path:
        """Keep a run, in the place of an earlier one with this signature; returns its file."""
        return self._keep(self.root / folder_name(signature), run, traces, signature)

    def save_run(self, folder: Path, run: Run) -> Path:
        """Keep a run that breaks nothing; returns its file."""
        return self._keep(folder, run)

    def save_undetermined(self, code: str, run: Run, traces: tuple[Trace, ...] = ()) -> Path:
        """Keep a run of which nothing can be said; returns its file."""
        return self._keep(self.root / UNDETERMINED / folder_name(code), run, traces)

    def _keep(self, folder: Path, run: Run, traces: tuple[Trace, ...] = (), signature: str | None = None) -> Path:
        file = folder / RUN_FILE
        with self._lock:
            try:
                _remove(folder, *OF_THE_RUN)
                write_run(file, run)
                write_json(folder / EXPECTED_FILE, versioned(said_of(self._spec, signature)))
                self._save_traces(folder, traces)
            except OutputError as error:
                self.error = self.error or str(error)
        return file

    def discard(self, signature: str) -> None:
        """Take away a run that turned out to show nothing."""
        folder = self.root / folder_name(signature)
        _remove(folder, RUN_FILE, EXPECTED_FILE, *OF_THE_RUN)
        with contextlib.suppress(OSError):
            folder.rmdir()

    @staticmethod
    def _save_traces(folder: Path, traces: tuple[Trace, ...]) -> None:
        names = [TRACE_FILE] if len(traces) == 1 else [f"trace-{i}.json" for i in range(1, len(traces) + 1)]
        for name, trace in zip(names, traces, strict=True):
            write_trace(folder / name, trace)


def said_of(spec: str, signature: str | None) -> Stated:
    """What is said of a run that was found on a target."""
    if signature is None:
        return Stated(target=spec)
    return Stated(expected={spec: "violated"}, signature=signature)


def _remove(folder: Path, *patterns: str) -> None:
    for pattern in patterns:
        for file in folder.glob(pattern):
            with contextlib.suppress(OSError):
                file.unlink()


def folder_name(signature: str) -> str:
    """A signature as a name that every file system takes; two different ones never get the same."""
    plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", signature).strip("-.") or "finding"
    if plain == signature.replace(" ", "-") and len(plain) <= LONGEST_NAME:
        return plain
    return f"{plain[:LONGEST_NAME].rstrip('-.')}-{hashlib.sha256(encoded(signature)).hexdigest()[:6]}"


def campaign_folder(base: Path, spec: str, seed: int, *kind: str) -> Path:
    """The folder of one campaign below a base; ``kind`` is what else tells it from others, such as its layout."""
    target = folder_name(spec.replace("==", "-").replace("path:", "path-"))
    return base / folder_name("-".join([target, "seed", str(seed), *map(folder_name, kind)]))
