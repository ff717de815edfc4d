"""What there is, one a line."""

from __future__ import annotations

from collections.abc import Sequence

from kvcheck.report.console import Screen


def show_table(screen: Screen, rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell, except the last."""
    if not rows:
        return
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        screen.line("  ".join([*cells, row[-1]]).rstrip())
