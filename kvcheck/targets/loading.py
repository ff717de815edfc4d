"""From what the user wrote (`model`, `vllm==0.28.0`, `path:DIR`, ...) to a target."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvcheck.model.observation import TargetInfo
from kvcheck.targets.base import Target
from kvcheck.targets.errors import TargetError
from kvcheck.targets.vllm.release import Release, resolve
from kvcheck.targets.vllm.target import VllmTarget

DEFAULT_TARGET = "vllm==0.28.0"
FORMS = "vllm==X.Y.Z, vllm, path:DIR, model, model+FAULT or model@X.Y.Z"

_MODEL = re.compile(r"model(@(?P<release>\d+\.\d+\.\d+))?(?P<faults>(\+[A-Za-z0-9_.-]+)*)")


@dataclass(frozen=True)
class ModelSpec:
    """The reference model: with these faults on, and with all known ones of a release, if one is given."""

    spec: str
    faults: tuple[str, ...]
    release: str | None


def parse(spec: str) -> ModelSpec | Release:
    """What a specification names. A release is fetched if need be, but nothing of it is imported.

    Raises:
        TargetError: it names nothing, or what it names cannot be had.
    """
    text = spec.strip()
    if model := _MODEL.fullmatch(text):
        faults = tuple(name for name in model["faults"].split("+") if name)
        return ModelSpec(text, faults, model["release"])
    if text == "vllm" or text.startswith(("vllm==", "path:")):
        return resolve(text)
    raise TargetError(f"{spec!r} names no target: write {FORMS}")


def describe(spec: str) -> TargetInfo:
    """Which code a specification stands for, found without loading it."""
    found = parse(spec)
    if isinstance(found, ModelSpec):
        raise _no_model(found)
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
    found = parse(spec)
    if isinstance(found, ModelSpec):
        raise _no_model(found)
    return VllmTarget(found)


def _no_model(model: ModelSpec) -> TargetError:
    return TargetError(f"{model.spec}: the reference model is not there yet")
