"""Reading and writing runs, traces and layouts: JSON with a version, written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import tempfile
import threading
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kvcheck.model.actions import Action, Run
from kvcheck.model.layout import Layout, LayoutError, validate
from kvcheck.model.observation import Trace

RUN_FILE = "run.json"
"""The run inside a counterexample's folder."""
TRACE_FILE = "trace.json"
"""What a campaign recorded of a run, beside it."""
EXPECTED_FILE = "expected.json"
"""The verdicts expected of each target, inside a counterexample's folder."""
VERSION = 1

LIVE_BEGINNING = b'{"line":"opened"'
"""How everything begins that was recorded in a live server."""

T = TypeVar("T")


MOST_TOKEN = 2**31 - 1


class InputError(Exception):
    """What a user has given is wrong, such as a file that cannot be read as what it should be; the message is one
    line."""


class OutputError(Exception):
    """A file that cannot be written; the message is one line. What was there before is still there."""


class _Head(msgspec.Struct):
    """What tells the kinds of file apart."""

    version: int = VERSION
    actions: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    observations: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    layout: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    groups: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    verdict: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Stated(msgspec.Struct, omit_defaults=True):
    """What is said of a run, in the file beside it or in its own. ``expected``: the verdict by target. ``signature``:
    the violation that it was kept for. ``target``: what it was found or recorded on; empty: something that nobody can
    name."""

    expected: dict[str, str] = {}
    signature: str | None = None
    target: str | None = None
    version: int = VERSION


class _RunFile(Run, frozen=True, kw_only=True):
    """A run with what is said of it."""

    expected: dict[str, str] = msgspec.field(default_factory=dict)
    signature: str | None = None
    target: str | None = None


# ---- reading -----------------------------------------------------------------------------------------------------


def read_run(path: Path) -> Run:
    """The run in a file or in a counterexample's folder; of a trace, the run that was recorded."""
    found = read_run_or_trace(path)
    return found.run if isinstance(found, Trace) else found


def read_run_or_trace(path: Path) -> Run | Trace:
    """A run or a recording of one, told apart by content; `path` may be a counterexample's folder."""
    file = run_file(path)
    raw = _bytes_of(file)
    head = _head(file, raw)
    if head.observations is not msgspec.UNSET:
        trace = _decoded(file, raw, Trace)
        check_run(file, trace.run)
        indices = [seen.index for seen in trace.observations]
        if indices != list(range(len(indices))) or len(indices) > len(trace.run.actions):
            raise InputError(f"{file}: the observations are not those of its actions, one after the other")
        return trace
    if head.actions is msgspec.UNSET and head.layout is msgspec.UNSET:
        raise InputError(f"{file}: neither a run nor a trace: it has no actions and no observations")
    found = _decoded(file, raw, _RunFile)
    run = Run(**{name: getattr(found, name) for name in Run.__struct_fields__})
    check_run(file, run)
    return run


def read_layout(path: Path) -> Layout:
    """The layout in a file; of a run or a trace, its layout."""
    file = run_file(path)
    raw = _bytes_of(file)
    head = _head(file, raw)
    if head.groups is msgspec.UNSET:
        if head.layout is msgspec.UNSET and head.observations is msgspec.UNSET:
            raise InputError(f"{file}: not a layout; of a model's config, kvcheck layouts from-config makes one")
        return read_run(file).layout
    return _valid(file, _decoded(file, raw, Layout))


def read_as(file: Path, kind: Any) -> Any:
    """What a file of some other kind with a version holds; ``kind`` may be a union."""
    return decoded_as(file, _bytes_of(file), kind)


def decoded_as(file: Path, raw: bytes, kind: Any) -> Any:
    """The same of content that stands somewhere else; ``file`` is what it is called in complaints."""
    _head(file, raw)
    return _decoded(file, raw, kind)


def expected_verdicts(path: Path) -> dict[str, str]:
    """Verdict by target, as a counterexample's folder or the run's file states it; empty if neither does."""
    return stated_of(path).expected


def stated_signature(path: Path) -> str | None:
    """The violation that a run is about; None if nothing says so."""
    return stated_of(path).signature


