"""The layers of a model as its KV cache sees them: what each keeps, and how many bytes that takes on one GPU."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import msgspec

from kvcheck.files import InputError
from kvcheck.layouts.defaults import defaults_of
from kvcheck.model.layout import Kind

DTYPE_BYTES: dict[str, int] = {
    "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
    "fp8_inc": 1,
}  # fmt: skip


MOST = 2**31 - 1
"""No size of a model and no argument of a server is larger."""
MOST_LAYERS = 10_000


class State(msgspec.Struct, frozen=True):
    """One tensor of a recurrent state: its shape on one GPU and the bytes of an element."""

    shape: tuple[int, ...]
    element_bytes: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return math.prod(self.shape) * self.element_bytes


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer. ``heads``: KV heads on one GPU; ``width``: elements of a head, of MLA its latent; ``element_bytes``:
    of one of them. ``window`` and ``chunk`` in tokens. ``states``: what a recurrent layer keeps; it can keep one within
    a prefill chunk, too, after a multiple of ``checkpoint_unit`` tokens (0: it cannot). ``draft``: it belongs to the
    drafter."""

    kind: Kind
    heads: int = 0
    width: int = 0
    element_bytes: int = 2
    window: int = 0
    chunk: int = 0
    states: tuple[State, ...] = ()
    checkpoint_unit: int = 0
    draft: bool = False

    @property
    def is_attention(self) -> bool:
        """Whether it keeps something of each token."""
        return self.kind != "mamba"

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes: keys and values, or the one latent of MLA."""
        return self.heads * self.width * self.element_bytes * (1 if self.kind == "mla" else 2)

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent state."""
        return sum(state.bytes for state in self.states)


class Config:
    """A model's public config.json: typed reading, with one line for what is missing.

    What a multimodal model says of its language model is under ``text_config``; all else is looked for above it, and
    then among the defaults of its kind. ``null`` is said, and no default takes its place.
    """

    def __init__(self, raw: dict[str, Any]) -> None:
        inner = raw.get("text_config") or raw.get("llm_config") or {}
        inner = inner if isinstance(inner, dict) else {}
        names = raw.get("architectures") or inner.get("architectures") or []
        self.architecture = str(names[0]) if isinstance(names, list) and names else ""
        defaults = defaults_of(inner.get("model_type") or raw.get("model_type"))
        self._values: dict[str, Any] = {**defaults, **raw, **inner}

    def has(self, name: str) -> bool:
        """Whether it says something there, and not null."""
        return self._values.get(name) is not None

    def value(self, name: str, default: Any = None) -> Any:
        """What it says there."""
        found = self._values.get(name)
        return default if found is None else found

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return self.number("num_hidden_layers", most=MOST_LAYERS)

    def number(self, *names: str, default: int | None = None, least: int = 1, most: int = MOST) -> int:
        """A whole number, under the first of the names that is there.

        Raises:
            InputError: there is none, and no default; or it is not one from ``least`` to ``most``.
        """
        for name in names:
            found = self._values.get(name)
            if found is None:
                continue
            is_number = isinstance(found, int | float) and not isinstance(found, bool)
            if not is_number or not least <= found <= most or found != int(found):
                raise InputError(f"the config's {name} is {found!r}, not a whole number from {least} to {most}")
            return int(found)
        if default is None:
            raise InputError(f"the config says nothing of {' or '.join(names)}, which {self.architecture} needs")
        return default

    def layer_words(self, *names: str, allowed: Collection[str]) -> list[str] | None:
        """A word for each layer, under the first of the names that is there; None if none is. Text is a letter a layer.

        Raises:
            InputError: it is no list of words, there are fewer than layers, or one is not allowed.
        """
        name = next(filter(self.has, names), None)
        if name is None:
            return None
        found = self._values[name]
        if not isinstance(found, list | str) or not all(isinstance(word, str) for word in found):
            raise InputError(f"the config's {name} is no list of words")
        count = self.layers if self.has("num_hidden_layers") else len(found)
        if len(found) < count:
            raise InputError(f"the config lists {len(found)} {name} for {count} layers")
        words = list(found[:count])
        if unknown := sorted(set(words).difference(allowed)):
            raise InputError(f"{self.architecture} with layers of type {', '.join(unknown)} is not known here")
        return words

    def numbers(self, name: str) -> list[int] | None:
        """A list of whole numbers; None if it is not there."""
        found = self._values.get(name)
        if found is None:
            return None
        if not isinstance(found, list) or not all(isinstance(number, int) for number in found):
            raise InputError(f"the config's {name} is no list of numbers")
        return found
