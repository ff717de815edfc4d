"""A run as a test that uses kvcheck: the run inline, judged on a target."""

from __future__ import annotations

import textwrap

from kvcheck.export.found import Found
from kvcheck.files import run_text

_TEST = '''\
"""{title}"""

import os

import msgspec

from kvcheck.engines.judging import judge_run
from kvcheck.model.actions import Run
from kvcheck.targets.loading import load_target

TARGET = os.environ.get("KVCHECK_TARGET", {target!r})

RUN = r"""
{run}"""


def test_{name}():
    target = load_target(TARGET)  # one release a process
    result = judge_run(target, msgspec.json.decode(RUN, type=Run))
    assert not result.undetermined, result.undetermined
    assert result.actions > result.skipped
    assert not result.violations, result.violations[0].message
'''


def pytest_test(found: Found, name: str) -> str:
    """The test's file. ``name``: of the test, without what comes before it."""
    title = f"{found.invariant.claim} ({found.violation.signature})."
    return _TEST.format(
        title="\n".join(textwrap.wrap(title, 100)),
        target=found.trace.target.spec,
        run=run_text(found.trace.run),
        name=name,
    )
