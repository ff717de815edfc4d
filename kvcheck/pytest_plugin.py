"""The pytest plugin: `pytest --kvcheck-target=path:.` runs the state machine beside the tests of a checkout.

Nothing is imported, and nothing changes, unless one of its options is given. The machine runs in a process of its own:
the session may have loaded the whole of vLLM, or another release.
"""

# Imports wait until an option is given.
# ruff: noqa: PLC0415

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GRACE_SECONDS = 90.0
"""How much longer than it searches the machine's process may live: it loads the target, and shrinks what it found."""
UNREACHED, UNDETERMINED = "unreached", "undetermined"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("kvcheck")
    group.addoption("--kvcheck-target", metavar="T", help="Run kvcheck's state machine on this code, such as path:.")
    group.addoption("--kvcheck-seconds", metavar="S", type=_seconds, default=10.0, help="For so long (default: 10).")
    group.addoption("--kvcheck-layout", metavar="NAME|FILE", help="On this layout (default: random ones).")
    group.addoption("--kvcheck-seed", metavar="K", type=_seed, help="With this seed (default: a random one, printed).")
    group.addoption(
        "--kvcheck-light", metavar="T", help="Let `import vllm` mean this release, without torch, in exported tests."
    )


def _seconds(text: str) -> float:
    """A finite time above zero.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _seed(text: str) -> int:
    """A number that is not below zero.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def pytest_configure(config: pytest.Config) -> None:
    """Load a release light, before any test is imported."""
    if config.getoption("--kvcheck-target") is not None:
        config.addinivalue_line("markers", "kvcheck: kvcheck's state machine")
    spec = config.getoption("--kvcheck-light")
    if spec is not None:
        _load_light(spec)
        config.addinivalue_line("markers", "cpu_test: the server's mark for tests that need no GPU")


def _load_light(spec: str) -> None:
    """From now on `import vllm` means this release.

    Raises:
        pytest.UsageError: it cannot be had, or comes too late.
    """
    from kvcheck.files import one_line
    from kvcheck.targets.errors import TargetError
    from kvcheck.targets.vllm import light
    from kvcheck.targets.vllm.constructors import give_constructors
    from kvcheck.targets.vllm.release import resolve

    try:
        release = resolve(spec, mode="light")
        light.load(release)
    except TargetError as error:
        raise pytest.UsageError(f"--kvcheck-light: {one_line(error)}") from error
    give_constructors(release)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """One more item, which -k and -m can select as any other."""
    target = config.getoption("--kvcheck-target")
    if target is not None:
        items.append(
            MachineItem.from_parent(session, name=f"kvcheck[{target}]", nodeid=f"kvcheck[{target}]", target=target)
        )


class MachineFailed(Exception):
    """The machine found something, or nothing can be said; the text is for people."""


class MachineItem(pytest.Item):
    """The state machine on one target."""

    def __init__(self, *, target: str, **options: Any) -> None:
        super().__init__(**options)
        self._target = target
        self.add_marker("kvcheck")

    def runtest(self) -> None:
        """Run it, and fail with the shortest run that breaks something.

        Raises:
            MachineFailed: something is broken, or nothing can be said.
            pytest.skip.Exception: nothing is broken, and not everything was looked at.
        """
        told = self._told()
        if told["verdict"] not in ("passed", UNREACHED):
            raise MachineFailed(told["text"])
        self.user_properties.append(("kvcheck", told["text"]))
        if told["verdict"] == UNREACHED:
            self.user_properties.append(("kvcheck-verdict", UNDETERMINED))
            pytest.skip(told["text"])

    def _told(self) -> dict[str, str]:
        """What the machine's process says."""
        option = self.config.getoption
        from kvcheck.engines.workers import environment_of_workers

        seconds, seed = option("--kvcheck-seconds"), option("--kvcheck-seed")
        line = [sys.executable, "-P", "-m", "kvcheck.machine_child", self._target, str(seconds)]
        line += [option("--kvcheck-layout") or "random", "-1" if seed is None else str(seed)]
        try:
            done = subprocess.run(  # noqa: S603  our own module
                line,
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds + GRACE_SECONDS,
                env=environment_of_workers(),
            )
        except subprocess.TimeoutExpired:
            return {"verdict": "undetermined", "text": f"undetermined: no end within {seconds + GRACE_SECONDS:g} s"}
        try:
            told: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            return {"verdict": "undetermined", "text": f"undetermined: the machine's process died: {last}"}
        return told

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The account, without a traceback of ours."""
        if isinstance(excinfo.value, MachineFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where it is: nowhere in the checkout."""
        return self.path, None, self.name


def pytest_report_teststatus(report: Any) -> tuple[str, str, str] | None:
    """A machine that has not looked at everything is counted by itself: neither as passed nor as skipped."""
    if report.when == "call" and ("kvcheck-verdict", UNDETERMINED) in report.user_properties:
        return UNDETERMINED, "U", UNDETERMINED.upper()
    return None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What a machine that found nothing has done: passed is passed within a bound."""
    reports = [report for kind in ("passed", UNDETERMINED) for report in terminalreporter.stats.get(kind, ())]
    for text in [text for report in reports for name, text in report.user_properties if name == "kvcheck"]:
        terminalreporter.write_line(f"kvcheck: {text}")
