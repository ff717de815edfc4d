"""The colours of pages: what is well does not look like an alarm, to any eye."""

from __future__ import annotations

import math
import re
from itertools import combinations

import pytest

from kvcheck.report.pages.render import TEMPLATES

EYES = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""What an eye makes of linear red, green and blue: Machado, Oliveira and Fernandes, 2009."""
TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE = (0.9505, 1.0, 1.0890)
PICTURE = ("free", "cached", "private", "registered", "shared", "outside", "void", "draft", "garbage", "text", "quiet")
"""Colours of cells, beside those of owners."""
UNLIKE_AN_ALARM, UNLIKE_EACH_OTHER = 25.0, 12.0
"""Distances in the colour space L*a*b*; 2.3 is the least that anybody sees."""

Triple = tuple[float, float, float]


def product(matrix: tuple[Triple, Triple, Triple], vector: Triple) -> Triple:
    first, second, third = (sum(map(float.__mul__, row, vector)) for row in matrix)
    return first, second, third


def seen(colour: str, eye: str) -> Triple:
    """A colour #rrggbb in L*a*b*."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (((part + 0.055) / 1.055) ** 2.4 if part > 0.04045 else part / 12.92 for part in parts)
    red, green, blue = (min(1.0, max(0.0, part)) for part in product(EYES[eye], (red, green, blue)))
    ratios = (part / white for part, white in zip(product(TO_XYZ, (red, green, blue)), WHITE, strict=True))
    x, y, z = (ratio ** (1 / 3) if ratio > 0.008856 else 7.787 * ratio + 16 / 116 for ratio in ratios)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one: str, other: str) -> float:
    """How far apart they are for the eye that tells them least."""
    return min(math.dist(seen(one, eye), seen(other, eye)) for eye in EYES)


def themes() -> dict[str, dict[str, str]]:
    light, dark = re.findall(r":root \{(.*?)\}", (TEMPLATES / "page.css").read_text(encoding="utf-8"), re.DOTALL)
    return {name: dict(re.findall(r"--([\w-]+): ([^;]+);", text)) for name, text in (("light", light), ("dark", dark))}


def test_the_distance_of_colours() -> None:
    assert distance("#c4161c", "#c4161c") == 0
    assert distance("#000000", "#ffffff") == pytest.approx(100, abs=0.1)
    assert (
        distance("#c4161c", "#5a7a1c")
        < UNLIKE_AN_ALARM
        < math.dist(seen("#c4161c", "normal"), seen("#5a7a1c", "normal"))
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_cell_looks_like_an_alarm(theme: str) -> None:
    colours = themes()[theme]
    cells = {name: colours[name] for name in PICTURE} | {colour: colour for colour in colours["owners"].split()}
    alike = [name for name, colour in cells.items() if distance(colour, colours["wrong"]) < UNLIKE_AN_ALARM]
    assert alike == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_two_owners_look_alike(theme: str) -> None:
    owners = themes()[theme]["owners"].split()
    assert len(owners) >= 6
    assert [pair for pair in combinations(owners, 2) if distance(*pair) < UNLIKE_EACH_OTHER] == []
