"""The reference model: `model`, `model+FAULT+...`, `model@RELEASE+...`."""

from __future__ import annotations

from kvcheck.model.actions import Level
from kvcheck.model.faults import Faults, faults_on, of_release
from kvcheck.model.layout import Layout
from kvcheck.model.observation import TargetInfo
from kvcheck.targets.base import Session, UnsupportedLayout
from kvcheck.targets.errors import TargetError
from kvcheck.targets.reference.session import ReferenceSession

MODEL = "model"


def is_model(spec: str) -> bool:
    """Whether a specification names the model."""
    return spec == MODEL or spec.startswith((MODEL + "+", MODEL + "@"))


def _parts(spec: str) -> tuple[str | None, list[str]]:
    """The release whose mistakes are on, if any, and the faults that are named."""
    release, *names = spec.removeprefix(MODEL).split("+")
    return release.removeprefix("@") if release else None, names


def faults_of(spec: str) -> Faults:
    """The faults that a specification switches on.

    Raises:
        TargetError: one of them is not known.
    """
    release, names = _parts(spec)
    try:
        return faults_on([*(of_release(release) if release is not None else ()), *names])
    except ValueError as error:
        raise TargetError(f"{spec}: {error}") from error


def describe_model(spec: str) -> TargetInfo:
    """What a specification of the model stands for.

    Raises:
        TargetError: it names a fault or a release that is not known.
    """
    faults_of(spec)
    return TargetInfo(spec=spec, version=_parts(spec)[0] or "", origin="the reference model", mode=MODEL)


class ReferenceTarget:
    """The model with some faults."""

    def __init__(self, spec: str) -> None:
        self.info = describe_model(spec)
        self._faults = faults_of(spec)

    def supports(self, layout: Layout) -> str:
        """Why the model cannot express the layout; empty if it can."""
        if any(g.checkpoint_blocks for g in layout.groups):
            return "the model has no prefill checkpoints: name a release with --target"
        if layout.connector is not None and layout.connector.reports == "request":
            return "the model's connectors tell failed loads by block"
        return ""

    def start(self, layout: Layout, level: Level = "scheduler") -> Session:
        """A new server with this layout."""
        if why := self.supports(layout):
            raise UnsupportedLayout(why)
        if level == "manager":
            raise UnsupportedLayout("the model is driven at scheduler level")
        return ReferenceSession(layout, self._faults)
