"""Proofs in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import kvcheck
from kvcheck.files import versioned
from kvcheck.prover.check import Checked
from kvcheck.prover.law import Law, Numbers
from kvcheck.report.console import Screen
from kvcheck.report.describe import action_text, layout_lines

STYLES = {"proved": "bold green", "refuted": "bold red", "unknown": "bold yellow"}


def show_proof(screen: Screen, one: Checked, reproduce: str = "") -> None:
    """One law: what it claims, for which numbers, what came of it, and the command that shows that again."""
    proof = one.proof
    screen.line(f"{proof.law.id}: {proof.result} ({proof.seconds:.1f} s)", STYLES[proof.result])
    for name, text in (*_facts(one), *([("reproduce", reproduce)] if reproduce else [])):
        screen.line(f"  {name and name + ':':<15} {text}")
    screen.line()


def _facts(one: Checked) -> Iterator[tuple[str, str]]:
    proof = one.proof
    yield "claim", f"{proof.law.claim} ({' '.join(proof.law.rules)})"
    yield "numbers", proof.generality
    for premise, numbers in proof.needs.items():
        yield "needs", f"{premise}; nothing checks that, and without it: {numbers_text(proof.law, numbers)}"
    if one.undetermined:
        yield "undetermined", one.undetermined
    if proof.numbers is not None:
        yield "broken", proof.why
        yield "counterexample", numbers_text(proof.law, proof.numbers)
    if one.shown:
        if one.shown.law is not proof.law:
            yield "of", f"{one.shown.law.id}: {numbers_text(one.shown.law, one.shown.numbers)}"
        yield "shows as", one.shown.signature
        for name, lines in (
            ("layout", layout_lines(one.shown.run.layout)),
            ("actions", [action_text(action) for action in one.shown.run.actions]),
        ):
            for index, line in enumerate(lines):
                yield name if index == 0 else "", line


def numbers_text(law: Law, numbers: Numbers) -> str:
    """The numbers of a counterexample, of a literal layout its groups."""
    told = [_number_text(law, name, value) for name, value in numbers.items() if value or name == "layout"]
    rest = len(numbers) - len(told)
    return ", ".join([*told, *(["all others 0, false or empty"] if rest else [])])


def _number_text(law: Law, name: str, value: Any) -> str:
    if name == "layout" and law.layouts:
        return f"layout ({next(iter(layout_lines(law.layouts[value])))})"
    return name if value is True else f"{name} {value}"


def show_proofs_verdict(
    screen: Screen, verdict: str, checked: Sequence[Checked], not_covered: Sequence[str], seconds: float
) -> None:
    """The last lines."""
    if not_covered:
        screen.line(f"undetermined: none of these laws is about {', '.join(not_covered)}", "yellow")
    results = [str(one.proof.result) for one in checked]
    counts = [f"{results.count(result)} {result}" for result in STYLES if result in results]
    screen.verdict(verdict, f": {', '.join(counts) or 'nothing was proved'} ({len(checked)} laws, {seconds:.0f} s)")


def proof_report(
    verdict: str,
    target: str,
    checked: Sequence[Checked],
    not_covered: Sequence[str],
    interrupted: bool,
    reproduce: dict[str, str],
) -> dict[str, Any]:
    """The JSON report. ``reproduce``: the command that shows it again, for each refuted law."""
    return {
        "version": 1,
        "kvcheck": kvcheck.__version__,
        "verdict": verdict,
        "target": target,
        "interrupted": interrupted,
        "laws": [_entry(one, reproduce.get(one.proof.law.id)) for one in checked],
        "not_covered": list(not_covered),
    }


def _entry(one: Checked, reproduce: str | None) -> dict[str, Any]:
    proof = one.proof
    return {
        "law": proof.law.id,
        "claim": proof.law.claim,
        "rules": list(proof.law.rules),
        "generality": proof.generality,
        "result": str(proof.result),
        "seconds": round(proof.seconds, 3),
        "needs": [{"premise": premise, "without": numbers} for premise, numbers in proof.needs.items()],
        "counterexample": _counterexample(one, reproduce),
        "undetermined": one.undetermined,
    }


def _counterexample(one: Checked, reproduce: str | None) -> dict[str, Any] | None:
    if one.proof.numbers is None:
        return None
    shown = one.shown
    return {
        "broken": one.proof.why,
        "numbers": one.proof.numbers,
        "signature": shown.signature if shown else None,
        "run": versioned(shown.run) if shown else None,
        "reproduce": reproduce,
    }
