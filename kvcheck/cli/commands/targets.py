"""`kvcheck targets`: what can be checked."""

from __future__ import annotations

import click

from kvcheck.cli.options import json_option, screen_for, write_report
from kvcheck.cli.status import PASSED
from kvcheck.report.lists import show_table
from kvcheck.targets.errors import TargetError
from kvcheck.targets.loading import DEFAULT_TARGET, describe
from kvcheck.targets.vllm.fetch import cache_folder, read_entry
from kvcheck.targets.vllm.release import KNOWN_RELEASES


@click.command()
@json_option
def command(json_file: str | None) -> int:
    """List the releases that kvcheck is tested with, which of them are in the cache, and the installed vLLM."""
    screen = screen_for(json_file, no_color=True)
    releases = [_release(version) for version in KNOWN_RELEASES]
    installed = _installed()
    rows = [(str(one["target"]), "in the cache" if one["cached"] else "fetched when used") for one in releases]
    rows.append(("vllm", f"installed: {installed}" if installed else "not installed"))
    rows.append(("path:DIR", "a source tree that holds vllm/"))
    show_table(screen, rows)
    screen.line(f"cache: {cache_folder()}; default target of fuzz: {DEFAULT_TARGET}")
    report = {
        "version": 1,
        "targets": releases,
        "installed": installed or None,
        "default": DEFAULT_TARGET,
        "cache": str(cache_folder()),
    }
    write_report(json_file, report)
    return PASSED


def _release(version: str) -> dict[str, object]:
    folder = cache_folder() / "releases"
    return {
        "target": f"vllm=={version}",
        "version": version,
        "cached": read_entry(folder / version) is not None,
        "cached_full": read_entry(folder / f"{version}-full") is not None,
    }


def _installed() -> str:
    try:
        return describe("vllm").version or "version unknown"
    except TargetError:
        return ""