def stated_of(path: Path) -> Stated:
    """What is said of a run: in its own file, else in the one beside it."""
    run = run_file(path)
    for file in (run, run.with_name(EXPECTED_FILE)):
        if file.is_file():
            raw = _bytes_of(file)
            _head(file, raw)
            stated = _decoded(file, raw, Stated)
            if stated != Stated():
                return stated
    return Stated()


def run_file(path: Path) -> Path:
    """The run's file: of a counterexample's folder, the one in it.

    Raises:
        InputError: no file can have this name.
    """
    try:
        return path / RUN_FILE if path.is_dir() else path
    except OSError as error:  # such as a name that is too long
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def name_of(path: Path) -> str:
    """A name for what is made of a run: that of its folder, or of its file if that is called as no other."""
    there = path.resolve()
    of_folder = there.name == RUN_FILE or (there.name == TRACE_FILE and there.with_name(RUN_FILE).is_file())
    stem = there.parent.name if of_folder else there.stem if there.is_file() else there.name
    return re.sub(r"\W+", "_", stem.casefold(), flags=re.ASCII).strip("_") or "run"


def _bytes_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from error


def _head(file: Path, raw: bytes) -> _Head:
    require_content(file, raw)
    if raw.startswith(LIVE_BEGINNING):
        raise InputError(
            f"{file}: what a live server has recorded becomes a run first: kvcheck record {file} --out RUN"
        )
    head = _decoded(file, raw, _Head)
    if head.verdict is not msgspec.UNSET:
        raise InputError(f"{file}: a report, and not a run; the runs are in the files that it names")
    if head.version != VERSION:
        raise InputError(f"{file}: version {head.version} is not known ({VERSION} is)")
    return head


def require_content(file: Path, raw: bytes) -> None:
    """Whether there is anything in a file.

    Raises:
        InputError: there is not.
    """
    if not raw.strip():
        raise InputError(f"{file}: nothing is in it")


def _decoded(file: Path, raw: bytes, kind: type[T]) -> T:
    try:
        value = msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: {one_line(error)}") from error
    except RecursionError as error:
        raise InputError(f"{file}: nested too deeply") from error
    _require_small_numbers(file, value)
    return value


def _require_small_numbers(file: Path, value: Any) -> None:
    """Integers without a bound can be read, and not be told to a worker."""
    try:
        msgspec.msgpack.encode(value)
    except OverflowError as error:
        raise InputError(f"{file}: a number in it is too large") from error


def check_run(file: Path, run: Run) -> None:
    """Whether a run may be driven.

    Raises:
        InputError: it may not.
    """
    if run.version != VERSION:
        raise InputError(f"{file}: run version {run.version} is not known ({VERSION} is)")
    _require_small_numbers(file, run)
    _valid(file, run.layout)
    for index, action in enumerate(run.actions):
        if problem := action_problem(action):
            raise InputError(f"{file}: action {index}: {problem}")


def action_problem(action: Action) -> str:
    """What no run may have; empty if it is sound."""
    label = getattr(action, "label", "-")
    if not label or not label.isprintable():
        return "its label is empty or cannot be printed"
    tokens = (*getattr(action, "prompt", ()), *getattr(action, "sampled", ()), getattr(action, "max_tokens", 1))
    if not all(0 <= token <= MOST_TOKEN for token in tokens):
        return f"it has a token, or max_tokens, below 0 or above {MOST_TOKEN}"
    counts = [count for answer in getattr(action, "answers", ()) for count in (answer.holds, answer.arrives)]
    counts += [*getattr(action, "accepted", {}).values(), *getattr(action, "proposed", {}).values()]
    if any(count is not None and not 0 <= count <= MOST_TOKEN for count in counts):
        return f"an answer or a number of drafts in it is below 0 or above {MOST_TOKEN}"
    return ""


def _valid(file: Path, layout: Layout) -> Layout:
    try:
        return validate(layout)
    except LayoutError as error:
        raise InputError(f"{file}: the layout breaks {one_line(error)}") from error


def extra(name: str) -> str:
    """An extra, and how it is installed: no index has a package kvcheck."""
    return f"the extra {name} (pip install '.[{name}]' in the clone of kvcheck)"


def one_line(error: BaseException) -> str:
    """An exception's text without line breaks; its type if it has no text."""
    return " ".join(str(error).split()) or type(error).__name__


# ---- writing -----------------------------------------------------------------------------------------------------


