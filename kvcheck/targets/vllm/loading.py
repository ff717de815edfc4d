"""Load a release in the mode that it was resolved for; what differs between the modes is behind `Runtime`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from kvcheck.targets.vllm import full, light
from kvcheck.targets.vllm.config import Settings, light_config
from kvcheck.targets.vllm.era import Era, era_of
from kvcheck.targets.vllm.given import DTYPES
from kvcheck.targets.vllm.release import Release


@dataclass(frozen=True)
class Runtime:
    """A release that this process has loaded: `import vllm....` gives its classes."""

    release: Release
    era: Era

    def config(self, settings: Settings) -> Any:
        """What its scheduler takes as vllm_config; a ValueError where the release refuses the settings."""
        if self.release.mode == "full":
            return full.full_config(settings)
        return light_config(settings, self.release.root, self.era)

    def dtype(self, name: str) -> Any:
        """The data type that its KV-cache specs take, such as "float32"."""
        if self.release.mode == "full":
            return getattr(importlib.import_module("torch"), name)
        return DTYPES[name]


def load(release: Release) -> Runtime:
    """Load a release into this process: one release, in one mode, a process."""
    if release.mode == "full":
        full.load(release)
    else:
        light.load(release)
    return Runtime(release, era_of(release.version))
