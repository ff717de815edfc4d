"""Filling templates. Jinja2 is in the extra `html`; whatever is filled in is escaped."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

from kvcheck.files import InputError, extra

NEEDED = ("jinja2", "leather")
BEGINNING = 1000
"""So many bytes of a page say what has made it."""
TEMPLATES = Path(__file__).parent / "templates"


def require_extra() -> None:
    """Find out now that no page can be made.

    Raises:
        InputError: the extra is not installed.
    """
    if not all(importlib.util.find_spec(name) for name in NEEDED):
        raise InputError(f"pages need {extra('html')}")


def filled(template: str, **values: Any) -> str:
    """A page."""
    text: str = _environment().get_template(template).render(**values)
    return text


def is_ours(page: Path) -> bool:
    """Whether a file is a page that was made here."""
    try:
        return b'<meta name="generator" content="kvcheck ' in page.read_bytes()[:BEGINNING]
    except OSError:
        return False


@functools.cache
def _environment() -> Any:
    import jinja2  # noqa: PLC0415  only where a page is made

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
