"""Charts as SVG, drawn by leather; their colours are those of the page's style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

WIDTH, HEIGHT = 480, 280
"""In pixels; a page may show them smaller."""


def line_chart(points: Sequence[tuple[float, float]], across: str, up: str) -> str:
    """Numbers over time; empty if there is no line to draw."""
    import leather  # noqa: PLC0415  only where a page is made

    most_across, most_up = (max((point[axis] for point in points), default=0.0) for axis in (0, 1))
    if len(points) < 2 or most_across <= 0 or most_up <= 0:
        return ""
    chart = leather.Chart()
    chart.add_x_scale(0, most_across)
    chart.add_y_scale(0, most_up)
    chart.add_x_axis(name=across)
    chart.add_y_axis(name=up)
    chart.add_line(list(points), stroke_color="currentColor")
    svg: str = chart.to_svg(width=WIDTH, height=HEIGHT)
    return svg.replace("<svg ", f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{up} over {across}" ', 1)


def stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The corners of a line that stays level until the next point."""
    corners = list(points[:1])
    for (_, level), (across, up) in pairwise(points):
        corners += [(across, level), (across, up)] if up != level else []
    return [*corners, points[-1]] if points else []
