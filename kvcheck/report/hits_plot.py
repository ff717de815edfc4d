"""How far hits reach, drawn as SVG by leather: a chart a case, a line a setup. Needs the extra `kvcheck[html]`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvcheck.engines.hit_map import Case, Point
from kvcheck.files import InputError, extra, write_whole
from kvcheck.report.hits import Maps, every_length
from kvcheck.report.pages.charts import stairs

SUFFIX = ".svg"


def require_plots(file: Path) -> None:
    """Find out now whether such a file can be drawn.

    Raises:
        InputError: it cannot.
    """
    if file.suffix != SUFFIX:
        raise InputError(f"--plot {file}: a drawing is a file {SUFFIX}")
    if importlib.util.find_spec("leather") is None:
        raise InputError(f"--plot needs {extra('html')}")


def plot(file: Path, cases: Sequence[Case], maps: Maps) -> None:
    """Draw the hits of all cases, and dotted what they could be at most.

    Raises:
        OutputError: the file cannot be written.
    """
    import leather  # noqa: PLC0415  an extra

    grid = leather.Grid()
    for case in cases:
        chart = leather.Chart(case.what)
        chart.add_x_axis(name="shared tokens")
        chart.add_y_axis(name="hit (tokens)")
        setups = maps[case.name]
        first = next(iter(setups.values())).points
        possible = [(point.shared, point.most) for point in first]
        if every_length(first):
            chart.add_line(stairs(possible), name="possible", stroke_color="grey", stroke_dasharray="2,4")
        else:
            chart.add_dots(possible, name="possible", fill_color="grey")
        for name, measured in setups.items():
            _add(chart, name, measured.points)
        grid.add_one(chart)
    write_whole(file, grid.to_svg().encode())


def _add(chart: Any, name: str, points: Sequence[Point]) -> None:
    """A line if all lengths were measured, else a dot for each that was."""
    hits = [(point.shared, point.hit) for point in points]
    if every_length(points):
        chart.add_line(stairs(hits), name=name)
    else:
        chart.add_dots(hits, name=name)
