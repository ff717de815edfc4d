"""One moment of a run: what an action showed, and what the shadow worker saw. Invariants read nothing else."""

from __future__ import annotations

from kvcheck.model.actions import Action
from kvcheck.model.observation import CacheView, Observation, StepPlan
from kvcheck.model.shadow import BadPlan, Shadow, WrongRead


class Moment:
    """``before`` is the view before the action; ``executed`` the step that the action ran, if it did.

    ``in_flight``: steps scheduled and not processed; ``pending_loads``, ``pending_stores``: transfers that were not
    ended; ``unreported``: ended ones that no processed step has told the server of yet.
    """

    __slots__ = (
        "action",
        "bad",
        "before",
        "executed",
        "in_flight",
        "index",
        "observation",
        "pending_loads",
        "pending_stores",
        "shadow",
        "unreported",
        "wrong",
    )

    def __init__(self, index: int, action: Action, before: CacheView | None, shadow: Shadow) -> None:
        self.index = index
        self.action = action
        self.before = before
        self.shadow = shadow
        self.observation = Observation(index=index)
        self.executed: StepPlan | None = None
        self.wrong: list[WrongRead] = []
        self.bad: list[BadPlan] = []
        self.in_flight = 0
        self.pending_loads = 0
        self.pending_stores = 0
        self.unreported = 0

    @property
    def view(self) -> CacheView | None:
        """The view after the action; None if the server failed."""
        return self.observation.view

    def alive(self, label: str) -> bool:
        """Whether anybody still waits for this request's answer."""
        request = self.before.requests.get(label) if self.before else None
        return request is not None and request.status != "held"
