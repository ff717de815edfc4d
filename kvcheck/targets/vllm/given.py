"""The few names with a value of their own under light loading: all that could be wrong in silence is in this file."""

# ruff: noqa: ARG002 - these are other people's signatures

from __future__ import annotations

import dataclasses
import logging
import types
import typing
from collections.abc import Callable
from typing import Any

from kvcheck.targets.vllm.standins import StandInUsed, Strict


class DType:
    """What the core needs of a torch data type: a name, a size, equality."""

    def __init__(self, name: str, itemsize: int) -> None:
        self.name = name
        self.itemsize = itemsize

    def __repr__(self) -> str:
        return f"torch.{self.name}"

    def __reduce__(self) -> tuple[type[DType], tuple[str, int]]:
        return DType, (self.name, self.itemsize)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DType) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


_SIZES = {
    "float64": 8, "float32": 4, "float16": 2, "half": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
DTYPES = {name: DType(name, size) for name, size in _SIZES.items()}


def _dtype_size(dtype: DType) -> int:
    return dtype.itemsize


def _init_logger(name: str) -> logging.Logger:
    """A plain logger below "vllm", with the extra methods of vLLM's own; "once" does not suppress repeats here."""
    logger = logging.getLogger(name)
    for level in ("debug", "info", "warning"):
        setattr(logger, f"{level}_once", _without_scope(getattr(logger, level)))
    return logger


def _without_scope(log: Callable[..., None]) -> Callable[..., None]:
    def log_once(message: str, *args: Any, **options: Any) -> None:
        options.pop("scope", None)
        log(message, *args, stacklevel=2, **options)

    return log_once


class _Platform(Strict):
    """What the core asks of the platform, on a plain GPU machine."""

    device_type = "cuda"

    def register_custom_kv_cache_specs(self, vllm_config: object) -> None:
        """A CUDA platform has none of its own."""

    def is_xpu(self) -> bool:
        return False


class _MultiModalRegistry(Strict):
    """A text model."""

    def supports_multimodal_inputs(self, model_config: object) -> bool:
        return False


class NoGrammar(Strict):
    """The structured-output manager of a run in which no request asks for structured output."""

    def __init__(self) -> None:
        super().__init__("StructuredOutputManager")

    def should_advance(self, request: Any, *args: Any, **kwargs: Any) -> bool:
        """Whether the request's grammar moves on: there is none."""
        self._refuse_structured(request)
        return False

    def accept_tokens(self, request: Any, new_token_ids: list[int]) -> bool:
        """Whether the grammar accepts the sampled tokens (0.30.0 and later)."""
        self._refuse_structured(request)
        return True

    def validate_tokens(self, request: Any, token_ids: list[int]) -> list[int]:
        """The drafts that the grammar lets through (0.30.0 and later): all."""
        self._refuse_structured(request)
        return token_ids

    @staticmethod
    def _refuse_structured(request: Any) -> None:
        if request.structured_output_request is not None:
            raise StandInUsed(f"request {request.request_id} wants structured output")


def _plain_dataclass(cls: type | None = None, **options: Any) -> Any:
    """pydantic's dataclass decorator without the validation."""
    options.pop("config", None)
    if cls is not None:
        return dataclasses.dataclass(cls, **options)
    return dataclasses.dataclass(**options)


def _type_var(name: str, *constraints: Any, **options: Any) -> Any:
    """typing.TypeVar that accepts the default which later Pythons know."""
    options.pop("default", None)
    return typing.TypeVar(name, *constraints, **options)


def _no_current_config() -> None:
    return None


GIVEN: dict[str, dict[str, Any]] = {
    "torch": {**DTYPES, "dtype": DType},
    "vllm.logger": {"init_logger": _init_logger},
    "vllm.platforms": {"current_platform": _Platform("vllm.platforms.current_platform")},
    "vllm.multimodal": {"MULTIMODAL_REGISTRY": _MultiModalRegistry("vllm.multimodal.MULTIMODAL_REGISTRY")},
    "vllm.utils.torch_utils": {"get_dtype_size": _dtype_size, "PIN_MEMORY": False},
    "vllm.v1.serial_utils": {
        "PydanticMsgspecMixin": types.new_class("PydanticMsgspecMixin"),
        "UtilityResult": types.new_class("UtilityResult"),
    },
    "vllm.config": {"get_current_vllm_config_or_none": _no_current_config},
    "pydantic.dataclasses": {"dataclass": _plain_dataclass},
    "typing_extensions": {**{name: getattr(typing, name) for name in typing.__all__}, "TypeVar": _type_var},
}