def write_run(path: Path, run: Run, stated: Stated | None = None) -> None:
    """A run, one action a line, with what is said of it."""
    write_whole(path, run_text(run, stated).encode())


def write_trace(path: Path, trace: Trace) -> None:
    """A recording."""
    write_whole(path, msgspec.json.encode(trace) + b"\n")


def write_json(path: Path, value: Any) -> None:
    """Any value that JSON can hold, for people to read too."""
    write_text(path, json_text(value))


def write_text(path: Path, text: str) -> None:
    """Text that comes from anywhere."""
    write_whole(path, encoded(text))


def encoded(text: str) -> bytes:
    """Text as UTF-8. What that cannot say, such as a file's name that is no text, is escaped."""
    return text.encode("utf-8", "backslashreplace")


def json_text(value: Any) -> str:
    """Indented JSON with a final line break."""
    return encoded(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False)).decode() + "\n"


def versioned(value: Layout | Run | Stated) -> dict[str, Any]:
    """As plain data, the version always among it."""
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return {"version": value.version, **plain}


def run_text(run: Run, stated: Stated | None = None) -> str:
    """JSON with one action a line, for people and for diffs."""
    lines = [f'  "version": {run.version}']
    lines += [f'  "{name}": {_compact(value)}' for name, value in msgspec.to_builtins(stated or Stated()).items()]
    for name, value in versioned(run).items():
        if name not in ("version", "layout", "actions"):
            lines.append(f'  "{name}": {_compact(value)}')
    lines.append(f'  "layout": {_compact(versioned(run.layout))}')
    actions = ",\n".join(f"    {_compact(action)}" for action in run.actions)
    lines.append(f'  "actions": [\n{actions}\n  ]' if run.actions else '  "actions": []')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file in one step: a reader, or whoever comes after a crash, finds the old content or the new."""
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(content)  # a pipe or a device: nothing to keep
            return
        _write_beside(target, content)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {_reason(error)}") from error


def _write_beside(target: Path, content: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name[:100]}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        with scratch.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise


def append_text(path: Path, text: str) -> None:
    """Add to the end of a file.

    Raises:
        OutputError: that cannot be done.
    """
    try:
        with path.open("ab") as file:
            file.write(encoded(text))
    except OSError as error:
        raise OutputError(f"cannot write {path}: {_reason(error)}") from error


def require_writable(path: Path, *read: Path, appended: bool = False) -> None:
    """Find out now, not after an hour's work, that a file cannot be written, or is one of those that are ``read``.
    ``appended``: it is added to, and not replaced.

    Raises:
        InputError: it cannot, or is.
    """
    if str(path) == "-":
        raise InputError("cannot write -: only --json goes to stdout")
    if any(_is_same_file(path, source) for source in read):
        raise InputError(f"cannot write {path}: it is what is read")
    target = Path(os.path.realpath(path))
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            target.stat()
        in_place = target.exists() and (appended or not target.is_file())
    except OSError as error:  # such as a name that is too long
        raise InputError(f"cannot write {path}: {_reason(error)}") from error
    if target.is_dir():
        raise InputError(f"cannot write {path}: it is a folder")
    folder = next(parent for parent in target.parents if parent.exists())
    needed = [target] * target.exists() + [folder] * (not in_place)
    if not folder.is_dir() or not all(os.access(one, os.W_OK) for one in needed):
        raise InputError(f"cannot write {path}: no permission, or {folder} is no folder")
    if not in_place:
        _try_a_file_in(folder, path)


def require_apart(*files: Path | str | None) -> None:
    """No two of the files that are to be written may be one: what is written last would be all there is. None: nothing
    is to be written. A device takes all.

    Raises:
        InputError: two are.
    """
    there: set[Path] = set()
    for file in files:
        if file is None:
            continue
        target = Path(os.path.realpath(file))
        if target in there and (target.is_file() or not target.exists()):
            raise InputError(f"cannot write {file}: two options name it")
        there.add(target)


def _try_a_file_in(folder: Path, path: Path) -> None:
    """Some folders take no files, whatever their permissions say."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"cannot write {path}: {_reason(error)}") from error


def _is_same_file(path: Path, source: Path) -> bool:
    with contextlib.suppress(OSError, InputError):  # there is none
        file = run_file(source)
        return file.is_file() and path.samefile(file)
    return False


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    return error.strerror or str(error)
