"""The arguments of a server's command line, as far as a layout depends on them."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import msgspec

from kvcheck.files import InputError
from kvcheck.layouts.layers import MOST
from kvcheck.layouts.server_options import CHANGES_LAYERS, NOT_IN_THE_LAYOUT, WITHOUT_EFFECT

_SHORT = {
    "tp": "tensor-parallel-size", "dcp": "decode-context-parallel-size", "pp": "pipeline-parallel-size",
    "sc": "speculative-config",
}  # fmt: skip
_NUMBERS = frozenset({
    "tensor-parallel-size", "decode-context-parallel-size", "pipeline-parallel-size", "block-size", "max-model-len",
    "max-num-seqs", "max-num-batched-tokens", "long-prefill-token-threshold", "prefix-match-unit",
    "num-gpu-blocks-override", "prefix-cache-retention-interval", "mamba-block-size",
})  # fmt: skip
_WORDS = frozenset({
    "kv-cache-dtype", "dtype", "mamba-cache-dtype", "mamba-ssm-cache-dtype", "mamba-cache-mode", "scheduling-policy",
    "gdn-prefill-backend",
})  # fmt: skip
AUTO_LENGTH = "max-model-len"
"""A number, or what stands for the longest that the model and the memory allow."""
_AUTO = ("auto", "-1")
_DRAFTS = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}
"""Keys of ``speculative-config`` that have an option of their own."""
_OBJECTS = frozenset({"speculative-config", "kv-transfer-config", "kv-events-config"})
_SWITCHES = frozenset({
    "enable-prefix-caching", "async-scheduling", "disable-hybrid-kv-cache-manager", "disable-sliding-window",
    "scheduler-reserve-full-isl",
})  # fmt: skip
_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}


class ServerArgs(msgspec.Struct, frozen=True, kw_only=True):
    """What was given, under the names of the command line. ``unused``: what no layout depends on.
    ``not_said``: what the layout would have to say and does not. ``unknown``: what is not known here."""

    numbers: dict[str, int] = {}
    words: dict[str, str] = {}
    objects: dict[str, dict[str, Any]] = {}
    switches: dict[str, bool] = {}
    unused: tuple[str, ...] = ()
    not_said: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def number(self, name: str, default: int) -> int:
        """A number, if it was given."""
        return self.numbers.get(name, default)


def parse_server_args(text: str) -> ServerArgs:
    """Read arguments as a shell would.

    Raises:
        InputError: one that matters cannot be read, or changes the layers in a way that is not followed here.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"--server-args: {error}") from error
    return _Reader(words).read()


class _Reader:
    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._args = ServerArgs(numbers={}, words={}, objects={}, switches={})
        self._unused: list[str] = []
        self._not_said: list[str] = []
        self._unknown: list[str] = []
        self._values = self._unused  # where words go that no option has taken: the model's name, to begin with

    def read(self) -> ServerArgs:
        while self._words:
            word = self._words.pop(0)
            if not word.startswith("-"):
                self._values.append(word)
                continue
            name, equals, value = word.lstrip("-").partition("=")
            whole, dot, key = name.partition(".")
            name = _SHORT.get(whole, whole).replace("_", "-")
            self._take(name, key if dot else "", value if equals else None, word)
        unused, not_said, unknown = map(tuple, (self._unused, self._not_said, self._unknown))
        return msgspec.structs.replace(self._args, unused=unused, not_said=not_said, unknown=unknown)

    def _take(self, name: str, key: str, value: str | None, word: str) -> None:
        switch = name.removeprefix("no-")
        self._values = self._unused
        if switch in _SWITCHES:
            self._args.switches[switch] = not name.startswith("no-")
        elif name in _NUMBERS:
            self._take_number(name, self._value(name, value))
        elif name in _WORDS:
            self._args.words[name] = self._value(name, value)
        elif name in _OBJECTS:
            self._args.objects.setdefault(name, {}).update(_object(name, key, self._value(name, value)))
        elif name in _DRAFTS:
            key = _DRAFTS[name]
            self._args.objects.setdefault("speculative-config", {})[key] = self._value(name, value)
        elif name in CHANGES_LAYERS:
            raise InputError(
                f"--server-args: --{name} may change the layers, which is not followed here: {CHANGES_LAYERS[name]}"
            )
        else:
            self._values = self._heap(name)
            self._values.append(word)

    def _take_number(self, name: str, text: str) -> None:
        """The last of several counts."""
        automatic = name == AUTO_LENGTH and text.strip().lower() in _AUTO
        (self._args.numbers if automatic else self._args.words).pop(name, None)
        if automatic:
            self._args.words[name] = "auto"
        else:
            self._args.numbers[name] = _number(name, text)

    def _heap(self, name: str) -> list[str]:
        """Where an option goes that is not read, and its value after it."""
        for names, heap in ((NOT_IN_THE_LAYOUT, self._not_said), (WITHOUT_EFFECT, self._unused)):
            if name in names or name.removeprefix("no-") in names:
                return heap
        return self._unknown

    def _value(self, name: str, value: str | None) -> str:
        if value is not None:
            return value
        if not self._words:
            raise InputError(f"--server-args: --{name} has no value")
        return self._words.pop(0)


def _number(name: str, text: str) -> int:
    """A number, with the suffixes that the server knows: k is 1000, K is 1024."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", text)
    number = float(found[1]) * _SUFFIXES[found[2]] if found else -1.0
    least = 0 if name == "prefix-cache-retention-interval" else 1
    if not least <= number <= MOST or number != int(number):
        raise InputError(f"--server-args: --{name} is {text!r}, not a whole number from {least} to {MOST}")
    return int(number)


def _object(name: str, key: str, text: str) -> dict[str, Any]:
    """JSON, or the value of one key of it (``--speculative-config.method mtp``)."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise InputError(f"--server-args: --{name} is nested too deeply") from error
    except ValueError as error:
        if key:
            return {key: text}
        hint = "a shell takes its quotes away unless there are others around it"
        raise InputError(f"--server-args: --{name} is no JSON: {error} ({hint})") from error
    if key:
        return {key: value}
    if not isinstance(value, dict):
        raise InputError(f"--server-args: --{name} is no JSON object")
    return value
