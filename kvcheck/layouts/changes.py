"""Changes of a layout, as somebody writes them who asks what one setting would do."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kvcheck.model.layout import Drafter, Layout, LayoutError, validate

replace = msgspec.structs.replace


def _retention(layout: Layout, value: str) -> Layout:
    return replace(layout, retention=value if value in ("dense", "release") else int(value))


def _match_unit(layout: Layout, value: str) -> Layout:
    return replace(layout, match_unit=None if value == "none" else int(value))


def _block_size(layout: Layout, value: str) -> Layout:
    return replace(layout, groups=tuple(replace(group, block_size=int(value)) for group in layout.groups))


def _budget(layout: Layout, value: str) -> Layout:
    return replace(layout, token_budget=int(value))


def _drafter(layout: Layout, value: str) -> Layout:
    """Another drafter, or none; groups are marked for a drafter of the EAGLE family only, and then all of them."""
    method, _, tokens = value.partition(":")
    drafter = None if method == "none" else msgspec.convert({"method": method, "tokens": int(tokens or 1)}, Drafter)
    drafts = drafter.tokens if drafter is not None else 0
    groups = [replace(group, eagle=False) for group in layout.groups]
    groups = [group if group.is_attention else replace(group, speculative_blocks=drafts) for group in groups]
    return replace(layout, drafter=drafter, groups=tuple(groups))


CHANGES: dict[str, tuple[str, Callable[[Layout, str], Layout]]] = {
    "block-size": ("tokens a block, of every group", _block_size),
    "match-unit": ("tokens, or none", _match_unit),
    "retention": ("dense, release, 0, or tokens", _retention),
    "drafter": ("none, or METHOD:DRAFTS such as eagle:1", _drafter),
    "budget": ("tokens a step", _budget),
}
"""Settings that can be changed, by name: what their values are, and how."""


def changed(layout: Layout, text: str) -> Layout:
    """The layout with one setting changed, as in ``match-unit=16``. Its pool grows if it has to.

    Raises:
        ValueError: the text says nothing, or no server would start with such a layout; the message is one line.
    """
    name, equals, value = text.partition("=")
    if name not in CHANGES or not equals:
        known = ", ".join(f"{name}=({values})" for name, (values, _) in CHANGES.items())
        raise ValueError(f"{text!r} changes nothing: one of {known}")
    values, change = CHANGES[name]
    try:
        other = change(layout, value)
    except ValueError as error:  # of int, and of msgspec
        raise ValueError(f"{text!r}: {name} is {values}") from error
    try:
        return validate(_with_room(other))
    except LayoutError as error:
        raise ValueError(f"{text!r}: the layout then breaks {error}") from error


def _with_room(layout: Layout) -> Layout:
    sound = all(group.block_size > 0 for group in layout.groups)
    return replace(layout, num_blocks=max(layout.num_blocks, layout.min_blocks)) if sound else layout
