"""Tables: what the worker is told, and what it already has (R8.3)."""

from __future__ import annotations

from collections.abc import Iterator

from kvcheck.invariants.ledger import Ledger
from kvcheck.invariants.moment import Moment
from kvcheck.invariants.registry import Finding, Severity, invariant
from kvcheck.model.actions import Schedule
from kvcheck.model.observation import NULL_BLOCK


@invariant(
    "tables.append-only",
    "a running request's published columns keep their block or become null",
    Severity.CORRUPTION,
    "R8.3 R8.3.1 R6.5 #51766",
)
def append_only(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """The worker appends; it would go on with the old block."""
    before, view = moment.before, moment.view
    if before is None or view is None or not isinstance(moment.action, Schedule):
        return
    plan = moment.observation.plan
    continuing = {r.label for r in plan.requests if r.kind == "running"} if plan else set()
    for label in sorted(continuing & before.tables.keys()):
        for group, (old, new) in enumerate(zip(before.tables[label], view.tables.get(label, ()), strict=False)):
            if len(new) < len(old) or any(n not in (o, NULL_BLOCK) for o, n in zip(old, new, strict=False)):
                yield Finding(f"the table of {label} in group {group} was changed under the worker", (group,))
                return


@invariant(
    "tables.executable",
    "a worker can execute the plan: every column that it writes or reads is there",
    Severity.CORRUPTION,
    "R8.3 R8.1",
)
def executable(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """Missing columns make a worker write to the null block or outside its table."""
    for bad in moment.bad:
        if moment.alive(bad.label):
            yield Finding(f"{bad.label}: group {bad.group} {bad.text}", (bad.group,))
            return


@invariant(
    "tables.plan",
    "a plan runs at least one known token of each request, within its length, the budget and the number of requests",
    Severity.CORRUPTION,
    "R1.15 R8.2",
)
def plan(moment: Moment, ledger: Ledger) -> Iterator[Finding]:
    """Within the token budget, and never a step without tokens."""
    made = moment.observation.plan
    if made is None:
        return
    total = 0
    for item in made.requests:
        total += item.count
        if item.count < 1 or item.drafts >= item.count:
            yield Finding(f"{item.label} runs {item.count} tokens of which {item.drafts} are drafts", detail="count")
        if item.start + item.count > ledger.layout.max_model_len:
            yield Finding(f"{item.label} runs up to {item.start + item.count} tokens", detail="length")
    if total > ledger.layout.token_budget:
        yield Finding(f"a step runs {total} tokens, more than {ledger.layout.token_budget}", detail="budget")
    if len(made.requests) > ledger.layout.max_requests:
        yield Finding(f"a step runs {len(made.requests)} requests", detail="requests")
