"""Lookups over any set of cached blocks: the model's own code, run once for every way to answer its questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kvcheck.model import laws
from kvcheck.model.arith import either, negated
from kvcheck.model.coordinator import Agreed, Coordinator, LookupGroup
from kvcheck.model.faults import Faults
from kvcheck.model.layout import Group
from kvcheck.model.managers import Hit
from kvcheck.model.pool import ServerError
from kvcheck.prover.runs import EAGLE, group, layout
from kvcheck.prover.unroll import Ask, paths
from kvcheck.prover.words import Condition, every, some

if TYPE_CHECKING:
    from kvcheck.prover.statement import Statement

T = TypeVar("T")

LONGEST = 8
"""Tokens of the longest cached prefix; h is 1 in all layouts here."""

FULL, MAMBA = partial(group, "full"), partial(group, "mamba")
WINDOW, CHUNKED = partial(group, "sliding_window"), partial(group, "chunked_local")
LAYOUTS = (
    layout(FULL(1), WINDOW(1, window=3)),
    layout(FULL(1), CHUNKED(1, chunk=3)),
    layout(WINDOW(1, window=2), MAMBA(2)),
    layout(FULL(2), MAMBA(2), drafter=EAGLE, match_unit=1),
    layout(FULL(1), WINDOW(1, window=3), WINDOW(2, window=4)),
    layout(FULL(1), WINDOW(2, window=3), MAMBA(3)),
    layout(FULL(1), WINDOW(1, window=2), MAMBA(1), drafter=EAGLE),
    layout(WINDOW(1, window=2), MAMBA(3), drafter=EAGLE),
    layout(WINDOW(1, window=4), FULL(1), WINDOW(2, window=2), drafter=EAGLE),
    layout(FULL(2), FULL(2, variant=2), MAMBA(2), match_unit=1),
)
"""Each kind of group beside others, with and without partial hits and EAGLE groups; ratios of blocks 1, 2 and 3. The
last one has two lookup groups of full attention, where R4.4 allows to miss a hit."""
SCOPE = f"any set of cached blocks of prefixes up to {LONGEST} tokens, {len(LAYOUTS)} literal layouts of 2 and 3 groups"

Needed = list[list[int]]
"""What a hit needs of one group: of each of these lists one prefix must be cached, by its length in tokens."""


def needed(group: Group, hit: int, looked_at: int) -> Needed:
    """What R2 asks for; prefixes beyond ``looked_at`` cannot help."""
    block = group.block_size
    if not hit:
        return []
    if group.kind == "mamba":
        return [[hit]]
    first = 0
    if group.kind == "sliding_window":
        first = max(0, hit - group.window + 1)
    elif group.kind == "chunked_local":
        first = hit - hit % group.chunk
    inside = [list(range(hit, min(looked_at, hit - hit % block + block) + 1))] if hit % block else []
    return [[end] for end in range(first - first % block + block, hit + 1, block)] + inside


def needed_behind(group: Group, hit: int, unit: int, looked_at: int) -> Needed:
    """What R4.5 asks for in a group that drops ``unit`` tokens behind a hit."""
    if not hit:
        return []
    if group.keeps_whole_prefix:
        return needed(group, hit + unit, looked_at)
    return [*needed(group, hit, looked_at), needed(group, hit + unit, looked_at)[-1]]


class _Pool:
    """A pool that asks whether a prefix is cached, instead of knowing it."""

    ask: Ask

    def find(self, groups: Sequence[int], name: int) -> list[int] | None:
        """Some block in each of the groups, if the prefix of ``name`` tokens is cached."""
        return [1] * len(groups) if self.ask((groups[0], name)) else None


class Lookups:
    """A server's lookups, and what is cached."""

    def __init__(self, s: Statement, faults: Faults) -> None:
        self._pool = _Pool()
        self.layout = s.layout
        self.coordinator = Coordinator(s.layout, self._pool, faults)  # type: ignore[arg-type]
        self.unit = self.coordinator.granularity
        s.numbers["layout"] = LAYOUTS.index(s.layout)
        self._names = list(range(1, LONGEST + 1))
        self._cached = {
            group.groups[0]: s.cached(f"cached in group {group.groups[0]}", LONGEST)
            for group in self.coordinator.lookup_groups
        }

    def agreed(self, cap: int) -> Iterator[tuple[Seen, Agreed | None]]:
        """All that a lookup up to ``cap`` can see, and its result; None: an assertion of it fails."""
        return self._ways(lambda: self.coordinator.agree(self._names, cap))

    def found(self, group: LookupGroup, limit: int, drops: bool) -> Iterator[tuple[Seen, Hit | None]]:
        """The same of one group's lookup."""
        manager = group.manager
        return self._ways(lambda: manager.find(group.groups, self._names, limit, self.unit, drops, manager.block))

    def _ways(self, lookup: Callable[[], T]) -> Iterator[tuple[Seen, T | None]]:
        def run(ask: Ask) -> T | None:
            self._pool.ask = ask
            try:
                return lookup()
            except ServerError:
                return None

        for answers, result in paths(run):
            yield Seen(answers, self._cached), result

    def dropped(self, group: LookupGroup) -> int:
        """What a group drops, in tokens (R4.6)."""
        manager = group.manager
        return laws.drop_unit(self.coordinator.partial, manager.fine_grained, manager.block, self.layout.hash_block)

    def serves(self, group: LookupGroup, hit: int, looked_at: int, drops: bool) -> Needed:
        """What a hit needs of this group, the unit behind it included if it drops."""
        spec = self.layout.groups[group.groups[0]]
        if drops:
            return needed_behind(spec, hit, self.dropped(group), looked_at)
        return needed(spec, hit, looked_at)

    def beyond(self, group: LookupGroup, hit: int, drops: bool) -> int:
        """How far a lookup that grants this hit looks."""
        return hit + self.dropped(group) if drops else hit


class Seen(NamedTuple):
    """Answers of one way through a lookup."""

    answers: dict[Any, bool]
    cached: dict[int, Callable[[int], Condition]]

    @property
    def happens(self) -> Condition:
        """That exactly this is cached, of what was asked for."""
        bits = [(self.cached[group](length), there) for (group, length), there in self.answers.items()]
        return every(*(bit if there else negated(bit) for bit, there in bits))

    def misses(self, group: int, wanted: Needed) -> bool:
        """Whether it was seen that something wanted is not cached."""
        return any(all(self.answers.get((group, length)) is False for length in lengths) for lengths in wanted)

    def met(self, group: int, wanted: Needed) -> Condition:
        """Whether all that is wanted is cached. What was seen is known already."""
        return every(*(self._one(group, lengths) for lengths in wanted))

    def _one(self, group: int, lengths: list[int]) -> Condition:
        answers = {length: self.answers.get((group, length)) for length in lengths}
        return some(*(self.cached[group](length) if seen is None else seen for length, seen in answers.items()))


class Everywhere:
    """A claim about every way through, of which those that refute it are collected.

    The smallest numbers come first; once a way refutes it, those with larger numbers are not collected any more.
    """

    def __init__(self) -> None:
        self._broken: Condition = False
        self._number: int | None = None
        self._said = False

    def holds(self, seen: Seen, condition: Condition, number: int, where: Condition) -> None:
        """It must hold on this way, whose ``number`` is told by ``where``."""
        self._said = True
        if condition is not True and self._number in (None, number):
            self._broken = either(self._broken, every(where, seen.happens, negated(condition)))
            self._number = number

    def claimed(self, s: Statement, what: str) -> None:
        """Claim that it holds on all ways; where there is none, it says nothing."""
        s.claim(what, negated(self._broken), when=self._said)
