"""What a campaign does before it searches: the failures of earlier ones are replayed."""

from __future__ import annotations

from collections import deque

from kvcheck.engines.buckets import Buckets, State
from kvcheck.engines.earlier import Earlier, Outcome, Replayed
from kvcheck.engines.judging import RunResult
from kvcheck.engines.tally import Tally
from kvcheck.engines.watched import Watched, code_and_message
from kvcheck.invariants.registry import Violation

_UNSAID = {"masked": Outcome.MASKED, "not-supported": Outcome.NOT_SUPPORTED}


class Replays:
    """Earlier failures and what came of each. What they show is sorted into the campaign's buckets."""

    def __init__(self, earlier: tuple[Earlier, ...], buckets: Buckets, tally: Tally) -> None:
        self._earlier = earlier
        self._buckets = buckets
        self._tally = tally
        self._waiting = deque(range(len(earlier)))
        self._outcomes = [Outcome.NOT_REPLAYED] * len(earlier)

    def take(self) -> int | None:
        """The number of the next one to replay; None: there is none left. One thread at a time may ask."""
        return self._waiting.popleft() if self._waiting else None

    def replay(self, watched: Watched, number: int) -> None:
        """Replay it."""
        earlier = self._earlier[number]
        result = watched.judge(earlier.run, record=True)
        for violation in {v.signature: v for v in result.violations}.values():
            self._sort(earlier, violation, result)
        self._outcomes[number] = outcome = _outcome(earlier, result)
        if outcome is Outcome.UNDETERMINED:
            code, message = code_and_message(result.undetermined)
            self._tally.note(code, f"{earlier.origin}: {message}")

    def _sort(self, earlier: Earlier, violation: Violation, result: RunResult) -> None:
        """What was shown before and is shown again is confirmed, and shrunk last if it is not short; what is short need
        no shrinking."""
        state: State = "found"
        if earlier.signature == violation.signature:
            if earlier.was_shown:
                state = "confirmed" if earlier.shrunk else "shown"
            elif earlier.shrunk:
                state = "shrunk"
        more = {"needs": earlier.needs, "trace": result.trace} if state in ("confirmed", "shown") else {}
        self._buckets.sort(violation, earlier.run, None, origin=earlier.origin, state=state, **more)

    def results(self) -> tuple[Replayed, ...]:
        """What came of all of them, in order."""
        return tuple(Replayed(*pair) for pair in zip(self._earlier, self._outcomes, strict=True))

    def note_the_rest(self) -> None:
        """What was not replayed was not checked."""
        missing = self._outcomes.count(Outcome.NOT_REPLAYED)
        if missing:
            self._tally.note(
                "not-replayed", f"there was no time for {missing} of {len(self._earlier)} earlier failures"
            )


def _outcome(earlier: Earlier, result: RunResult) -> Outcome:
    verdict, why = result.said_of(earlier.signature)
    if verdict == "violated":
        return Outcome.SHOWN
    if verdict == "passed":
        return Outcome.GONE if earlier.was_shown else Outcome.NOT_SHOWN
    return _UNSAID.get(code_and_message(why)[0], Outcome.UNDETERMINED)
