"""The page of one run: the pool over time, and each step of it with tables, queues and what was broken."""

from __future__ import annotations

import msgspec

import kvcheck
from kvcheck.files import InputError
from kvcheck.invariants.registry import MEANING, Severity, Violation
from kvcheck.model.actions import Run
from kvcheck.model.observation import Trace
from kvcheck.report.describe import group_text, layout_lines
from kvcheck.report.pages.frames import Film, film_of, mark, not_run
from kvcheck.report.pages.render import filled

MOST_CELLS = 50_000_000
"""Blocks times actions that a browser can be asked to hold."""


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was judged. ``why``: why nothing can be said, or what is missing of the recording. ``needs``: features
    of the layout without which the violation goes away; ``back``: the page of its campaign."""

    run: Run
    target: str
    verdict: str
    violations: tuple[Violation, ...]
    reproduce: str
    trace: Trace | None = None
    why: str = ""
    needs: tuple[str, ...] = ()
    back: str = ""


def run_page(page: RunPage) -> str:
    """It, as HTML.

    Raises:
        InputError: the run has no actions, or too many to be shown.
        KeyError, IndexError, ValueError, TypeError, TargetError: the recording contradicts itself.
    """
    layout, actions = page.run.layout, page.run.actions
    if not actions:
        raise InputError("the run has no actions: there is nothing to show")
    if layout.num_blocks * len(actions) > MOST_CELLS:
        raise InputError(
            f"{len(actions)} actions on {layout.num_blocks} blocks are too much for a page: shrink the run"
        )
    film = film_of(page.trace, page.violations) if page.trace is not None else _unseen(page)
    return filled(
        "run.html",
        title=f"kvcheck: {page.violations[0].signature if page.violations else page.verdict}",
        page=page,
        version=kvcheck.__version__,
        meanings={violation.severity: MEANING[Severity(violation.severity)] for violation in page.violations},
        layout=layout_lines(layout),
        film=_told(page, film),
    )


def _unseen(page: RunPage) -> Film:
    """A run without a recording: its actions, and where it breaks."""
    frames = [not_run(action) for action in page.run.actions]
    mark(frames, page.violations)
    return Film(frames=frames)


def _told(page: RunPage, film: Film) -> dict[str, object]:
    """What the page's script reads."""
    layout = page.run.layout
    groups = [group_text(group, index in layout.eagle_groups) for index, group in enumerate(layout.groups)]
    return {"groups": groups, "blocks": layout.num_blocks, **msgspec.to_builtins(film, str_keys=True)}
