"""The vLLM target: one release, loaded into this process."""

from __future__ import annotations

from kvcheck.model.actions import Level
from kvcheck.model.layout import Layout
from kvcheck.model.observation import TargetInfo
from kvcheck.targets.base import Session, UnsupportedLayout
from kvcheck.targets.vllm.api import for_release
from kvcheck.targets.vllm.loading import load
from kvcheck.targets.vllm.manager_session import ManagerSession
from kvcheck.targets.vllm.release import Release
from kvcheck.targets.vllm.session import SchedulerSession


class VllmTarget:
    """A release of vLLM whose scheduler can be driven."""

    def __init__(self, release: Release) -> None:
        self._api = for_release(load(release))
        self.info = TargetInfo(
            spec=release.spec,
            version=release.version or "",
            origin=release.origin,
            digest=release.digest,
            mode=release.mode,
        )

    def supports(self, layout: Layout) -> str:
        """Why the release cannot express the layout; empty if it can."""
        return self._api.supports(layout)

    def start(self, layout: Layout, level: Level = "scheduler") -> Session:
        """A new server with this layout, or only its cache manager."""
        if why := self.supports(layout):
            raise UnsupportedLayout(why)
        try:
            return ManagerSession(self._api, layout) if level == "manager" else SchedulerSession(self._api, layout)
        except (AssertionError, ValueError) as error:
            raise UnsupportedLayout(f"the server refuses this layout when it starts: {error}") from error
