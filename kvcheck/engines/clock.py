"""The times of a campaign."""

from __future__ import annotations

import time

LEAST_SECONDS_AFTER = 10.0
MOST_SECONDS_AFTER = 60.0
"""What shrinking and replaying get after the search: half of its time, within these bounds."""
EARLIER_SHARE = 0.25
"""Which part of the search's time the failures of earlier campaigns may take."""


class Clock:
    """When the search ends, and when shrinking and replaying must end too."""

    def __init__(self, seconds: float | None) -> None:
        self._began = time.monotonic()
        self._seconds = seconds
        self._search_end: float | None = None

    def begin_search(self) -> None:
        """It begins now, if it has not begun before: a target may take its time to load."""
        if self._search_end is None and self._seconds is not None:
            self._search_end = time.monotonic() + self._seconds

    @property
    def elapsed(self) -> float:
        """Seconds since the campaign began."""
        return time.monotonic() - self._began

    @property
    def earlier_is_over(self) -> bool:
        """Whether no earlier failure is to be replayed any more."""
        if self._seconds is None or self._search_end is None:
            return self.search_is_over
        return time.monotonic() >= self._search_end - (1 - EARLIER_SHARE) * self._seconds

    @property
    def search_is_over(self) -> bool:
        """Whether no new run is to begin."""
        return self._search_end is not None and time.monotonic() >= self._search_end

    def end_search(self) -> None:
        """It ends now, if it has not ended before."""
        if not self.search_is_over:
            self._search_end = time.monotonic()

    @property
    def hard_end(self) -> float:
        """The moment when everything ends."""
        if self._search_end is None:
            return float("inf")
        searched = self._search_end - self._began if self._seconds is None else self._seconds
        return self._search_end + min(MOST_SECONDS_AFTER, max(LEAST_SECONDS_AFTER, searched / 2))

    @property
    def left(self) -> float:
        """Seconds until then."""
        return self.hard_end - time.monotonic()
