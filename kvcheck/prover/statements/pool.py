"""Who owns which block, and what keys name (R1, R6, R8.7): whatever happens in a pool keeps it so.

A small server in words of ``arith``: some blocks, some requests, and all that the model does to a pool with one block.
One step from any state is proved, so any number of steps is. The same functions on ints are what the tests compare with
the model's own pool.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kvcheck.model.actions import Run
from kvcheck.model.arith import both, either, equal, ite, negated
from kvcheck.model.faults import Faults
from kvcheck.prover.law import Numbers, law
from kvcheck.prover.runs import alone, followed, group, layout, together
from kvcheck.prover.words import Condition, every, implies, some

if TYPE_CHECKING:
    from kvcheck.prover.statement import Statement

BLOCKS, REQUESTS = 8, 3

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Blocks:
    """By block: ``refs``: references; ``free``: it stands in the free queue; ``keyed``: some key leads to it;
    ``stale``: that key names what is no longer there; ``ends``: copies of this pass that begin or end in it.
    By request and block: ``held``: in its table; ``writes``: it goes on writing there; ``owes``: it must copy the
    block before it does (R6.5)."""

    refs: Row
    free: Row
    keyed: Row
    stale: Row
    ends: Row
    held: tuple[Row, ...]
    writes: tuple[Row, ...]
    owes: tuple[Row, ...]

    def put(self, field: str, block: Any, value: Any, request: Any = None) -> Blocks:
        """Another value for one block, or for one block of one request."""
        old = getattr(self, field)
        if request is None:
            return dataclasses.replace(self, **{field: _put(old, True, block, value)})
        rows = tuple(_put(row, equal(request, index), block, value) for index, row in enumerate(old))
        return dataclasses.replace(self, **{field: rows})

    def at(self, field: str, block: Any, request: Any = None) -> Any:
        """The value for one block, or for one block of one request."""
        rows = getattr(self, field)
        if request is None:
            return _at(rows, block)
        return _at(tuple(_at(row, block) for row in rows), request)


def _put(row: Row, this: Condition, place: Any, value: Any) -> Row:
    return tuple(ite(both(this, equal(place, index)), value, old) for index, old in enumerate(row))


def _at(row: Row, place: Any) -> Any:
    value = row[0]
    for index, other in enumerate(row[1:], 1):
        value = ite(equal(place, index), other, value)
    return value


# ---- what happens ----------------------------------------------------------------------------------------------------


class Subject(NamedTuple):
    """A request, a block, and another one."""

    request: Any
    block: Any
    other: Any


def take(state: Blocks, it: Subject, _faults: Faults) -> Blocks:
    """A request takes a free block to write in; it loses its keys (R1.13)."""
    return _taken(state, it.block).put("held", it.block, True, it.request).put("writes", it.block, True, it.request)


def _taken(state: Blocks, block: Any) -> Blocks:
    fresh = state.put("refs", block, 1).put("free", block, False)
    return fresh.put("keyed", block, False).put("stale", block, False)


def share(state: Blocks, it: Subject, _faults: Faults) -> Blocks:
    """A hit of a whole block: it is only read (R1.12)."""
    return _touched(state, it.block).put("held", it.block, True, it.request)


def _touched(state: Blocks, block: Any) -> Blocks:
    return state.put("refs", block, state.at("refs", block) + 1).put("free", block, False)


def hit_inside(state: Blocks, it: Subject, faults: Faults) -> Blocks:
    """A partial hit: the request writes on in a copy, and both ends are kept (R6.1, R6.3, R6.4)."""
    touched = _touched(state, it.block)
    if faults.hit_block_not_copied:
        return touched.put("held", it.block, True, it.request).put("writes", it.block, True, it.request)
    copied = _with_end(_with_end(_taken(touched, it.other), it.block), it.other).put("refs", it.other, 2)
    return copied.put("held", it.other, True, it.request).put("writes", it.other, True, it.request)


def _with_end(state: Blocks, block: Any) -> Blocks:
    return state.put("ends", block, state.at("ends", block) + 1)


def register(state: Blocks, it: Subject, _faults: Faults) -> Blocks:
    """A partial tail gets its key; it must be copied before its block is written again (R5.4.2, R6.5)."""
    return state.put("keyed", it.block, True).put("owes", it.block, True, it.request)


def fill(state: Blocks, it: Subject, _faults: Faults) -> Blocks:
    """A block is full and gets its key; the request goes on in another one (R5.4)."""
    return state.put("keyed", it.block, True).put("writes", it.block, False, it.request)


def write(state: Blocks, it: Subject, _faults: Faults) -> Blocks:
    """A step writes on in a block, and its state moves on (R6.6)."""
    return state.put("stale", it.block, either(state.at("stale", it.block), state.at("keyed", it.block)))


def move(state: Blocks, it: Subject, faults: Faults) -> Blocks:
    """The producer of a tail keeps its block, and the keys go to a copy (R6.5)."""
    stale = state.at("stale", it.block)
    copied = _with_end(_with_end(_taken(state, it.other), it.block), it.other)
    held = copied.put("refs", it.block, copied.at("refs", it.block) + 1).put("owes", it.block, False, it.request)
    if faults.registration_does_not_move:
        return held
    return held.put("keyed", it.other, True).put("stale", it.other, stale).put("keyed", it.block, False)


def give_up(state: Blocks, it: Subject, faults: Faults) -> Blocks:
    """A request gives a block back: it leaves a window, or the request ends (R1.12)."""
    left = state.at("refs", it.block) - 1
    if faults.block_freed_twice:
        left = ite(left > 0, left - 1, left)
    given = state.put("refs", it.block, left).put("free", it.block, equal(left, 0))
    for field in ("held", "writes", "owes"):
        given = given.put(field, it.block, False, it.request)
    return given


def end_pass(state: Blocks, _it: Subject, faults: Faults) -> Blocks:
    """The copies of a pass are planned, and their ends are released (R6.3)."""
    released = tuple(count - ends for count, ends in zip(state.refs, state.ends, strict=True))
    refs = state.refs if faults.copy_ends_not_kept else released
    free = tuple(either(was, equal(count, 0)) for was, count in zip(state.free, refs, strict=True))
    return dataclasses.replace(state, refs=refs, free=free, ends=(0,) * len(refs))


Happening = Callable[[Blocks, Subject, Faults], Blocks]


def possible(happening: Happening, state: Blocks, it: Subject) -> Condition:
    """When something can happen."""
    held, writes = state.at("held", it.block, it.request), state.at("writes", it.block, it.request)
    owes = state.at("owes", it.block, it.request)
    keyed, another = state.at("keyed", it.block), both(state.at("free", it.other), negated(equal(it.block, it.other)))
    conditions: dict[Happening, Condition] = {
        take: state.at("free", it.block),
        share: both(keyed, negated(held)),
        hit_inside: every(keyed, another, negated(held)),
        register: both(writes, negated(owes)),
        fill: both(writes, negated(owes)),
        write: both(writes, negated(owes)),
        move: both(owes, another),
        give_up: held,
        end_pass: True,
    }
    return conditions[happening]


HAPPENINGS: tuple[Happening, ...] = (take, share, hit_inside, register, fill, write, move, give_up, end_pass)

# ---- what stays true -------------------------------------------------------------------------------------------------


def owned(state: Blocks) -> Condition:
    """References are what tables and copies hold, and a block without any is free."""
    held = zip(*state.held, strict=True)
    blocks = list(zip(state.refs, state.free, state.ends, held, strict=True))
    counted = (equal(refs, sum(ite(one, 1, 0) for one in holders) + ends) for refs, _, ends, holders in blocks)
    return every(*counted, *(_same(free, equal(refs, 0)) for refs, free, _, _ in blocks))


def _same(left: Condition, right: Condition) -> Condition:
    return both(implies(left, right), implies(right, left))


def named(state: Blocks) -> Condition:
    """No key names what is no longer there: where somebody writes on is no key, or a copy is owed first."""
    return every(*(negated(one) for one in state.stale), *_writers(state))


def _writers(state: Blocks) -> Iterator[Condition]:
    requests = range(len(state.held))
    for block in range(len(state.refs)):
        for r in requests:
            writes, owes = state.writes[r][block], state.owes[r][block]
            yield implies(writes, state.held[r][block])
            yield implies(both(writes, state.keyed[block]), owes)
            yield implies(owes, both(writes, state.keyed[block]))
            yield implies(writes, negated(some(*(state.writes[q][block] for q in requests if q != r))))


def _ownership_shown(_numbers: Numbers) -> Iterator[Run]:
    """The same things happen to requests of few tokens: a window moves on in shared blocks, a tail is copied."""
    window = layout(group("sliding_window", 2, window=2))
    tails = layout(group("full", 4), group("mamba", 4), match_unit=1)
    for prompt in range(1, 5):
        yield together(window, prompt)
        yield alone(tails, prompt, 3)
        yield followed(tails, prompt, prompt + 1)


@law(
    "pool.ownership",
    "whatever happens to a block, its references are those of tables and copies, it is free if and only if it has "
    "none, only one request writes in it, and no key names what is no longer there",
    "R1.12 R6.1 R6.3 R6.5 R6.6 R8.7",
    f"{BLOCKS} blocks, {REQUESTS} requests, any state, any number of steps (an inductive invariant)",
    refutes="block-freed-twice copy-ends-not-kept registration-does-not-move hit-block-not-copied",
    replays=_ownership_shown,
    shows="ownership. registration.",
)
def ownership(s: Statement, faults: Faults) -> None:
    """True of an empty pool, and kept by everything that happens."""
    state = _any_state(s)
    it = Subject(s.count("request"), s.count("block"), s.count("other block"))
    s.given(it.request < REQUESTS, it.block < BLOCKS, it.other < BLOCKS, owned(state), named(state))
    for happening in HAPPENINGS:
        after, when = happening(state, it, faults), possible(happening, state, it)
        name = happening.__name__.replace("_", " ")
        s.claim(f"references after: {name}", owned(after), when=when)
        s.claim(f"keys after: {name}", named(after), when=when)
    s.claim("an empty pool", both(owned(empty()), named(empty())))


def _any_state(s: Statement) -> Blocks:
    """What is free and stale follows from what stays true."""
    blocks, requests = range(BLOCKS), range(REQUESTS)

    def row(variable: Callable[[str], Any], name: str) -> Row:
        return tuple(variable(f"{name} {block}") for block in blocks)

    def rows(name: str) -> tuple[Row, ...]:
        return tuple(row(s.truth, f"{request} {name}") for request in requests)

    refs = row(s.count, "references of")
    return Blocks(
        refs=refs,
        free=tuple(equal(count, 0) for count in refs),
        keyed=row(s.truth, "keyed:"),
        stale=(False,) * BLOCKS,
        ends=row(s.count, "copy ends in"),
        held=rows("holds"),
        writes=rows("writes"),
        owes=rows("owes a copy of"),
    )


def empty() -> Blocks:
    """A pool of which nobody holds a block."""
    nothing, numbers = (False,) * BLOCKS, (0,) * BLOCKS
    nobody = (nothing,) * REQUESTS
    return Blocks(numbers, (True,) * BLOCKS, nothing, nothing, numbers, nobody, nobody, nobody)
