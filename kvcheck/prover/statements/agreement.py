"""Agreement of all groups on one hit (R4).

What a lookup finds is claimed for any set of cached blocks, of prefixes as long as ``LONGEST``. The loop over the
groups is proved for lengths without a bound, from what the lookups of single groups were found to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

from kvcheck.model import laws
from kvcheck.model.actions import Run
from kvcheck.model.arith import aligned, both, ceil_div, either, equal, ite, minimum, negated
from kvcheck.model.faults import Faults
from kvcheck.prover.law import Numbers, law
from kvcheck.prover.lookups import LAYOUTS, LONGEST, SCOPE, Everywhere, Lookups
from kvcheck.prover.runs import cached
from kvcheck.prover.words import Condition, every, implies, some

if TYPE_CHECKING:
    from kvcheck.prover.statement import Statement

MOST_GROUPS = 8


def _shown(n: Numbers) -> Iterator[Run]:
    """The cached prefixes of the counterexample, and a request that looks for them."""
    of = LAYOUTS[n["layout"]]
    kept = {index: n.get(f"cached in group {index}", []) for index in range(len(of.groups))}
    least = n["known"] if "known" in n else n["cap"] + 1
    for prompt in range(least, LONGEST + 2):
        yield cached(of, kept, prompt)


@law(
    "agreement.finders",
    "the lookup of one group returns a multiple of the granularity, at most the candidate, where the group has what a "
    "hit needs, and the unit behind it if the group drops; full attention then serves all shorter hits too",
    "R2.1 R2.3 R2.4 R2.6 R2.9 R3.6 R4.5 R4.6 R4.9",
    SCOPE,
    refutes="window-one-short",
    instance="agreement.valid",
    layouts=LAYOUTS,
)
def finders(s: Statement, faults: Faults) -> None:
    """What ``agreement.fixpoint`` takes for granted."""
    lookups = Lookups(s, faults)
    raises, bounded, valid, closed = Everywhere(), Everywhere(), Everywhere(), Everywhere()
    cap, candidate = s.count("cap"), s.count("candidate")
    for group, most in product(lookups.coordinator.lookup_groups, range(LONGEST + 1)):
        index = group.groups[0]
        for length, drops in product(range(most + 1), {False, group.drops}):
            limit = min(lookups.beyond(group, length, drops), most)
            where = both(equal(cap, most), equal(candidate, length))
            for seen, hit in lookups.found(group, limit, drops):
                raises.holds(seen, hit is not None, most, where)
                got = hit[1] if hit else 0
                bounded.holds(seen, both(got <= length, aligned(got, lookups.unit)), most, where)
                valid.holds(seen, seen.met(index, lookups.serves(group, got, limit, drops)), most, where)
                shorter = range(0, got if group.whole_prefix else 0, lookups.unit)
                served = (seen.met(index, lookups.serves(group, less, limit, drops)) for less in shorter)
                closed.holds(seen, every(*served), most, where)

    raises.claimed(s, "no assertion of a lookup fails")
    bounded.claimed(s, "a multiple of the granularity, at most the candidate")
    valid.claimed(s, "the group has what such a hit needs")
    closed.claimed(s, "full attention serves shorter hits")


@law(
    "agreement.valid",
    "no assertion of a lookup fails; the agreed hit is a multiple of the granularity within the cap, every group has "
    "what it needs at exactly that length, EAGLE groups have found the unit behind, and none adopts a block beyond it",
    "R4.1 R4.2 R4.3 R4.5 R4.8 R4.9 R4.10",
    SCOPE,
    refutes="single-pass-lookup drop-not-verified-again window-one-short mamba-looks-further "
    "only-first-full-attention-trimmed last-token-not-computed no-capability-check",
    replays=_shown,
    shows="agreement. registration.complete system.exception",
    layouts=LAYOUTS,
)
def valid(s: Statement, faults: Faults) -> None:
    """Alignment alone would not see a lookup that asks each group once."""
    lookups = Lookups(s, faults)
    raises, bounded, whole, serving, shared = (Everywhere() for _ in range(5))
    known = s.count("known")
    for tokens in range(1, LONGEST + 1):
        most = laws.cap(tokens, faults)
        for seen, agreed in lookups.agreed(most):
            where = equal(known, tokens)
            raises.holds(seen, agreed is not None, tokens, where)
            if agreed is None:
                continue
            blocks, length = agreed.blocks, agreed.length
            bounded.holds(seen, both(length < tokens, aligned(length, lookups.unit)), tokens, where)
            groups = lookups.coordinator.lookup_groups
            has = (seen.met(one.groups[0], lookups.serves(one, agreed.junction, most, False)) for one in groups)
            shared.holds(seen, some(agreed.junction == 0, both(length < agreed.junction, some(*has))), tokens, where)
            columns = [ceil_div(length, group.block_size) for group in lookups.layout.groups]
            whole.holds(seen, [len(found) for found in blocks] == columns, tokens, where)
            for group in groups:
                serves = lookups.serves(group, length, most, group.drops)
                serving.holds(seen, seen.met(group.groups[0], serves), tokens, where)

    raises.claimed(s, "no assertion of a lookup fails")
    serving.claimed(s, "every group has what the hit needs")
    bounded.claimed(s, "it is a multiple of the granularity within the cap")
    whole.claimed(s, "tables end with the hit")
    shared.claimed(s, "a junction is a longer hit of some group")


@law(
    "agreement.complete",
    "no longer hit would serve all groups",
    "R4.2 R4.7",
    SCOPE,
    refutes="drop-repeated window-run-rounded-twice",
    replays=_shown,
    shows="hits.",
    layouts=LAYOUTS[:-1],
)
def complete(s: Statement, faults: Faults) -> None:
    """A unit that is dropped lies within the cap (R4.5)."""
    lookups = Lookups(s, faults)
    longest = Everywhere()
    cap = s.count("cap")
    groups = lookups.coordinator.lookup_groups
    for most in range(LONGEST + 1):
        for seen, agreed in lookups.agreed(most):
            least = agreed.length + lookups.unit if agreed else most + 1
            for hit in range(least, most + 1, lookups.unit):
                wanted = {group.groups[0]: lookups.serves(group, hit, most, group.drops) for group in groups}
                beyond = any(lookups.beyond(group, hit, group.drops) > most for group in groups)
                missing = beyond or any(map(seen.misses, wanted, wanted.values()))
                served = False if missing else every(*map(seen.met, wanted, wanted.values()))
                longest.holds(seen, negated(served), most, equal(cap, most))

    longest.claimed(s, "no longer hit serves all groups")


@law(
    "agreement.fixpoint",
    "from any candidate on, the loop over the groups ends, and where it ends every group serves the hit, and every "
    "group that drops has found the unit behind it",
    "R4.1 R4.2 R4.3 R4.4 R4.7 R4.8",
    f"1 to {MOST_GROUPS} groups, any of them full attention or EAGLE, lengths without a bound; of lookups only what "
    "agreement.finders proves",
    refutes="drop-not-verified-again last-token-not-computed",
    instance="agreement.valid",
)
def fixpoint(s: Statement, faults: Faults) -> None:
    """One round, from anything that a round before it may have left."""
    known, length = s.count("known"), s.count("candidate")
    cap = laws.cap(known, faults)
    s.given(known > 0, length <= cap)
    groups = [_Member(s, index) for index in range(1, MOST_GROUPS + 1)]
    verified = [s.truth(f"verified {group.index}") for group in groups]
    verified_before, candidate = list(verified), length
    for group in groups:
        s.given(implies(verified[group.index - 1], group.has_unit_behind(length)))
        s.given(implies(group.looked_up, group.still_served(length)))
    for place, group in enumerate(groups):
        first = negated(both(group.whole_prefix, group.looked_up))
        asked = both(group.there, first)
        dropped = both(group.eagle, negated(verified[place]))
        s.given(implies(asked, group.answers(candidate, both(dropped, group.drops))))
        got = ite(asked, group.got, ite(group.there, minimum(candidate, group.got), candidate))
        shortened = both(asked, got < candidate)
        verified = [ite(asked, laws.drop_stands(was, shortened, dropped, faults), was) for was in verified]
        verified[place] = either(verified[place], both(asked, laws.drop_verified(dropped, faults)))
        candidate = got
    ends = candidate >= length

    s.claim("no round adds to the hit", candidate <= length)
    s.claim("one token is left to compute", candidate < known)
    for group in groups:
        s.claim(f"group {group.index} serves the hit", group.serves(candidate), when=both(ends, group.there))
        behind = group.has_unit_behind(candidate)
        s.claim(f"group {group.index} has the unit behind it", behind, when=every(ends, group.there, group.drops))
        s.claim(
            f"what is verified of group {group.index} is true for the next round",
            implies(verified[group.index - 1], behind),
            when=every(negated(ends), group.there, group.drops),
        )
        s.claim(
            f"what is left of group {group.index} is enough for the next round",
            group.still_served(candidate),
            when=every(negated(ends), group.there, group.whole_prefix),
        )
    one, two, *others = groups
    earlier = (*verified_before, *(group.looked_up for group in groups), *(group.there for group in others))
    kinds = every(one.there, one.whole_prefix, two.there, negated(two.whole_prefix))
    s.claim(
        "full attention and one other group agree after one round",
        every(one.serves(candidate), two.serves(candidate), implies(two.drops, two.has_unit_behind(candidate))),
        when=both(kinds, negated(some(*earlier))),
    )


class _Member:
    """One group in the loop. ``got``: what its lookup returns, in this round or, of full attention, before."""

    def __init__(self, s: Statement, index: int) -> None:
        self.index = index
        self.there = s.truth(f"there is group {index}")
        self.whole_prefix = s.truth(f"full attention {index}")
        self.mamba = s.truth(f"Mamba {index}")
        self.eagle = s.truth(f"EAGLE {index}")
        self.looked_up = s.truth(f"looked up {index}")
        self.got = s.count(f"hit of group {index}")
        self._valid, self._behind = s.predicate(f"valid {index}"), s.predicate(f"behind {index}")
        s.given(negated(both(self.whole_prefix, self.mamba)))

    @property
    def drops(self) -> Condition:
        """Mamba never does (R4.9)."""
        return both(self.eagle, negated(self.mamba))

    def serves(self, length: Any) -> Condition:
        """Full attention serves whatever is not longer than what it found."""
        return ite(self.whole_prefix, length <= self.got, self._valid(length))

    def has_unit_behind(self, length: Any) -> Condition:
        """The same of the unit behind."""
        found = self._behind(self.got)
        return ite(self.whole_prefix, both(length <= self.got, found), self._behind(length))

    def still_served(self, length: Any) -> Condition:
        """Full attention that was looked up before found as much at least, and dropped if it drops."""
        found = both(length <= self.got, implies(self.eagle, self._behind(self.got)))
        return implies(self.whole_prefix, found)

    def answers(self, candidate: Any, dropped: Condition) -> Condition:
        """The contract of a lookup at a candidate."""
        return every(self.got <= candidate, self._valid(self.got), implies(dropped, self._behind(self.got)))
