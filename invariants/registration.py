"""Registration: a published key names what the block holds, and what should be published is (R5, R6)."""

from __future__ import annotations

from collections.abc import Iterator

from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.moment import Moment
from kvcheck.invariants.promised import whole_prefix_lengths
from kvcheck.invariants.registry import Finding, Severity, invariant
from kvcheck.model.observation import Announce, Commit, Register


def _due(ledger: Ledger) -> Iterator[Register]:
    """Registrations whose step has run by now, if they still stand; one made anew waits for its own step."""
    while ledger.due and ledger.due[0][0] <= ledger.executed:
        _, event = ledger.due.popleft()
        if ledger.keys.get((event.group, event.length, event.key), {}).get(event.block) is event:
            yield event


@invariant(
    "registration.names",
    "once its step has run, a published key names what the block holds",
    Severity.CORRUPTION,
    "R5.5.1 R6.6 R6.9 #51113",
)
def names(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """New keys when their step has run, and all keys of blocks that a step or a load has written."""
    if moment.observation.failure is not None:
        return
    dirty, moment.shadow.dirty = moment.shadow.dirty, set()
    suspects = {id(event): event for event in _due(ledger)}
    waiting = {(event.group, event.length, event.key, event.block) for _, event in ledger.due} if dirty else ()
    for group in range(len(ledger.layout.groups)):
        for block in dirty:
            for key in ledger.by_block.get((group, block), ()):
                event = ledger.keys[key][block]
                if event.label and (*key, block) not in waiting:
                    suspects[id(event)] = event
    for event in suspects.values():
        if _computed_again(event, moment, ledger):
            continue
        wrong = moment.shadow.check_key(event, ledger.prefixes[event.label])
        if wrong is not None:
            yield Finding(
                f"block {event.block} of group {event.group} is registered for {event.label}'s first {event.length} "
                f"tokens and holds, for position {wrong.position}, {wrong.held}",
                (event.group,),
                cause=event,
            )


def _computed_again(event: Register, moment: Moment, ledger: Ledger) -> bool:
    """Whether the request goes back behind this key because a load of its failed (R7.10.1)."""
    request = moment.view.requests.get(event.label) if moment.view else None
    return event.label in ledger.failed_loads and request is not None and request.computed < event.length


@invariant(
    "registration.own-tokens",
    "a request's blocks are registered under the names of its own tokens",
    Severity.CORRUPTION,
    "R1.10 R6.9",
    event=Register,
)
def own_tokens(register: Register, ledger: Ledger) -> Iterator[Finding]:
    """A key of other tokens serves this request's content to whoever asks for those."""
    if not register.label or (ledger.promises.hash_lookahead and register.label in ledger.retold):
        return
    if ledger.key(register.group, register.label, register.length)[2] != register.key:
        yield Finding(
            f"block {register.block} holds {register.label}'s first {register.length} tokens and is registered for "
            f"other ones, in group {register.group}",
            (register.group,),
        )


@invariant(
    "registration.map",
    "the key map, what the blocks say of their keys, and the log of registrations agree",
    Severity.BOOKKEEPING,
    "R1.10 R1.11",
)
def key_map(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """Three books of the same thing."""
    view, before = moment.view, moment.before
    if view is None or (before is not None and view.keys is before.keys and view.block_keys is before.block_keys):
        return
    told = set(view.keys)
    if told != set(view.block_keys):
        yield Finding("the key map and the blocks' own keys differ", detail="blocks")
    booked = {(key[0], block, key[1], key[2]) for key, blocks in ledger.keys.items() for block in blocks}
    if told != booked:
        yield Finding("the key map differs from what was registered and withdrawn", detail="log")


@invariant(
    "registration.null",
    "the null block is never registered",
    Severity.CORRUPTION,
    "R1.3",
    event=Register,
)
def null(register: Register, ledger: Ledger) -> Iterator[Finding]:
    """It belongs to nobody."""
    if register.block == 0:
        yield Finding(f"the null block is registered in group {register.group}", (register.group,))


@invariant(
    "registration.complete",
    "whole blocks of computed and final tokens are registered up to the bound of their group",
    Severity.LOST_REUSE,
    "R5.1 R5.1.1 R5.2 R5.3 R5.4 R5.4.1 #50062 #52419",
    event=Commit,
)
def complete(commit: Commit, ledger: Ledger) -> Iterator[Finding]:
    """Full attention keeps every block, so every whole block below the bound must have got its key by now."""
    if not ledger.layout.caching or (ledger.promises.hash_lookahead and commit.label in ledger.retold):
        return  # a session's old keys look ahead to a token that it has discarded, as do the cells they stand for
    for group, spec in enumerate(ledger.layout.groups):
        if not spec.keeps_whole_prefix:
            continue
        for length in whole_prefix_lengths(commit, ledger, group):
            if ledger.key(group, commit.label, length) not in ledger.ever:
                yield Finding(
                    f"{commit.label} has {commit.length} computed tokens, but its first {length} are not registered "
                    f"in group {group}",
                    (group,),
                )
                break


@invariant(
    "registration.events",
    "a mirror fed by the KV events holds exactly the registered prefixes",
    Severity.BOOKKEEPING,
    "R1.10 #55092",
)
def events(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """Judged whenever events were published, at the end of the action."""
    announced = [event for event in moment.observation.log if isinstance(event, Announce)]
    for event in announced:
        keys = {(event.group, *key) for key in event.keys}
        if event.what == "stored":
            ledger.announced |= keys
        elif event.what == "removed":
            ledger.announced -= keys
        else:
            ledger.announced.clear()
    if moment.executed is None or not ledger.layout.events or moment.view is None:
        return
    missing = set(ledger.keys) - ledger.announced
    surplus = ledger.announced - set(ledger.keys)
    if missing:
        group, length, _ = min(missing)
        yield Finding(
            f"a prefix of {length} tokens is registered in group {group}, but a mirror of the events has lost it",
            detail="missing",
        )
    if surplus:
        group, length, _ = min(surplus)
        yield Finding(
            f"a mirror of the events has a prefix of {length} tokens in group {group} that is not registered",
            detail="surplus",
        )
