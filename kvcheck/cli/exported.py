"""What an export gives."""

from __future__ import annotations

from typing import NamedTuple

from kvcheck.cli.status import PASSED


class Exported(NamedTuple):
    """``text`` is written, ``told`` is said of it. ``status``: undetermined if it shows too little, or if it is nothing
    that should be written: then there is no text."""

    text: str | None
    told: str
    status: int = PASSED
