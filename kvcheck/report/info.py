"""A target in words."""

from __future__ import annotations

from kvcheck.model.observation import TargetInfo


def info_text(info: TargetInfo) -> str:
    """What a target turned out to be."""
    version = f"vLLM {info.version or '(version unknown)'}"
    return ", ".join(filter(None, [version, info.origin, f"{info.mode} loading", f"sha256 {info.digest[:12]}"]))
