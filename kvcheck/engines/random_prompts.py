"""Random prompts that share prefixes in every way that a cache cares for.

All tokens come from a few fixed streams over tiny alphabets, so a prompt costs some draws, not one a token.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from kvcheck.engines.execution import Execution
from kvcheck.engines.source import Source
from kvcheck.model.actions import Arrive
from kvcheck.model.content import SAMPLED_TOKENS
from kvcheck.model.layout import Layout

Tokens = tuple[int, ...]

PROMPT_TOKENS: tuple[int, ...] = (5, 6, 7, 8, 9)
"""Tokens that sampling never gives."""
STREAM_LENGTH = 512
"""Tokens of a stream: more than any request has."""


def _streams() -> tuple[Tokens, ...]:
    """Endless texts: over five tokens, two tokens, one token, and the tokens that sampling gives."""
    generator = random.Random(20)
    alphabets: tuple[Sequence[int], ...] = (
        *[PROMPT_TOKENS] * 5,
        PROMPT_TOKENS[:2],
        PROMPT_TOKENS[:1],
        SAMPLED_TOKENS,
    )
    return tuple(tuple(generator.choice(alphabet) for _ in range(STREAM_LENGTH)) for alphabet in alphabets)


STREAMS = _streams()


class Lengths:
    """Lengths in tokens, mostly at, just below and just above the boundaries of a layout."""

    def __init__(self, source: Source, layout: Layout) -> None:
        self._source = source
        self.longest = layout.max_model_len - 1
        group_sizes = [layout.block_tokens(i) for i in range(len(layout.groups))]
        widths = [g.window or g.chunk for g in layout.groups]
        others = [layout.hash_block, layout.scheduler_block, layout.token_budget, layout.long_prefill_threshold]
        self.units = sorted({unit for unit in (*group_sizes, *widths, *others) if 0 < unit <= self.longest})

    def between(self, low: int, high: int) -> int:
        """A length from ``low`` to ``high``; ``low`` is at most ``high``."""
        source = self._source
        if not self.units or source.chance(30):
            return source.integer(low, high)
        unit = source.choose(self.units)
        first, last = -(-low // unit), high // unit
        if first > last:
            return source.integer(low, high)
        length = unit * source.integer(first, last) + source.choose((0, 1, -1))
        return max(low, min(high, length))

    def of_prompt(self) -> int:
        """The length of a prompt: often short beside the longest that the server takes, now and then that one."""
        share = self._source.weighted(((50, 6), (25, 2), (75, 4), (100, 2)))
        if share == 100 and self._source.chance(30):
            return self.longest
        return self.between(1, max(1, self.longest * share // 100))


class Prompts:
    """The prompts of one run. Each way of making one has a weight that is drawn once for the run."""

    def __init__(self, source: Source, layout: Layout) -> None:
        self._source = source
        self._lengths = Lengths(source, layout)
        self._base_streams = [source.integer(0, len(STREAMS) - 1) for _ in range(source.choose((1, 2, 3)))]
        ways = (self._repeat, self._sibling, self._continued, self._near_miss, self._part)
        self._ways = [(way, source.choose((2, 1, 4, 8, 0))) for way in ways] + [(self._repeat, 1)]

    def draw(self, execution: Execution) -> Tokens:
        """A prompt, in view of the requests that arrived before and of the text that each of them has by now."""
        if not execution.arrivals or self._source.chance(25):
            return self._base()
        return self._source.weighted(self._ways)(execution)

    def tail(self, start: int, length: int) -> Tokens:
        """``length`` new tokens for positions from ``start`` on."""
        stream = STREAMS[self._source.integer(0, len(STREAMS) - 1)]
        return stream[start : start + length]

    def _base(self) -> Tokens:
        stream = STREAMS[self._source.choose(self._base_streams)]
        return stream[: self._lengths.of_prompt()]

    def _earlier(self, execution: Execution) -> Arrive:
        """Any request that came before, often the last one: those that meet in a step should have things in common."""
        arrivals = list(execution.arrivals.values())
        return arrivals[-1] if self._source.chance(40) else self._source.choose(arrivals)

    def _text(self, execution: Execution) -> Tokens:
        """An earlier prompt with its answer as far as there is one, and as far as the longest prompt goes."""
        tokens = execution.shadow.prefixes[self._earlier(execution).label].tokens
        return tuple(tokens[: self._lengths.longest])

    def _repeat(self, execution: Execution) -> Tokens:
        """The prompt of an earlier request once more."""
        return self._earlier(execution).prompt

    def _part(self, execution: Execution) -> Tokens:
        """A prefix of an earlier text."""
        text = self._text(execution)
        return text[: self._lengths.between(1, len(text))]

    def _sibling(self, execution: Execution) -> Tokens:
        """A prompt that shares a prefix with an earlier one and goes on differently."""
        shared = self._earlier(execution).prompt
        return self._grown(shared[: self._lengths.between(1, len(shared))])

    def _continued(self, execution: Execution) -> Tokens:
        """The conversation goes on: an earlier text with its answer, and more."""
        return self._grown(self._text(execution))

    def _near_miss(self, execution: Execution) -> Tokens:
        """An earlier prompt with one other token, mostly next to a boundary."""
        prompt = self._earlier(execution).prompt
        position = self._lengths.between(1, len(prompt)) - 1
        other = PROMPT_TOKENS[(prompt[position] + 1) % len(PROMPT_TOKENS)]
        return (*prompt[:position], other, *prompt[position + 1 :])

    def _grown(self, start: Tokens) -> Tokens:
        """``start`` with some tokens behind it, as far as the longest prompt goes."""
        room = self._lengths.longest - len(start)
        if room < 1:
            return start
        most = min(room, self._source.choose((4, 1, 12, room)))
        return (*start, *self.tail(len(start), self._lengths.between(1, most)))
