"""Random drafts: how many are right, and how many are proposed."""

from __future__ import annotations

from kvcheck.engines.execution import Execution
from kvcheck.engines.source import Source
from kvcheck.model.actions import Complete
from kvcheck.model.layout import Layout


class Acceptance:
    """What becomes of drafts: by run, how often all, none or some are right, and how many are proposed next."""

    def __init__(self, source: Source, layout: Layout) -> None:
        self._source = source
        self._drafts = layout.draft_tokens
        self._ways = [(way, source.choose((2, 1, 5, 0))) for way in ("none", "all", "some")] + [("none", 1)]
        self._proposes_less = 0 if layout.asynchronous else source.choose((0, 0, 10, 40))

    def complete(self, execution: Execution) -> Complete:
        """The oldest step in flight runs."""
        if not self._drafts or not execution.in_flight:
            return Complete()
        items = execution.in_flight[0].requests
        accepted = {item.label: self._accepted(item.drafts) for item in items if item.drafts}
        proposed: dict[str, int] = {}
        if self._proposes_less:
            labels = [item.label for item in items if self._source.chance(self._proposes_less)]
            proposed = {label: self._source.integer(0, self._drafts - 1) for label in labels}
        return Complete(accepted={label: n for label, n in accepted.items() if n}, proposed=proposed)

    def _accepted(self, drafts: int) -> int:
        way = self._source.weighted(self._ways)
        if way == "some":
            return self._source.integer(0, drafts)
        return drafts if way == "all" else 0
