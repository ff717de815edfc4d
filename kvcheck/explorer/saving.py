"""The mutable fields of an object, taken and put back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

Values = tuple[dict[str, Any], list[Any]]
"""Plain fields as they are, and copies of containers."""

NO_SHARING = 2
"""The version of marshal that writes equal values as equal bytes."""

_COPIED: dict[type, Callable[[Any], Any]] = {
    dict: dict.copy,
    set: set.copy,
    list: list.copy,
    deque: deque.copy,
    np.ndarray: np.ndarray.copy,
}


class Fields:
    """What of one object changes. ``constant``: names of fields that never do, or that belong to others. ``copies``:
    how those are copied of which a container's own copy is not enough. What else is in a container does not change."""

    def __init__(self, thing: object, constant: tuple[str, ...], copies: dict[str, Callable[[Any], Any]]) -> None:
        self._thing = vars(thing)
        ways = {name: copies.get(name, _COPIED.get(type(value))) for name, value in self._thing.items()}
        changing = {name: way for name, way in ways.items() if name not in constant}
        self._containers = [(name, way) for name, way in changing.items() if way is not None]
        self._plain = [name for name, way in changing.items() if way is None]

    def take(self) -> Values:
        """Their values."""
        thing = self._thing
        return {name: thing[name] for name in self._plain}, [copy(thing[name]) for name, copy in self._containers]

    def put(self, values: Values) -> None:
        """Set them. Most containers are empty, before and after, and are left alone."""
        thing, (plain, containers) = self._thing, values
        thing.update(plain)
        for (name, copy), value in zip(self._containers, containers, strict=True):
            if len(value) or len(thing[name]):
                thing[name] = copy(value)


def copied_whole(value: dict[Any, Any]) -> dict[Any, Any]:
    """The copy of a dictionary of containers."""
    return {key: item.copy() for key, item in value.items()}
