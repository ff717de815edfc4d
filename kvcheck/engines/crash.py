"""What a report says of a crash: an exception and where it was raised, or a signature of kvcheck, found in its text."""

from __future__ import annotations

import re

import msgspec

from kvcheck.engines.watched import HANG
from kvcheck.invariants.registry import Violation, all_invariants

EXCEPTION = "system.exception"

_TYPE = r"(?:[A-Za-z_]\w*\.)*(?P<type>[A-Z]\w*(?:Error|Interrupt|Iteration|Exit)|\w*Exception|\w*Empty|\w*Full)"
_NAMED = re.compile(rf"(?<![\w.]){_TYPE}\b")
_RAISED = re.compile(rf"^{_TYPE}(?::|$)")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line \d+, in (?P<function>[\w<>]+)')
_LOGGED = re.compile(r"^.*?\[[\w./-]+:\d+\]")
"""What a logger writes before a line: process, level, time, and its place in the source."""
_IN_FUNCTION = re.compile(r"\bin (?:the )?(?:function |method )?`?(?:[A-Za-z_]\w*\.)*(?P<function>[A-Za-z_]\w*)")
_BESIDE = re.compile(rf"(?<![\w.]){_TYPE} `?(?P<function>[A-Za-z]\w*_\w*)(?![\w=:]|\.\w)")
"""As a signature has it: the function behind the exception, and no word between them."""
_CALLED = re.compile(r"`?(?:[A-Za-z_]\w*\.)*(?P<function>[A-Za-z_]\w*)\(\)`?")
_ALONE = re.compile(r"`?(?:[A-Za-z_]\w*\.)*(?P<function>[A-Za-z]\w*_\w*)`?")
_TOLD_ON = frozenset({"EngineDeadError", "EngineGenerateError"})
"""What the other processes of a server raise when the engine has died of something else."""


class Crash(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is looked for. ``signature``: of kvcheck, whole or its first words. Otherwise the type of an exception and
    the function that raised it; either may be unknown."""

    type: str = ""
    function: str = ""
    signature: str = ""

    def is_shown_by(self, violation: Violation) -> bool:
        """Whether this violation is what was reported."""
        if self.signature:
            return violation.is_called(self.signature)
        kind, _, rest = violation.signature.partition(" ")
        raised, _, function = rest.partition(" ")
        return kind == EXCEPTION and self.type in ("", raised) and self.function in ("", function)

    @property
    def text(self) -> str:
        """In a few words."""
        where = f"in {self.function}" if self.function else "wherever it is raised"
        return self.signature or f"{self.type or 'any exception'} {where}"


def crash_in(text: str) -> Crash | None:
    """What a report says; None if it names neither an exception of the engine, nor a function, nor a signature."""
    words = " ".join(text.split())
    if is_signature(words):
        return Crash(signature=words)
    found = _tracebacks(text)
    return _in_tracebacks(found) if found else _in_words(words)


def told_on(text: str) -> str:
    """What other processes of the server raised when the engine had died; empty if the text has nothing of that."""
    return next((name for name in sorted(_TOLD_ON) if name in text), "")


def is_signature(words: str) -> bool:
    """Whether words begin as a signature does: with the name of a claim."""
    return words.partition(" ")[0] in {HANG, *(one.id for one in all_invariants())}


class _Traceback(msgspec.Struct):
    frames: list[tuple[str, str]]
    type: str = ""


def _tracebacks(text: str) -> list[_Traceback]:
    found: list[_Traceback] = []
    for line in text.splitlines():
        if frame := _FRAME.search(line):
            if not found or found[-1].type:
                found.append(_Traceback([]))
            found[-1].frames.append((frame["file"], frame["function"]))
        elif found and not found[-1].type and (raised := _RAISED.match(_LOGGED.sub("", line).strip())):
            found[-1].type = raised["type"]
    return found


def _in_tracebacks(found: list[_Traceback]) -> Crash | None:
    """The innermost function of the server and what it raised, of the last traceback that comes from its core: those
    after it come from processes that only heard of it. None: all do."""
    core = [one for one in found if any("vllm/v1/core" in file for file, _ in one.frames)]
    others = [one for one in found if one.type not in _TOLD_ON]
    if not (core or others):
        return None
    chosen = (core or others)[-1]
    servers = [function for file, function in chosen.frames if _is_servers(file)]
    return Crash(type=chosen.type, function=servers[-1] if servers else chosen.frames[-1][1])


def _is_servers(file: str) -> bool:
    """Whether a source file is of vLLM: other packages may lie below a folder of that name."""
    _, installed, path = file.rpartition("-packages/")
    return path.startswith("vllm/") if installed else "vllm/" in file


def _in_words(words: str) -> Crash | None:
    """The first exception and the last function of a sentence; one without an underscore may be any word, and counts
    only beside an exception. What is called may be of a message, and counts only without one."""
    types = [match["type"] for match in _NAMED.finditer(words) if match["type"] not in _TOLD_ON]
    functions = [match["function"] for match in _IN_FUNCTION.finditer(words)]
    called = [match["function"] for match in (_ALONE.fullmatch(words), *_CALLED.finditer(words)) if match]
    beside = [match["function"] for match in _BESIDE.finditer(words) if match["type"] in types]
    named = [function for function in functions if "_" in function] or beside or (functions if types else called)
    if not types and not named:
        return None
    return Crash(type=types[0] if types else "", function=named[-1] if named else "")
