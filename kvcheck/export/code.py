"""Python text: values and calls, broken into lines of the width that vLLM's code has."""

from __future__ import annotations

import textwrap
from typing import Any

WIDTH = 88


class Name(str):
    """A value that is code already."""

    __slots__ = ()


class Call:
    """A call of a function with these arguments."""

    def __init__(self, function: str, *positional: Any, **named: Any) -> None:
        self.function = function
        self.arguments = [("", value) for value in positional] + [(f"{k}=", v) for k, v in named.items()]


def code(value: Any, indent: int = 0, before: str = "", after: str = "") -> str:
    """A value as code between what stands ``before`` and ``after`` it. ``indent``: columns before its lines; the first
    line comes without them."""
    line = before + _flat(value) + after
    if indent + len(line) <= WIDTH or not isinstance(value, Call | list | dict):
        return line
    inner = " " * (indent + 4)
    if isinstance(value, list) and all(isinstance(one, int) for one in value):
        numbers = textwrap.fill(
            f"{_flat(value)[1:-1]},", WIDTH, initial_indent=inner, subsequent_indent=inner, break_long_words=False
        )
        return f"{before}[\n{numbers}\n{' ' * indent}]{after}"
    first, parts, last = _broken(value)
    lines = [inner + code(one, indent + 4, name, ",") for name, one in parts]
    return "\n".join([before + first, *lines, " " * indent + last + after])


def _broken(value: Any) -> tuple[str, list[tuple[str, Any]], str]:
    """What opens a value, its parts, and what closes it."""
    if isinstance(value, Call):
        return f"{value.function}(", value.arguments, ")"
    if isinstance(value, dict):
        return "{", [(f"{_flat(key)}: ", one) for key, one in value.items()], "}"
    return "[", [("", one) for one in value], "]"


def _flat(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, Name):
        return str(value)
    if isinstance(value, str):
        return '"' + value.encode("unicode_escape").decode().replace('"', '\\"') + '"'
    if isinstance(value, Call | list | dict):
        first, parts, last = _broken(value)
        return first + ", ".join(name + _flat(one) for name, one in parts) + last
    return repr(value)
