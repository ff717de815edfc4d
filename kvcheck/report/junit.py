"""A campaign as JUnit's XML. What nothing can be said about is an error; a known failure is skipped."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

import kvcheck
from kvcheck.engines.baseline import Standing
from kvcheck.engines.buckets import Bucket
from kvcheck.engines.campaign import CampaignResult
from kvcheck.engines.tally import Undetermined
from kvcheck.report.account import account_text
from kvcheck.report.known import known_text
from kvcheck.report.verdict import account_of, bound_text

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML file can hold."""


def junit_report(result: CampaignResult, standings: Sequence[Standing]) -> bytes:
    """One suite. Its cases: each failure, each known one, all that is undetermined; the search, if it passed."""
    name = f"kvcheck fuzz {result.plan.spec}"
    suite = TestSuite(name)
    for case in _cases(result, standings):
        case.classname = name
        suite.add_testcase(case)
    suite.time = round(result.seconds, 3)
    for key, value in _properties(result).items():
        suite.add_property(key, _text(value))
    xml = JUnitXml("kvcheck")
    xml.add_testsuite(suite)
    xml.time = suite.time
    file = io.BytesIO()
    xml.write(file, pretty=True)
    return file.getvalue()


def _cases(result: CampaignResult, standings: Sequence[Standing]) -> Iterator[TestCase]:
    entries = {one.entry.signature: one.entry for one in standings}
    for bucket in result.failures:
        yield _failed(bucket, result.plan.spec)
    for bucket in result.known:
        yield _case(bucket.signature, Skipped(_text(f"known: {known_text(entries[bucket.signature])}")))
    for name, item in zip(_names(result.undetermined), result.undetermined, strict=True):
        yield _case(name, Error(_text(item.message), item.code))
    if result.verdict == "passed":
        yield _case("search", None, bound_text(result))


def _names(items: Sequence[Undetermined]) -> Iterator[str]:
    """A name for each, with what it is about if that is told, such as a situation or a signature: a server takes cases
    of one name for one case."""
    seen: Counter[str] = Counter()
    for item in items:
        about, colon, _ = item.message.partition(": ")
        name = f"undetermined: {item.code}{colon and f': {about}'}"
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name} ({seen[name]})"


def _failed(bucket: Bucket, spec: str) -> TestCase:
    failure = Failure(_text(bucket.violation.message), bucket.violation.severity)
    failure.text = _text(account_text(account_of(bucket, spec)))
    return _case(bucket.signature, failure)


def _case(name: str, result: Failure | Error | Skipped | None, output: str = "") -> TestCase:
    case = TestCase(_text(name), time=0.0)
    if result is not None:
        case.result = [result]
    if output:
        case.system_out = _text(output)
    return case


def _properties(result: CampaignResult) -> dict[str, str]:
    plan = result.plan
    return {
        "verdict": result.verdict,
        "kvcheck": kvcheck.__version__,
        "target": plan.spec,
        "target_version": result.info.version,
        "target_digest": result.info.digest,
        "seed": str(plan.seed),
        "shard": "/".join(map(str, plan.shard)),
        "runs": str(result.runs),
        "actions": str(result.actions),
    }


def _text(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
