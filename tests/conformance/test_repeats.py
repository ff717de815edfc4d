"""How far the first repeat hits, on each release: what docs/rules.md says in R11.3."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import full, layout_of, mamba, release_worker, replace

from kvcheck.engines.hit_map import Question
from kvcheck.model.layout import Drafter, Layout
from kvcheck.targets.vllm.release import KNOWN_RELEASES

pytestmark = pytest.mark.release

RULES = Path(__file__).parents[2] / "docs" / "rules.md"


def layout(eagle: bool, hash_block: int, retention: str) -> Layout:
    drafts = 1 if eagle else 0
    return layout_of(
        full(8, eagle=eagle),
        replace(mamba(8, drafts), eagle=eagle),
        match_unit=hash_block,
        retention=0 if retention == "interval 0" else "dense",
        drafter=Drafter(method="eagle", tokens=drafts) if eagle else None,
        num_blocks=40,
        max_model_len=64,
        token_budget=64,
    )


def releases_of(text: str) -> list[str]:
    """The tested releases of "0.26.0 to 0.29.0" or "0.32.0, 0.33.0"."""
    known = list(KNOWN_RELEASES)
    if " to " in text:
        first, last = text.split(" to ")
        return known[known.index(first) : known.index(last) + 1]
    return [one for one in known if one in text.split(", ")]


def table() -> Iterator[tuple[str, Layout, tuple[int, ...], tuple[int, ...]]]:
    """Release, layout, prompts, and the hits that the page states."""
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in RULES.read_text().splitlines()]
    start = next(number for number, row in enumerate(rows) if row[:3] == ["releases", "drafter", "h"])
    prompts = tuple(int(re.sub(r"\D", "", cell)) for cell in rows[start][3:])
    for row in rows[start + 2 :]:
        if len(row) != len(rows[start]):
            return
        kept = "interval 0" if row[0].endswith(", interval 0") else "dense"
        for release in releases_of(row[0].removesuffix(f", {kept}")):
            for h in row[2].split(" or "):
                yield release, layout(row[1] == "EAGLE", int(h), kept), prompts, tuple(map(int, row[3:]))


TABLE: dict[str, list[tuple[Layout, tuple[int, ...], tuple[int, ...]]]] = defaultdict(list)
for _release, *_rest in table():
    TABLE[_release].append(tuple(_rest))  # type: ignore[arg-type]


def test_the_page_speaks_of_every_release() -> None:
    assert set(TABLE) == set(KNOWN_RELEASES)
    assert sum(map(len, TABLE.values())) > 4 * len(KNOWN_RELEASES) - 4


@pytest.mark.parametrize("version", list(KNOWN_RELEASES))
def test_the_first_repeat_hits_what_the_page_says(version: str) -> None:
    with release_worker(version) as worker:
        for one, prompts, stated in TABLE[version]:
            found = worker.map_hits(one, Question("again", prompts, 1))
            assert not found.undetermined
            assert tuple(point.hit for point in found.points) == stated, (one, found.points)
