"""From what the user wrote (`model`, `vllm==0.28.0`, `vllm`, `path:DIR`) to a target."""

from __future__ import annotations

from pathlib import Path

from kvcheck.model.observation import TargetInfo
from kvcheck.targets.base import Target
from kvcheck.targets.reference.target import MODEL, ReferenceTarget, describe_model, is_model
from kvcheck.targets.vllm.planning import Planner
from kvcheck.targets.vllm.release import resolve
from kvcheck.targets.vllm.target import VllmTarget

DEFAULT_TARGET = MODEL


def describe(spec: str) -> TargetInfo:
    """Which code a specification stands for, found without loading it. A release is fetched if need be.

    Raises:
        TargetError: it names nothing, or what it names cannot be had.
    """
    if is_model(spec):
        return describe_model(spec)
    found = resolve(spec)
    return TargetInfo(
        spec=found.spec,
        version=found.version or "",
        origin=found.origin,
        digest=found.digest,
        mode=found.mode,
    )


def load_target(spec: str) -> Target:
    """The target, loaded into this process. One release a process.

    Raises:
        TargetError: it cannot be had.
    """
    return ReferenceTarget(spec) if is_model(spec) else VllmTarget(resolve(spec))


def load_planner(spec: str) -> Planner | None:
    """The release's own planning, loaded into this process; None for the model, which has none.

    Raises:
        TargetError: there is no such target.
    """
    return None if is_model(spec) else Planner(resolve(spec))


def is_driven(spec: str, function: str) -> bool:
    """Whether the target has a function of this name where a run can come to it; of the model nothing is asked, nor of
    what has no name, such as a lambda.

    Raises:
        TargetError: there is no such target.
    """
    if is_model(spec) or function.startswith("<"):
        return True
    package = resolve(spec).root / "vllm" / "v1"
    sources = [*package.glob("*.py"), *(package / "core").rglob("*.py")]
    return any(f"def {function}(" in _text(source) for source in sources)


def _text(source: Path) -> str:
    return source.read_text(encoding="utf-8", errors="replace")
