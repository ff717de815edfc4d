"""Light loading: the real scheduler and KV-cache core of a release, without torch and the rest of its dependencies.

    load(resolve("vllm==0.28.0"))
    from vllm.v1.core.sched.scheduler import Scheduler      # the real class, after a tenth of a second

The modules that `finder.runs_for_real` names are executed from the release's own source. Every other module of vLLM,
and every library that its code imports except a few, is replaced by stand-ins (`standins`) that are loud when used.
The names that have a value are in `given`; the configuration that the scheduler reads is built by `config`.
"""

from __future__ import annotations

import logging
import os
import sys

from kvcheck.targets.errors import TargetError
from kvcheck.targets.vllm.finder import Finder, Tree, active_finder
from kvcheck.targets.vllm.release import Release, source_index

_MUST_COME_LATER = ("vllm", "torch", "pydantic", "transformers")


def load(release: Release) -> None:
    """Make `import vllm....` in this process mean the light form of this release.

    Idempotent for the same release; one release a process. Must come before anything that imports the real torch,
    pydantic, transformers or vllm.
    """
    if release.mode != "light":
        raise TargetError(f"{release.spec}: it was resolved for {release.mode} loading, not for light")
    loaded = active_finder()
    if loaded is not None:
        if loaded.tree.root != release.root:
            raise TargetError(f"{release.spec}: this process has already loaded {loaded.tree.root}")
        return
    early = [name for name in _MUST_COME_LATER if name in sys.modules]
    if early:
        raise TargetError(f"{release.spec}: light loading must come before the import of {', '.join(early)}")
    os.environ.setdefault("PYTHONHASHSEED", "0")  # vLLM seeds its hash chain with it: the same keys in each process
    logging.getLogger("vllm").setLevel(logging.ERROR)
    sys.meta_path.insert(0, Finder(Tree(release.root, source_index(release.root))))
