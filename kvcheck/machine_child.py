"""The process in which the pytest plugin runs the state machine; its last line says in JSON what came of it.

Verdict "unreached": nothing is broken, and not everything was looked at.
"""

from __future__ import annotations

import io
import json
import logging
import sys
import time
from pathlib import Path
from typing import ClassVar

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.errors import HypothesisException
from hypothesis.stateful import run_state_machine_as_test

from kvcheck.cli.options import RANDOM, layout_of, out_folder
from kvcheck.engines.findings import Findings, campaign_folder
from kvcheck.engines.judging import judge_run, shows
from kvcheck.engines.seeds import fresh_seed, seed_of_run
from kvcheck.engines.shrink import shrink
from kvcheck.files import InputError, one_line
from kvcheck.invariants.moment import Moment
from kvcheck.invariants.witnesses import Witness, happening, possible_witnesses
from kvcheck.machine import KVCacheMachine, ViolationFound, machine_for
from kvcheck.model.actions import Run
from kvcheck.report.account import Account, how_to_reproduce, show_account
from kvcheck.report.console import Screen
from kvcheck.report.describe import counted
from kvcheck.targets.base import Target
from kvcheck.targets.errors import TargetError
from kvcheck.targets.failures import HarnessError
from kvcheck.targets.loading import load_target

BATCH = 20
"""Runs between two looks at the clock."""
SHRINK_SECONDS = 20.0


class _Counted(KVCacheMachine):
    """Counts what happened, in all batches."""

    runs = 0
    steps = 0
    reached: ClassVar[set[str]] = set()
    possible: ClassVar[set[str]] = set()

    def __init__(self) -> None:
        super().__init__()
        self._situations: tuple[Witness, ...] | None = None

    def passed_by(self, moment: Moment) -> None:
        """Which situations come up, of those that the layout allows."""
        if self._situations is None:
            self._situations = possible_witnesses(self.execution.layout)
            _Counted.possible.update(situation.name for situation in self._situations)
        if not moment.observation.skipped:
            _Counted.reached.update(happening(self._situations, moment, self.judge.ledger))

    def teardown(self) -> None:
        """The faults stop, and everything must come to its end."""
        super().teardown()
        _Counted.runs += bool(self.actions)
        _Counted.steps += len(self.actions)


def main() -> None:
    """Arguments: target, seconds, layout, seed (-1: a new one)."""
    spec, seconds, layout, given = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    seed = fresh_seed() if int(given) < 0 else int(given)
    try:
        told = _searched(spec, float(seconds), layout, seed)
    except (TargetError, InputError) as error:
        told = _told("undetermined", one_line(error))
    except (HarnessError, HypothesisException) as error:
        told = _told("undetermined", f"{type(error).__name__}: {one_line(error)} (seed {seed})")
    sys.stdout.write(f"\n{json.dumps(told)}\n")


def _searched(spec: str, seconds: float, layout: str, seed: int) -> dict[str, str]:
    """Run the machine until the time is over, or until it finds something."""
    target = load_target(spec)
    chosen = layout_of(layout, target.info.version)
    if chosen is not None and (why := target.supports(chosen)):
        raise TargetError(f"{spec}: {why}")
    machine = type("Machine", (_Counted, machine_for(target, layout=chosen)), {})
    end = time.monotonic() + seconds
    for batch in range(sys.maxsize):
        try:
            _run_batch(machine, seed_of_run(seed, batch))
        except ViolationFound as found:
            kind = [] if layout == RANDOM else [layout]
            folder = campaign_folder(out_folder(None), spec, seed, "pytest", *kind)
            return _violated(target, found, folder)
        if time.monotonic() > end:
            break
    if not _Counted.steps:
        return _told("undetermined", "nothing happened: no run has begun")
    return _nothing_broken(
        f"{spec}: nothing broken in {counted(_Counted.runs, 'run')}, {counted(_Counted.steps, 'action')}, seed {seed}"
    )


def _nothing_broken(bound: str) -> dict[str, str]:
    """What never came up was not checked."""
    possible, missing = len(_Counted.possible), sorted(_Counted.possible - _Counted.reached)
    if not missing:
        return _told("passed", f"{bound}, in all {possible} situations that the layouts allow")
    never = f"{len(missing)} of {possible} situations that the layouts allow never came up: {', '.join(missing)}"
    return {"verdict": "unreached", "text": f"undetermined: {bound}, but {never}"}


def _run_batch(machine: type[KVCacheMachine], seed: int) -> None:
    settings = hypothesis.settings(
        max_examples=BATCH,
        phases=[Phase.generate],  # our own minimiser is quicker
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=settings)


def _violated(target: Target, found: ViolationFound, folder: Path) -> dict[str, str]:
    """Shrink what was found, keep it, and tell it."""
    violation = found.violations[0]

    def shown(run: Run) -> bool:
        return shows(target, run, violation.signature) is not None

    if not shown(found.run):
        return _told("undetermined", f"not shown again: {violation.signature}")
    run = shrink(found.run, shown, SHRINK_SECONDS)
    result = judge_run(target, run, record=True)
    violation = next((one for one in result.violations if one.signature == violation.signature), violation)
    findings = Findings(folder, target.info.spec)
    file = findings.save(violation.signature, run, (result.trace,) if result.trace else ())
    text = io.StringIO()
    account = Account(
        violation=violation, run=run, reproduce=how_to_reproduce(file, target.info.spec), trace=result.trace
    )
    show_account(Screen(text, no_color=True), account, 1)
    return _told("violated", text.getvalue().strip() + (f"\n{findings.error}" if findings.error else ""))


def _told(verdict: str, text: str) -> dict[str, str]:
    return {"verdict": verdict, "text": f"undetermined: {text}" if verdict == "undetermined" else text}


if __name__ == "__main__":
    main()
