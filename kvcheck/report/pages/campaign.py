"""The page of a campaign: what it found, what it came to, how it went; and a page of each run beside it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import kvcheck
from kvcheck.engines.baseline import Standing
from kvcheck.engines.buckets import Bucket
from kvcheck.engines.campaign import CampaignResult, Progress
from kvcheck.engines.findings import folder_name
from kvcheck.engines.judging import judge_trace
from kvcheck.files import InputError, write_text
from kvcheck.invariants.registry import MEANING, Severity
from kvcheck.invariants.witnesses import WITNESSES
from kvcheck.model.observation import Trace
from kvcheck.report.account import how_to_reproduce
from kvcheck.report.describe import layout_lines
from kvcheck.report.info import info_text
from kvcheck.report.known import earlier_text, known_text, standing_text
from kvcheck.report.pages.charts import line_chart, stairs
from kvcheck.report.pages.render import filled, is_ours
from kvcheck.report.pages.run import RunPage, run_page
from kvcheck.report.verdict import about_model, bound_text, meaning_text
from kvcheck.targets.reference.target import is_model


def write_campaign_pages(
    file: Path,
    result: CampaignResult,
    history: Sequence[Progress],
    traces: Mapping[str, Trace],
    standings: Sequence[Standing] = (),
    baseline: str = "",
) -> None:
    """The campaign's page, and in a folder beside it a page of each violation that was recorded (``traces``: by
    signature). ``standings``: what it says of known failures, which are in the file ``baseline``. Pages of another
    campaign in that folder go.

    Raises:
        OutputError: one of them cannot be written.
    """
    pages: dict[str, str] = {}
    folder = file.with_name(f"{file.stem}-runs")
    for bucket in result.buckets:
        if (trace := traces.get(bucket.signature)) is None:
            continue
        page = folder / f"{folder_name(bucket.signature)}.html"
        try:
            text = _page_of(bucket, trace, result, back=f"../{file.name}")
        except InputError:
            continue  # it is too much for a page
        write_text(page, text)
        pages[bucket.signature] = quote(f"{folder.name}/{page.name}") + f"#step={bucket.violation.index}"
    write_text(file, campaign_page(result, history, pages, standings, baseline))
    _remove_others(folder, set(pages))


def _remove_others(folder: Path, signatures: set[str]) -> None:
    kept = {f"{folder_name(signature)}.html" for signature in signatures}
    for page in folder.glob("*.html"):
        if page.name not in kept and is_ours(page):
            with contextlib.suppress(OSError):
                page.unlink()


def _page_of(bucket: Bucket, trace: Trace, result: CampaignResult, back: str) -> str:
    violations = judge_trace(trace).violations
    own = [violation for violation in violations if violation.signature == bucket.signature]
    others = [violation for violation in violations if violation not in own]
    return run_page(
        RunPage(
            run=trace.run,
            target=f"{result.plan.spec}: {info_text(result.info)}",
            verdict="violated" if own else "undetermined",
            violations=(*own, *others),
            reproduce=how_to_reproduce(bucket.file, result.plan.spec),
            trace=trace,
            why="" if own else f"{bucket.signature}: not seen when the run was replayed for this page",
            needs=bucket.needs,
            back=quote(back),
        )
    )


def campaign_page(
    result: CampaignResult,
    history: Sequence[Progress],
    pages: Mapping[str, str],
    standings: Sequence[Standing] = (),
    baseline: str = "",
) -> str:
    """A campaign as HTML. ``pages``: where the page of a violation's run is, by signature."""
    plan = result.plan
    excuses = {one.entry.signature: known_text(one.entry) for one in standings}
    return filled(
        "campaign.html",
        title=f"kvcheck: {plan.spec}, seed {plan.seed}: {result.verdict}",
        version=kvcheck.__version__,
        result=result,
        target=f"{plan.spec}: {info_text(result.info)}",
        meaning=meaning_text(result),
        bound=bound_text(result),
        remark=about_model(plan.spec) if is_model(plan.spec) else "",
        layout=["random"] if plan.layout is None else layout_lines(plan.layout),
        buckets=[_entry(bucket, plan.spec, pages, excuses) for bucket in result.buckets],
        known=[(one.state, one.entry.signature, standing_text(one, baseline)) for one in standings],
        baseline=baseline,
        earlier=earlier_text(result.earlier),
        witnesses=_bars(result.witnesses, {name: one.description for name, one in WITNESSES.items()}),
        kinds=_bars(result.actions_by_kind, {}),
        charts=_charts(history),
    )


def _entry(bucket: Bucket, spec: str, pages: Mapping[str, str], excuses: Mapping[str, str]) -> dict[str, Any]:
    return {
        "bucket": bucket,
        "meaning": MEANING[Severity(bucket.violation.severity)],
        "confirmed": bucket.confirmed,
        "reproduce": how_to_reproduce(bucket.file, spec),
        "page": pages.get(bucket.signature, ""),
        "excuse": excuses.get(bucket.signature, ""),
    }


def _bars(counts: dict[str, int], descriptions: dict[str, str]) -> list[dict[str, Any]]:
    """Counts with the length of their bars in percent, logarithmic: few differ from none, and many from few."""
    most = math.log1p(max(counts.values(), default=0)) or 1.0
    return [
        {
            "name": name,
            "count": count,
            "share": round(100 * math.log1p(count) / most, 1),
            "what": descriptions.get(name, ""),
        }
        for name, count in counts.items()
    ]


def _charts(history: Sequence[Progress]) -> dict[str, str]:
    """Charts by title, those left out that would show nothing."""
    found = [(point.seconds, float(len(point.buckets))) for point in history]
    charts = {
        "Runs": line_chart([(point.seconds, float(point.runs)) for point in history], "seconds", "runs"),
        "Situations reached": line_chart(
            stairs([(point.seconds, float(point.reached)) for point in history]), "seconds", "situations"
        ),
        "Different violations": line_chart(stairs(found), "seconds", "violations"),
    }
    return {title: chart for title, chart in charts.items() if chart}
