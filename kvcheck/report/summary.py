"""A campaign in Markdown, such as a job of GitHub shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvcheck.engines.baseline import Standing, State
from kvcheck.engines.campaign import CampaignResult
from kvcheck.report.account import account_text
from kvcheck.report.info import info_text
from kvcheck.report.known import earlier_text, gone, standing_text
from kvcheck.report.markdown import MOST_ROWS, bullets, code, folded, plain, undetermined_list
from kvcheck.report.verdict import account_of, bound_text, meaning_text

MOST_ACCOUNTS = 10


def summary_report(result: CampaignResult, standings: Sequence[Standing], file: str) -> str:
    """The verdict, each violation in a row, the worst in full, and whatever else there is to say."""
    return "\n".join(_lines(result, standings, file)) + "\n"


def _lines(result: CampaignResult, standings: Sequence[Standing], file: str) -> Iterator[str]:
    plan = result.plan
    yield f"### kvcheck fuzz: {result.verdict}"
    yield ""
    yield f"{plain(meaning_text(result))} ({plain(bound_text(result))})"
    yield ""
    yield f"Target {code(plan.spec)}: {plain(info_text(result.info))}"
    yield from _violations(result)
    yield from _accounts(result)
    yield from undetermined_list(result.undetermined)
    told = [one for one in standings if one.state is not State.AWAY]
    lines = [f"{one.state}: {code(one.entry.signature)}: {plain(standing_text(one, file))}" for one in told]
    yield from bullets("Known failures", lines)
    if result.earlier:
        no_longer = [f"gone: {code(one.earlier.signature or 'any violation')}" for one in gone(result.earlier)]
        yield from bullets(f"Earlier failures: {earlier_text(result.earlier)}", no_longer, always=True)
    yield ""


def _violations(result: CampaignResult) -> Iterator[str]:
    if not result.buckets:
        return
    yield from ("", "| violation | severity | actions | times | |", "|---|---|---:|---:|---|")
    for bucket in result.buckets[:MOST_ROWS]:
        remark = "known" if bucket.known else "" if bucket.confirmed else "not replayed"
        cells = [
            code(bucket.signature),
            bucket.violation.severity,
            str(len(bucket.run.actions)),
            str(bucket.times),
            remark,
        ]
        yield f"| {' | '.join(cells)} |"
    if len(result.buckets) > MOST_ROWS:
        yield from ("", f"{len(result.buckets) - MOST_ROWS} more are in the other reports.")


def _accounts(result: CampaignResult) -> Iterator[str]:
    for bucket in result.failures[:MOST_ACCOUNTS]:
        text = account_text(account_of(bucket, result.plan.spec))
        yield from folded(bucket.signature, text.splitlines())
