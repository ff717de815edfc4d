"""A target in words."""

from __future__ import annotations

import re

from kvcheck.model.observation import TargetInfo
from kvcheck.targets.vllm.release import KNOWN_RELEASES


def info_text(info: TargetInfo) -> str:
    """What a target turned out to be."""
    if info.mode == "model":
        return info.origin
    version = f"vLLM {info.version or '(version unknown)'}{_newer(info.version)}"
    return ", ".join(filter(None, [version, info.origin, f"{info.mode} loading", f"sha256 {info.digest[:12]}"]))


def _newer(version: str) -> str:
    """A warning for a release that kvcheck was never tested with."""
    newest = KNOWN_RELEASES[-1]
    later = bool(version) and _numbers(version) > _numbers(newest)
    return f" (newer than {newest}, the last that kvcheck is tested with)" if later else ""


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:2]]
