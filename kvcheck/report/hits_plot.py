"""How far hits reach, drawn: a panel a case, a line a setup. Needs the extra `kvcheck[plot]`."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path

from kvcheck.engines.hit_map import Case
from kvcheck.files import InputError, write_whole
from kvcheck.report.hits import Maps

SUFFIXES = ("svg", "png", "pdf")
FORMATS = ", ".join(f".{suffix}" for suffix in SUFFIXES)
PANEL_INCHES = (9.0, 2.6)


def require_plots(file: Path) -> None:
    """Find out now whether such a file can be drawn.

    Raises:
        InputError: it cannot.
    """
    if file.suffix.lstrip(".") not in SUFFIXES:
        raise InputError(f"--plot {file}: a drawing is one of {FORMATS}")
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib: pip install 'kvcheck[plot]'")


def plot(file: Path, title: str, cases: Sequence[Case], maps: Maps) -> None:
    """Draw the hits of all cases, and dotted what they could be at most.

    Raises:
        OutputError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415  an extra, and slow to import

    width, height = PANEL_INCHES
    figure = Figure(figsize=(width, height * len(cases)), layout="constrained")
    panels = figure.subplots(len(cases), 1, squeeze=False)[:, 0]
    figure.suptitle(title)
    for panel, case in zip(panels, cases, strict=True):
        for index, (name, measured) in enumerate(maps[case.name].items()):
            shared = [point.shared for point in measured.points]
            if not index:
                possible = [point.most for point in measured.points]
                panel.plot(shared, possible, ":", color="grey", drawstyle="steps-post", label="possible")
            panel.plot(shared, [point.hit for point in measured.points], drawstyle="steps-post", label=name)
        panel.set(title=case.what, xlabel="shared tokens", ylabel="hit (tokens)")
        panel.grid(alpha=0.3)
    panels[0].legend()
    drawn = io.BytesIO()
    figure.savefig(drawn, format=file.suffix.lstrip("."))
    write_whole(file, drawn.getvalue())
