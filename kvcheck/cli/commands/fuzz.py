"""`kvcheck fuzz`: random layouts and actions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from kvcheck.cli.ci import Ci, CiOptions, ci_options, shard_of
from kvcheck.cli.interrupt import answer_interruptions
from kvcheck.cli.options import (
    RANDOM,
    color_option,
    final_status,
    folder_for,
    jobs_option,
    json_option,
    layout_of,
    out_folder,
    out_option,
    screen_for,
    seconds_option,
    seed_option,
    target_option,
    write_report,
    written,
)
from kvcheck.engines.afterwards import recordings
from kvcheck.engines.buckets import Bucket
from kvcheck.engines.campaign import Campaign, CampaignResult, Plan, Progress
from kvcheck.engines.findings import ACCOUNT_FILE
from kvcheck.files import InputError, OutputError, require_apart, require_writable, write_text
from kvcheck.model.actions import Level
from kvcheck.model.observation import TargetInfo
from kvcheck.report.account import account_text, show_account
from kvcheck.report.campaign_json import campaign_report
from kvcheck.report.console import ProgressView, Screen
from kvcheck.report.describe import counted
from kvcheck.report.history import History
from kvcheck.report.info import info_text
from kvcheck.report.pages.campaign import write_campaign_pages
from kvcheck.report.pages.render import require_extra
from kvcheck.report.verdict import account_of, show_verdict
from kvcheck.targets.loading import DEFAULT_TARGET, describe
from kvcheck.targets.reference.target import is_model
from kvcheck.targets.vllm.manager_session import refusal

DEFAULT_SECONDS = 60.0
MOST_ACCOUNTS = 10
SEARCHERS = {
    "scheduler": "kvcheck.engines.worker_child:search",
    "manager": "kvcheck.engines.worker_child:search_manager",
}


@click.command()
@target_option(DEFAULT_TARGET)
@click.option("--layout", metavar="NAME|FILE|random", default=RANDOM, show_default=True, help="Layout of the server.")
@seconds_option("Search for so long; shrinking may add half of it.  [default: 60, no limit with --runs or --actions]")
@click.option("--runs", type=click.IntRange(min=1), help="Stop after so many runs, those of all shards together.")
@click.option("--actions", type=click.IntRange(min=1), help="Stop after so many actions, in each shard.")
@seed_option
@click.option("--shard", metavar="I/N", callback=shard_of, help="Make the I-th of N parts of the campaign's runs.")
@jobs_option
@click.option(
    "--level",
    type=click.Choice(list(SEARCHERS)),
    default="scheduler",
    show_default=True,
    help="Drive the whole scheduler, or only the cache manager.",
)
@out_option
@click.option(
    "--html",
    "html_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write a page of the campaign, and beside it pages of the runs that it found.",
)
@ci_options
@json_option
@color_option
def command(
    target: str,
    layout: str,
    seconds: float | None,
    runs: int | None,
    actions: int | None,
    seed: int,
    shard: tuple[int, int],
    jobs: int,
    level: Level,
    out: str | None,
    html_file: Path | None,
    ci: CiOptions,
    json_file: str | None,
    no_color: bool,
) -> int:
    """Drive a target with random runs, and shrink what breaks an invariant.

    What earlier campaigns like this one have found is replayed first, for a quarter of the time at most.
    """
    screen = screen_for(json_file, no_color, Path(layout), ci.baseline)
    if html_file is not None:
        require_extra()
        require_writable(html_file, Path(layout))
    require_apart(json_file, html_file, ci.junit, ci.sarif, ci.summary, ci.baseline)
    if runs is not None and runs < shard[0]:
        raise InputError(
            f"--shard {shard[0]}/{shard[1]} has no part of --runs {runs}, which are those of all shards together"
        )
    job = Ci(ci, out_folder(out))
    info = describe(target)
    chosen = layout_of(layout, info.version)
    if level == "manager" and is_model(target):
        raise InputError("the model is driven at scheduler level only: name a release with --target")
    if level == "manager" and chosen is not None and (why := refusal(chosen)):
        raise InputError(f"{layout}: {why}")
    kind = [text for text, plain in ((layout, RANDOM), (level, "scheduler")) if text != plain]
    kind += [f"shard {shard[0]} of {shard[1]}"] if shard[1] > 1 else []
    folder = folder_for(out, target, seed, *kind)
    plan = Plan(
        spec=target,
        seed=seed,
        out=folder,
        info=info,
        layout=chosen,
        seconds=DEFAULT_SECONDS if (seconds, runs, actions) == (None, None, None) else seconds,
        runs=runs,
        actions=actions,
        jobs=jobs,
        shard=shard,
        searcher=SEARCHERS[level],
    )
    plan = job.prepared(screen, plan, layout, level)
    show_header(screen, plan, info, layout)
    history = History()
    result = work(screen, plan, history)
    report = campaign_report(result, job.conclude(result))
    whole = written(lambda: write_report(json_file, report)) & written(lambda: job.keep(result))
    show_accounts(screen, result)
    job.show(screen, result)
    show_verdict(screen, result)
    whole &= job.write(screen, result)
    if html_file is not None:
        whole &= written(
            lambda: write_campaign_pages(html_file, result, history.whole(), recordings(result), *job.standings)
        )
    return final_status(result.verdict, whole)


def show_header(screen: Screen, plan: Plan, info: TargetInfo, layout: str) -> None:
    """What is about to happen."""
    screen.line(f"target   {plan.spec}: {info_text(info)}")
    limits = [f"{plan.seconds:g} s"] if plan.seconds is not None else []
    shard, all_shards = "", ""
    if plan.shard[1] > 1:
        shard, all_shards = f", shard {plan.shard[0]} of {plan.shard[1]}", " in all shards"
    limits += [counted(plan.runs, "run") + all_shards] if plan.runs else []
    limits += [counted(plan.actions, "action")] if plan.actions else []
    screen.line(f"layout   {layout}")
    screen.line(f"seed     {plan.seed}{shard}, at most {' or '.join(limits)}, {counted(plan.jobs, 'worker')}")
    if plan.earlier:
        screen.line(f"earlier  {counted(len(plan.earlier), 'failure')}, replayed first")


def work(screen: Screen, plan: Plan, *watchers: Callable[[Progress], None]) -> CampaignResult:
    """The campaign, with its progress on the screen and told to these."""
    campaign = Campaign(plan)
    answer_interruptions(campaign, screen)
    with ProgressView(screen) as view:

        def tell(progress: Progress) -> None:
            view(progress)
            for watcher in watchers:
                watcher(progress)

        return campaign.run(tell)


def show_accounts(screen: Screen, result: CampaignResult) -> None:
    """The accounts of all failures, the worst in full; each is kept beside its run, and those of known ones too."""
    for bucket in result.buckets:
        keep_account(bucket, result.plan.spec)
    for number, bucket in enumerate(result.failures, 1):
        account = account_of(bucket, result.plan.spec)
        if number <= MOST_ACCOUNTS:
            show_account(screen, account, number)
        else:
            screen.line(f"[{number}] {bucket.signature} ({account.remark}): {account.reproduce}")


def keep_account(bucket: Bucket, spec: str) -> None:
    """The account as text, beside the run."""
    try:
        write_text(bucket.file.with_name(ACCOUNT_FILE), account_text(account_of(bucket, spec)))
    except OutputError:
        return  # the campaign has told already that nothing can be written here
