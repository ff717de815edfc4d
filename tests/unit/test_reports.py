"""Reports that other tools read, of campaigns made by hand: JUnit's XML, SARIF, Markdown."""

from __future__ import annotations

import io
import re
from datetime import date
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from junitparser import JUnitXml
from toys import LOADER, run_of

from kvcheck.engines import afterwards
from kvcheck.engines.baseline import Known, Standing, State
from kvcheck.engines.buckets import Bucket
from kvcheck.engines.campaign import CampaignResult, Plan
from kvcheck.engines.earlier import Earlier, Outcome, Replayed
from kvcheck.engines.tally import Undetermined
from kvcheck.files import json_text
from kvcheck.invariants.registry import Violation, all_invariants
from kvcheck.model.actions import Arrive
from kvcheck.model.observation import Failure, TargetInfo
from kvcheck.report.campaign_json import campaign_report
from kvcheck.report.describe import action_text
from kvcheck.report.junit import junit_report
from kvcheck.report.pages.campaign import campaign_page
from kvcheck.report.sarif import SOMEWHERE, sarif_report
from kvcheck.report.summary import summary_report
from kvcheck.report.verdict import account_of
from kvcheck.targets.places import Place

KNOWN = Known(signature="known one", reason="why", issue="#7", expires=date(2026, 3, 31))
STANDINGS = [Standing(KNOWN, State.KNOWN, 0)]
STRANGE = "a|b `c` <d> & ]]> \uffff\x00 \u00e4 *e*"


def bucket(signature: str, invariant: str, severity: str, known: bool = False, message: str = STRANGE) -> Bucket:
    violation = Violation(invariant, severity, message, signature, 1)
    more: dict[str, Any] = {"index": 3, "found_after": 1.0, "file": Path("out/run.json"), "state": "confirmed"}
    run = run_of("a")
    return Bucket(signature=signature, violation=violation, run=run, original=run, known=known, times=4, **more)


NEW = bucket("new one", "system.exception", "crash")
OLD = bucket("known one", "hits.skip", "lost reuse", known=True)
LOST = Undetermined(code="worker-died", message=STRANGE)


def result_of(*buckets: Bucket, undetermined: tuple[Undetermined, ...] = (), spec: str = "path:.") -> CampaignResult:
    verdict: Any = "violated" if NEW in buckets else "undetermined" if undetermined else "passed"
    return CampaignResult(
        plan=Plan(spec=spec, seed=5, out=Path("out")),
        info=TargetInfo(spec=spec, version="1"),
        verdict=verdict,
        runs=7,
        actions=70,
        skipped=0,
        seconds=1.5,
        interrupted=False,
        buckets=buckets,
        undetermined=undetermined,
        witnesses={"seen": 1},
        actions_by_kind={},
        earlier=(Replayed(Earlier(run=run_of("b"), origin="there", signature="gone|one"), Outcome.GONE),),
    )


# ---- JUnit -----------------------------------------------------------------------------------------------------------


def cases(result: CampaignResult) -> dict[str, Any]:
    """What came of each test case; None: passed."""
    (suite,) = JUnitXml.fromfile(io.BytesIO(junit_report(result, STANDINGS)))
    return {case.name: case.result[0] if case.result else None for case in suite}


def kinds(result: CampaignResult) -> dict[str, str]:
    return {name: type(found).__name__ for name, found in cases(result).items()}


def test_junit() -> None:
    everything = result_of(NEW, OLD, undetermined=(LOST,))
    assert kinds(everything) == {"new one": "Failure", "known one": "Skipped", "undetermined: worker-died": "Error"}
    assert kinds(result_of(undetermined=(LOST,))) == {"undetermined: worker-died": "Error"}
    assert kinds(result_of(OLD)) == {"known one": "Skipped", "search": "NoneType"}
    found = cases(everything)
    assert found["new one"].type == "crash"
    assert found["new one"].message == STRANGE.replace("\uffff", "\ufffd").replace("\x00", "\ufffd")
    assert "kvcheck replay" in found["new one"].text or "could not be written" in found["new one"].text
    assert found["new one"].text.startswith("new one")
    assert found["known one"].message == "known: why, #7, excused until 2026-03-31"


def test_no_two_cases_of_junit_have_one_name() -> None:
    texts = ["never-reached: a: what", "never-reached: b: what", "worker-died: x", "worker-died: y"]
    items = [Undetermined(code=code, message=message) for code, _, message in (text.partition(": ") for text in texts)]
    assert list(kinds(result_of(undetermined=tuple(items)))) == [
        "undetermined: never-reached: a",
        "undetermined: never-reached: b",
        "undetermined: worker-died",
        "undetermined: worker-died (2)",
    ]


