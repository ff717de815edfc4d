"""The methods of vLLM's own config classes that light loading runs from the release's source.

What a setting means (how many slots a drafter needs, how far it looks ahead, ...) changes from release to release. The
config classes themselves need pydantic, transformers and torch, but these methods are plain arithmetic on attributes.
So their text is taken from the release that is loaded and compiled against a strict namespace: whatever a newer
release reads in them that we do not provide rings the alarm instead of giving an old answer.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvcheck.targets.vllm.given import GIVEN
from kvcheck.targets.vllm.standins import StandInUsed, Strict

_ENGINE_FILE = "vllm/config/vllm.py"
_DRAFTER_FILE = "vllm/config/speculative.py"
_SCHEDULER_FILE = "vllm/config/scheduler.py"
CONFIG_FILES = frozenset({_ENGINE_FILE, _DRAFTER_FILE, _SCHEDULER_FILE})
"""Sources that light loading reads without importing them."""

_ENGINE_METHODS = (
    "num_speculative_tokens",
    "num_lookahead_tokens",
    "num_prefill_lookahead_tokens",
    "num_hash_lookahead_tokens",
    "max_concurrent_batches",
    "max_in_flight_tokens",
    "_set_max_num_scheduled_tokens",
    "validate_block_size",
)
_DRAFTER_METHODS = (
    "max_num_new_slots_for_drafting",
    "use_eagle",
    "use_dflash",
    "use_dspark",
    "uses_draft_model",
    "needs_eagle_block_drop",
    "use_eagle_block_drop",
    "use_multi_module_mtp",
)
_SCHEDULER_METHODS = ("verify_max_model_len",)


def engine_config_class(root: Path) -> type[Strict]:
    """A strict namespace with the borrowed methods of VllmConfig."""
    return _class_with_methods(root, _ENGINE_FILE, "VllmConfig", _ENGINE_METHODS)


def drafter_config_class(root: Path) -> type[Strict]:
    """A strict namespace with the borrowed methods of SpeculativeConfig."""
    return _class_with_methods(root, _DRAFTER_FILE, "SpeculativeConfig", _DRAFTER_METHODS)


def scheduler_config_class(root: Path) -> type[Strict]:
    """A strict namespace with the borrowed methods of SchedulerConfig."""
    return _class_with_methods(root, _SCHEDULER_FILE, "SchedulerConfig", _SCHEDULER_METHODS)


_classes: dict[tuple[Path, str], type[Strict]] = {}


def _class_with_methods(root: Path, file: str, class_name: str, wanted: tuple[str, ...]) -> type[Strict]:
    key = (root, class_name)
    if key not in _classes:
        try:
            source = (root / file).read_text(encoding="utf-8")
            methods = _run(_methods(source, class_name, wanted), str(root / file))
        except (OSError, SyntaxError, NameError) as error:
            raise StandInUsed(
                f"methods of {class_name} read", f"the release has them in another form: {error}"
            ) from error
        _classes[key] = type(class_name, (Strict,), methods)
    return _classes[key]


def _methods(source: str, class_name: str, wanted: tuple[str, ...]) -> str:
    """The definitions of these methods at the margin and on their own lines; one that the release lacks is left out."""
    start, end = _class_body(source, class_name)
    names = "|".join(wanted)
    definition = re.compile(
        rf"^(?:    @.*\n)*    def (?:{names})\((?:.*\n)(?:     .*\n|\s*\n|    \).*\n)*", re.MULTILINE
    )
    lines = [""] * source.count("\n")
    for found in definition.finditer(source, start, end):
        first = source.count("\n", 0, found.start())
        text = textwrap.dedent(found.group(0)).splitlines()
        lines[first : first + len(text)] = text
    return "\n".join(lines) + "\n"


def _class_body(source: str, name: str) -> tuple[int, int]:
    """Where the indented lines of a class begin and end."""
    found = re.search(rf"^class {name}\b.*?:\n((?:[ \t].*\n|\n)+)", source, re.MULTILINE)
    if found is None:
        raise StandInUsed(f"class {name} read", "the release has no such class any more")
    return found.span(1)


class _Derived:
    """A property that an assignment on the instance replaces, unlike the built-in one."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self._compute = compute

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else self._compute(instance)


def _run(definitions: str, file: str) -> dict[str, Any]:
    """Execute the definitions; their only global is a logger: any other that they read is a NameError."""
    names: dict[str, Any] = {"property": _Derived, "logger": GIVEN["vllm.logger"]["init_logger"]("vllm.config")}
    defined: dict[str, Any] = {}
    exec(compile(definitions, file, "exec"), names, defined)  # noqa: S102 - the release's code is what we run
    return defined
