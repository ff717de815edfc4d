"""Text in Markdown, as GitHub shows it: nothing that comes from elsewhere is taken for markup."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence

from kvcheck.engines.tally import Undetermined

MOST_ROWS = 50
"""A job's summary may have a megabyte."""


def code(text: str) -> str:
    """Text as code, which no bar and no mark of its own takes out of its cell."""
    return f"`{_one_line(text).replace('`', chr(39)).replace('|', '/')}`"


def plain(text: str) -> str:
    """Text that is no markup."""
    return re.sub(r"([\\`*_\[\]<>&|~])", r"\\\1", _one_line(text))


def folded(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Lines as they are, behind a title. A title stands in HTML, where Markdown's escapes are text."""
    yield from ("", "<details>", f"<summary><code>{html.escape(_one_line(title))}</code></summary>", "")
    yield from (f"    {line}" for line in lines)
    yield from ("", "</details>")


def bullets(title: str, lines: Sequence[str], always: bool = False) -> Iterator[str]:
    """A list, if there is anything in it."""
    if not lines and not always:
        return
    yield from ("", f"**{title}**", "")
    yield from (f"- {line}" for line in lines[:MOST_ROWS])
    if len(lines) > MOST_ROWS:
        yield f"- {len(lines) - MOST_ROWS} more"


def undetermined_list(items: Iterable[Undetermined]) -> Iterator[str]:
    """What nothing can be said about."""
    yield from bullets("Undetermined", [f"{code(item.code)}: {plain(item.message)}" for item in items])


def _one_line(text: str) -> str:
    """Text without line breaks: an empty line ends whatever it stands in."""
    return " ".join(text.split())
