"""The import hook of light loading: which modules run from the release, which become stand-ins, which do not exist."""

# ruff: noqa: ARG002 - these are other people's signatures

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any, Literal

from kvcheck.targets.vllm.given import GIVEN
from kvcheck.targets.vllm.standins import LEDGER, StandIn, StandInUsed

REAL_MODULES = frozenset({
    "vllm.envs", "vllm.exceptions", "vllm.tasks", "vllm.sampling_params", "vllm.pooling_params", "vllm.outputs",
    "vllm.logprobs", "vllm.lora.request", "vllm.utils", "vllm.utils.math_utils", "vllm.utils.hashing",
    "vllm.utils.func_utils", "vllm.v1.core", "vllm.v1.kv_cache_interface", "vllm.v1.kv_cache_layout",
    "vllm.v1.kv_cache_spec_registry", "vllm.v1.request", "vllm.v1.outputs", "vllm.v1.engine", "vllm.v1.utils",
    "vllm.v1.kv_hints", "vllm.v1.metrics.stats", "vllm.v1.metrics.cache_hit_source", "vllm.v1.metrics.utils",
    "vllm.v1.spec_decode.metrics", "vllm.v1.spec_decode.dynamic.utils", "vllm.v1.structured_output.request",
    "vllm.v1.structured_output.utils", "vllm.v1.structured_output.backend_types", "vllm.v1.hisparse.block_pool",
    "vllm.multimodal.utils", "vllm.distributed.kv_events", "vllm.distributed.kv_transfer.kv_connector.base",
    "vllm.distributed.kv_transfer.kv_connector.factory", "vllm.distributed.kv_transfer.kv_connector.v1",
    "vllm.distributed.kv_transfer.kv_connector.v1.base", "vllm.distributed.kv_transfer.kv_connector.v1.metrics",
    "vllm.distributed.ec_transfer.ec_connector.base", "vllm.distributed.ec_transfer.ec_connector.factory",
    "vllm.distributed.ec_transfer.ec_connector.metrics", "vllm.distributed.aux_output_connector.connector",
})  # fmt: skip
"""Modules that are executed; all others are stand-ins, or shells of packages."""
REAL_PACKAGES = ("vllm.v1.core.", "vllm.v1.kv_hints.")
"""Everything in these packages is real."""

REAL_LIBRARIES = frozenset({"msgspec", "numpy", "cbor2", "typing_extensions"})
"""Libraries that vLLM code gets for real when they are installed."""
OPTIONAL_LIBRARIES = frozenset({"xxhash"})
"""Libraries whose absence vLLM handles itself: it gets the ImportError."""


def runs_for_real(module: str) -> bool:
    """Whether light loading executes this module from the release's own source."""
    return module in REAL_MODULES or module.startswith(REAL_PACKAGES)


class Tree:
    """Which modules a release has: found on disk, or in the index of a cache entry that keeps only some of them."""

    def __init__(self, root: Path, index: Sequence[str] | None = None) -> None:
        """`index`: paths of all source files relative to `root`, such as vllm/v1/request.py; None: look on disk."""
        self.root = root
        self._modules: set[str] | None = None
        self._packages: set[str] = set()
        if index is not None:
            self._read_index(index)

    def _read_index(self, index: Sequence[str]) -> None:
        self._modules = {path.removesuffix(".py") for path in index}
        for path in index:
            folder = path.rpartition("/")[0]
            while folder and folder not in self._packages:
                self._packages.add(folder)
                folder = folder.rpartition("/")[0]

    def kind(self, module: str) -> Literal["module", "package"] | None:
        """What the release has under a dotted name, None for nothing."""
        path = module.replace(".", "/")
        if self._modules is None:
            if (self.root / path).is_dir():
                return "package"
            return "module" if (self.root / f"{path}.py").is_file() else None
        if path in self._packages:
            return "package"
        return "module" if path in self._modules else None

    def source(self, module: str) -> Path | None:
        """The file that a module or package runs from, None if it has none."""
        path = self.root.joinpath(*module.split("."))
        kind = self.kind(module)
        file = path / "__init__.py" if kind == "package" else path.with_name(path.name + ".py")
        return file if kind is not None and file.is_file() else None


class ReplacedModule(types.ModuleType):
    """A module whose every name is a stand-in, or the shell of a package whose body is not run."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        full_name = f"{self.__name__}.{name}"
        finder = active_finder()
        if finder is not None and full_name.startswith("vllm.") and finder.tree.kind(full_name) is not None:
            return importlib.import_module(full_name)  # `from vllm import envs`: a submodule, not a name
        if not LEDGER.importing:
            LEDGER.reads[full_name] += 1
        return _stand_ins.setdefault(full_name, StandIn(full_name))


_stand_ins: dict[str, StandIn] = {}
"""One stand-in a name, so that identity between modules is kept."""


class _RealLoader(SourceFileLoader):
    """Runs a module of the release, and marks import time while it does."""

    def exec_module(self, module: types.ModuleType) -> None:
        LEDGER.loaded.add(module.__name__)
        LEDGER.depth += 1
        try:
            super().exec_module(module)
        finally:
            LEDGER.depth -= 1
            if not LEDGER.importing:
                _forget_replaced_libraries()


def _forget_replaced_libraries() -> None:
    """Take stand-ins for libraries out of sys.modules, so that nobody but vLLM's code ever meets them."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, ReplacedModule) and name.partition(".")[0] != "vllm":
            del sys.modules[name]


class _ReplacingLoader(Loader):
    """Makes a ReplacedModule, with the names that have a value."""

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return ReplacedModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        LEDGER.stood.add(module.__name__)
        for name, value in GIVEN.get(module.__name__, {}).items():
            setattr(module, name, value)


class Finder(MetaPathFinder):
    """Answers for vllm's modules always, and for libraries only when vllm's own code imports them."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        library = fullname.partition(".")[0]
        if library == "vllm":
            return self._vllm_spec(fullname)
        if library in sys.stdlib_module_names or library in OPTIONAL_LIBRARIES or not _imported_by_vllm():
            return None
        if not _is_replaced(library, fullname):
            return None
        if not LEDGER.importing:
            raise StandInUsed(f"{fullname} imported by a function of vLLM")
        return _replaced_spec(fullname, [])

    def _vllm_spec(self, name: str) -> ModuleSpec | None:
        kind = self.tree.kind(name)
        if kind is None:
            return None  # a module that this release does not have: ImportError as usual
        folder = [str(self.tree.root.joinpath(*name.split(".")))] if kind == "package" else None
        source = self.tree.source(name) if runs_for_real(name) else None
        if source is None:
            return _replaced_spec(name, folder)
        loader = _RealLoader(name, str(source))
        return importlib.util.spec_from_file_location(name, source, loader=loader, submodule_search_locations=folder)


def _is_replaced(library: str, fullname: str) -> bool:
    """Whether vLLM's code gets a stand-in for this library (or for a module of it)."""
    if fullname != library:
        return isinstance(sys.modules.get(library), ReplacedModule)
    return library not in REAL_LIBRARIES or PathFinder.find_spec(library) is None


def _imported_by_vllm() -> bool:
    """Whether the import statement being executed is in vLLM's code."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and ("importlib" in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "vllm"


def _replaced_spec(name: str, folder: list[str] | None) -> ModuleSpec:
    spec = ModuleSpec(name, _ReplacingLoader())
    spec.submodule_search_locations = folder
    return spec


def active_finder() -> Finder | None:
    """The import hook of this process, if light loading is on."""
    for finder in sys.meta_path:
        if isinstance(finder, Finder):
            return finder
    return None
