"""How a campaign went, from its beginning to its end."""

from __future__ import annotations

from kvcheck.engines.campaign import Progress

MOST_POINTS = 500


class History:
    """Keeps what a campaign tells of its progress, at most `MOST_POINTS` of it, evenly spread."""

    def __init__(self) -> None:
        self.points: list[Progress] = []
        self._every = 1
        self._count = 0
        self._last: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        """It is so far."""
        self._last = progress
        if self._count % self._every == 0:
            self.points.append(progress)
        self._count += 1
        if len(self.points) > MOST_POINTS:
            self.points = self.points[::2]
            self._every *= 2

    def whole(self) -> list[Progress]:
        """All that was kept, and the last."""
        last = [self._last] if self._last is not None and self._last is not self.points[-1] else []
        return [*self.points, *last]
