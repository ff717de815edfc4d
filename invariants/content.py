"""Content: every read finds what it should (R5.5, R6, R7). The shadow worker has compared; this says what it means."""

from __future__ import annotations

from collections.abc import Container, Iterator

from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.moment import Moment
from kvcheck.invariants.registry import Finding, Severity, invariant
from kvcheck.model.observation import Retold
from kvcheck.model.shadow import WrongRead


def _wrong(moment: Moment, ledger: Ledger, what: str, exempt: Container[str] = ()) -> Iterator[Finding]:
    if moment.observation.failure is not None:
        return  # the server died on this output: nobody has seen it
    for read in moment.wrong:
        if read.what != what or read.label in exempt:
            continue
        if what == "store" or (moment.alive(read.label) and not _discarded(moment, ledger, read.label)):
            yield Finding(_sentence(read), (read.group,), cause=ledger.registration(read.group, read.block))


def _discarded(moment: Moment, ledger: Ledger, label: str) -> bool:
    """Whether nobody sees what the request computed in this step: the server keeps no token of it and counts none as
    computed (R7.10, R8.8). What it wrote is judged by its keys."""
    plan, view, processed = moment.executed, moment.view, moment.observation.processed
    if plan is None or view is None or processed is None or processed.kept.get(label):
        return False
    request = view.requests.get(label)
    if request is None or ledger.lives.get(label, 0) > plan.seq:
        return True
    item = next(r for r in plan.requests if r.label == label)
    return request.computed - request.in_flight < item.start + item.count


def _sentence(read: WrongRead) -> str:
    return (
        f"{read.label} reads position {read.position} in group {read.group} (column {read.column}, block {read.block}) "
        f"and finds {read.held} instead of {read.expected}"
    )


@invariant(
    "content.attention",
    "attention reads this request's own prefix at every position it attends to",
    Severity.CORRUPTION,
    "R2 R5.5 R8.2.3",
)
def attention(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """Prefix, window or chunk, judged when the step runs."""
    return _wrong(moment, ledger, "forward")


@invariant(
    "content.state",
    "a recurrent layer starts from the state after exactly this request's computed tokens",
    Severity.CORRUPTION,
    "R2.9 R5.5.3 #29387 #51113",
)
def state(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """The one state that a Mamba group reads."""
    return _wrong(moment, ledger, "state")


@invariant(
    "content.store",
    "a connector reads finished content from the blocks that it was told to keep",
    Severity.CORRUPTION,
    "R7 #45357",
)
def store(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """Blocks whose return waits for the connector must not change."""
    return _wrong(moment, ledger, "store")


@invariant(
    "content.draft",
    "the drafter's layers read content that goes with this request's next tokens",
    Severity.DRAFT_QUALITY,
    "R1.21 R4.5 R4.8",
)
def draft(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """Costs accepted drafts, never a right answer. A session is promised nothing here: what the drafter wrote at the
    end of a turn it does not write again in the next."""
    if not any(read.what == "draft" for read in moment.wrong):
        return
    sessions = {label for label, arrival in ledger.arrivals.items() if arrival.session}
    excused = {read.label for read in moment.wrong if _duplicate(read, ledger)} | sessions
    yield from _wrong(moment, ledger, "draft", excused)


def _duplicate(read: WrongRead, ledger: Ledger) -> bool:
    """Whether the entry lies in a hit that was looked for as far as it should be: then its key had a block that was
    followed by other tokens, which keys do not tell (R1.21)."""
    if ledger.promises.drafts_of_duplicates or read.position >= ledger.resumed_at.get(read.label, 0):
        return False
    return read.group in ledger.peeked.get(read.label, ())


@invariant(
    "content.answer",
    "a request's tokens are its prompt and what was sampled for it, in that order",
    Severity.CORRUPTION,
    "R8.8 #48245 #49250",
    event=Retold,
)
def answer(retold: Retold, ledger: Ledger) -> Iterator[Finding]:
    """Only a session may go on with other tokens than those that it had."""
    arrival = ledger.arrivals[retold.label]
    if not arrival.session:
        yield Finding(f"the tokens of {retold.label} are no longer those that they were")