def test_junit_has_times_of_few_digits() -> None:
    xml = junit_report(msgspec.structs.replace(result_of(), seconds=1.0 / 3), STANDINGS).decode()
    assert set(re.findall(r' time="([^"]*)"', xml)) == {"0.333", "0.0"}


# ---- SARIF -----------------------------------------------------------------------------------------------------------


class Strict(msgspec.Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """The part of SARIF 2.1.0 that is written, as the standard's schema has it: nothing else may be there."""


class Text(Strict):
    text: str


class ArtifactLocation(Strict):
    uri: str
    uri_base_id: str


class Region(Strict):
    start_line: int


class PhysicalLocation(Strict):
    artifact_location: ArtifactLocation
    region: Region


class LogicalLocation(Strict):
    name: str
    kind: str


class Location(Strict):
    physical_location: PhysicalLocation
    logical_locations: list[LogicalLocation] = []


class Suppression(Strict):
    kind: Literal["inSource", "external"]
    status: Literal["accepted", "underReview", "rejected"]
    justification: str


Level = Literal["none", "note", "warning", "error"]


class Result(Strict):
    rule_id: str
    rule_index: int
    level: Level
    message: Text
    locations: list[Location]
    partial_fingerprints: dict[str, str]
    properties: dict[str, Any]
    suppressions: list[Suppression] = []


class Configuration(Strict):
    level: Level


class Rule(Strict):
    id: str
    short_description: Text
    full_description: Text
    default_configuration: Configuration
    properties: dict[str, Any]


class Driver(Strict):
    name: str
    version: str
    rules: list[Rule]


class Tool(Strict):
    driver: Driver


class Descriptor(Strict):
    id: str


class Notification(Strict):
    level: Level
    descriptor: Descriptor
    message: Text


class Invocation(Strict):
    execution_successful: bool
    tool_execution_notifications: list[Notification]
    properties: dict[str, Any]


class Base(Strict):
    description: Text


class SarifRun(Strict):
    tool: Tool
    original_uri_base_ids: dict[str, Base]
    invocations: list[Invocation]
    column_kind: Literal["utf16CodeUnits", "unicodeCodePoints"]
    results: list[Result]


class Sarif(Strict):
    schema: str = msgspec.field(name="$schema")
    version: Literal["2.1.0"]
    runs: list[SarifRun]


def sarif(result: CampaignResult, places: dict[str, Place | None]) -> SarifRun:
    """The one run of a log that is as the standard has it, and that a server which shows code can use."""
    text = json_text(sarif_report(result, STANDINGS, places))
    (one,) = msgspec.json.decode(text, type=Sarif).runs
    rules = [rule.id for rule in one.tool.driver.rules]
    assert rules == [invariant.id for invariant in all_invariants()]
    for found in one.results:
        assert rules[found.rule_index] == found.rule_id
        (location,) = found.locations
        assert location.physical_location.artifact_location.uri_base_id in one.original_uri_base_ids
        assert location.physical_location.region.start_line >= 1
    return one


def test_sarif() -> None:
    places = {"new one": Place("vllm/v1/core/x.py", 12, "f"), "known one": None}
    one = sarif(result_of(NEW, OLD, undetermined=(LOST,)), places)
    new, old = one.results
    assert (new.rule_id, new.level, new.suppressions) == ("system.exception", "error", [])
    assert (old.rule_id, old.level) == ("hits.skip", "warning")
    assert new.partial_fingerprints == {"kvcheckSignature/v1": "new one"}
    where = new.locations[0]
    assert (where.physical_location.artifact_location.uri, where.physical_location.region.start_line) == (
        "vllm/v1/core/x.py",
        12,
    )
    assert [named.name for named in where.logical_locations] == ["f"]
    assert old.locations[0].physical_location.artifact_location.uri == SOMEWHERE
    assert [(s.kind, s.justification) for s in old.suppressions] == [("external", "why, #7, excused until 2026-03-31")]
    (invocation,) = one.invocations
    assert not invocation.execution_successful
    assert [told.descriptor.id for told in invocation.tool_execution_notifications] == ["worker-died"]
    assert sarif(result_of(NEW, OLD), places).invocations[0].execution_successful


@pytest.mark.parametrize(
    ("spec", "start"),
    [
        ("path:.", ""),
        ("path:server", "server/"),
        ("path:my vllm#1/\u00e4", "my%20vllm%231/%C3%A4/"),
        ("path:/elsewhere", ""),
    ],
)
def test_sarif_points_to_the_checkout_from_here(
    spec: str, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (found,) = sarif(result_of(NEW, spec=spec), {"new one": Place("vllm/a.py", 3, "f")}).results
    assert found.locations[0].physical_location.artifact_location.uri == f"{start}vllm/a.py"


def test_a_place_that_is_not_known_in_time_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(afterwards, "MOST_SECONDS", 1.0)
    stuck = msgspec.structs.replace(NEW, run=run_of("stuck"))
    result = msgspec.structs.replace(
        result_of(stuck, spec="toy"), plan=Plan(spec="toy", seed=5, out=Path("out"), loader=LOADER)
    )
    assert afterwards.places(result) == {}


# ---- JSON and HTML ---------------------------------------------------------------------------------------------------


def test_a_run_that_could_not_be_written_is_not_to_be_replayed() -> None:
    (found,) = campaign_report(result_of(NEW))["violations"]
    assert found["reproduce"] == "its run could not be written"


def test_a_page_tells_known_failures_from_others() -> None:
    back = Standing(msgspec.structs.replace(KNOWN, signature="fixed|one"), State.FIXED, 3)
    page = campaign_page(result_of(NEW, OLD), [], {}, [*STANDINGS, back], "b.json")
    whole = " ".join(page.split())
    new, old = whole.split("known one</b>")[0], whole.split("known one</b>", 1)[1]
    excused = "known, and excused: it does not make the verdict violated (why, #7, excused until 2026-03-31)"
    assert excused not in new
    assert excused in old
    assert "as b.json names them" in whole
    assert "not seen in 3 clean campaigns: take it out of b.json" in whole
    assert "Replayed first: 1 gone." in whole
    assert "gone|one" in whole
    alone = campaign_page(msgspec.structs.replace(result_of(NEW), earlier=()), [], {})
    assert "Known failures" not in alone
    assert "earlier campaigns" not in alone


# ---- Markdown --------------------------------------------------------------------------------------------------------


def test_a_summary() -> None:
    back = Standing(msgspec.structs.replace(KNOWN, signature="fixed|one"), State.FIXED, 3)
    text = summary_report(result_of(NEW, OLD, undetermined=(LOST,)), [*STANDINGS, back], "b.json")
    lines = text.splitlines()
    assert lines[0] == "### kvcheck fuzz: violated"
    assert "| `new one` | crash | 3 | 4 |  |" in lines
    assert "| `known one` | lost reuse | 3 | 4 | known |" in lines
    assert "- fixed: `fixed/one`: not seen in 3 clean campaigns: take it out of b.json" in lines
    assert "- gone: `gone/one`" in lines
    assert any(line.startswith("- `worker-died`: a\\|b \\`c\\` \\<d\\>") for line in lines)
    assert "<summary><code>new one</code></summary>" in lines
    assert text.count("<details>") == text.count("</details>") == 1
    assert "Undetermined" not in summary_report(result_of(), [], "b.json")


@pytest.mark.parametrize(
    ("state", "known", "told"),
    [
        ("confirmed", False, ""),
        ("shown", False, ", no time to shrink it further"),
        ("shown", True, ""),
        ("shrinking", False, ", no time to shrink and replay it"),
    ],
)
def test_what_there_was_no_time_for_is_told(state: Any, known: bool, told: str) -> None:
    one = msgspec.structs.replace(NEW, state=state, known=known)
    assert account_of(one, "toy").remark == f"4 times, first after 1.0 s{told}"


def test_an_exception_without_a_message_ends_with_its_place() -> None:
    failure = Failure(type="AssertionError", function="f", file="core/pool.py", line=12, message="")
    assert str(failure) == "AssertionError in f (core/pool.py:12)"
    assert str(msgspec.structs.replace(failure, message="why")) == "AssertionError in f (core/pool.py:12): why"


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ((1,), "1 token (1)"),
        ((1, 2, 3), "3 tokens (1 2 3)"),
        (tuple(range(10, 58)), f"48 tokens ({' '.join(map(str, range(10, 58)))})"),
        (tuple(range(100)), f"100 tokens ({' '.join(map(str, range(48)))} ...)"),
        ((2_000_000_001,) * 40, f"40 tokens ({' '.join(['2000000001'] * 13)} ...)"),
        ((), "0 tokens ()"),
    ],
)
def test_a_long_prompt_and_one_of_long_numbers_are_shown_in_part(prompt: tuple[int, ...], told: str) -> None:
    assert action_text(Arrive(label="a", prompt=prompt, max_tokens=2)) == f"arrive a: {told}, at most 2 more"
