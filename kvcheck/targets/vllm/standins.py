"""Stand-ins: names that vLLM's core imports but does not use, and the alarm that rings when it does use one.

While module bodies run (import time) a stand-in accepts what module bodies do with an imported name: annotate,
decorate, inherit, index, combine. Afterwards every use that could let it supply a value raises `StandInUsed` with the
name and the place: calling, truth, comparison, order, arithmetic, iteration, length, indexing, conversion, `with`,
setting an attribute, subclassing, and creating an object of a class that inherited from one. Three uses cannot be made
loud: `is`, passing one around, and `repr`; reading an attribute and `isinstance` are only counted. A static audit
(tests/unit/test_light.py) looks for the first in every release that is supported.
"""

from __future__ import annotations

import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self

_HERE = str(Path(__file__).parent)


class StandInUsed(RuntimeError):
    """A name that light loading does not provide was used while vLLM's code ran."""

    def __init__(self, what: str, why: str = "light loading does not provide it") -> None:
        super().__init__(f"{what} at {_caller()}: {why}")
        LEDGER.alarms.append(str(self))


@dataclass
class Ledger:
    """What light loading did and what happened to its stand-ins, in this process."""

    reads: Counter[str] = field(default_factory=Counter)
    """Attributes read and isinstance tests after import time: harmless alone, but worth a look."""
    at_import: Counter[tuple[str, str]] = field(default_factory=Counter)
    """What module bodies did with stand-ins: (name, use)."""
    alarms: list[str] = field(default_factory=list)
    """The text of every StandInUsed, because vLLM may catch one."""
    loaded: set[str] = field(default_factory=set)
    """Modules that ran from the release's own source."""
    stood: set[str] = field(default_factory=set)
    """Modules that were replaced."""
    depth: int = 0
    """How many module bodies are running; above zero it is import time."""

    @property
    def importing(self) -> bool:
        """Whether a module body is running."""
        return self.depth > 0


LEDGER = Ledger()


def _caller() -> str:
    """The file and line of the innermost frame outside this folder."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


class StandIn:
    """One name without a value: an instance, so that it fits any metaclass; as a base it adds an empty class."""

    _name: str
    _children: dict[str, Any]
    _members: tuple[Any, ...]
    _base: type | None

    def __init__(self, name: str, members: tuple[Any, ...] = ()) -> None:
        """`name` is dotted; `members` are the parts of a union (`A | B`) that contains stand-ins."""
        module, _, leaf = name.rpartition(".")
        self.__dict__.update(
            _name=name, _children={}, _members=members, _base=None,
            __name__=leaf, __qualname__=leaf, __module__=module,
        )  # fmt: skip

    def _use(self, what: str) -> None:
        """Count a use at import time; ring the alarm at any other."""
        if not LEDGER.importing:
            raise StandInUsed(f"{self._name} {what}", "it is a stand-in of light loading, not the real thing")
        LEDGER.at_import[self._name, what] += 1

    def __getattr__(self, name: str) -> Any:
        if _is_dunder(name):
            raise AttributeError(name)
        full_name = f"{self._name}.{name}"
        if not LEDGER.importing:
            LEDGER.reads[full_name] += 1
        return self._children.setdefault(name, StandIn(full_name))

    def __setattr__(self, name: str, value: Any) -> None:
        self._use(f"set .{name}")
        self._children[name] = value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and _can_be_decorated(args[0]):
            self._use("decorates " + getattr(args[0], "__qualname__", "?"))
            return args[0]
        self._use("called")
        return StandIn(f"{self._name}()")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        self._use("base class")
        if self._base is None:
            self.__dict__["_base"] = _empty_base(self._name)
        assert self._base is not None
        return (self._base,)

    def __instancecheck__(self, instance: Any) -> bool:
        self._count_check("isinstance")
        if any(isinstance(instance, member) for member in self._members if member is not None):
            return True
        return self._base is not None and isinstance(instance, self._base)

    def __subclasscheck__(self, subclass: type) -> bool:
        self._count_check("issubclass")
        return self._base is not None and issubclass(subclass, self._base)

    def _count_check(self, function: str) -> None:
        if not LEDGER.importing:
            LEDGER.reads[f"{function}(_, {self._name})"] += 1

    def __or__(self, other: Any) -> StandIn:
        return StandIn(f"({self._name} | ...)", (self, other))

    __ror__ = __or__

    def __getitem__(self, key: Any) -> StandIn:
        self._use("indexed")
        return self

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        if self is not other:
            self._use("compared")
        return self is other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        self._use("tested for truth")
        return False

    def __iter__(self) -> Iterator[Any]:
        self._use("iterated")
        return iter(())

    def __len__(self) -> int:
        self._use("asked for its length")
        return 0

    def __contains__(self, item: Any) -> bool:
        self._use("searched")
        return False

    def __int__(self) -> int:
        self._use("converted to a number")
        return 0

    __index__ = __int__

    def __float__(self) -> float:
        self._use("converted to a number")
        return 0.0

    def __enter__(self) -> Self:
        self._use("entered")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._use("left")

    def __copy__(self) -> StandIn:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> StandIn:
        return self

    def __repr__(self) -> str:
        return f"<stand-in {self._name}>"


def _can_be_decorated(value: Any) -> bool:
    return isinstance(value, (type, types.FunctionType, classmethod, staticmethod, property))


def _empty_base(name: str) -> type:
    """The class that a stand-in becomes when module code inherits from it: it can be derived, not instantiated."""
    module, _, leaf = name.rpartition(".")

    def refuse(self: object, *_: Any, **__: Any) -> NoReturn:
        raise StandInUsed(f"{type(self).__name__} created", f"its base {name} is a stand-in of light loading")

    def accept(_: type, **__: Any) -> None:
        """Class keywords of the real base mean nothing here."""

    return type(leaf, (), {"__module__": module, "__init__": refuse, "__init_subclass__": accept})


def _operator(name: str) -> Callable[..., Any]:
    """An arithmetic operator that only import time may use."""

    def operate(self: StandIn, *_: Any) -> StandIn:
        self._use(name)
        return self

    return operate


def _ordering(name: str) -> Callable[[StandIn, Any], bool]:
    """An order comparison that only import time may use."""

    def compare(self: StandIn, _: Any) -> bool:
        self._use(name)
        return False

    return compare


_ARITHMETIC = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul and rand xor rxor "
    "lshift rlshift rshift rrshift neg pos abs invert"
)
for _suffix in _ARITHMETIC.split():
    setattr(StandIn, f"__{_suffix}__", _operator(f"__{_suffix}__"))
for _suffix in ("lt", "le", "gt", "ge"):
    setattr(StandIn, f"__{_suffix}__", _ordering(f"__{_suffix}__"))


class Strict:
    """A namespace in which an attribute that is not there rings the alarm, also through getattr and hasattr."""

    def __init__(self, name: str, **values: Any) -> None:
        self.__dict__.update(values, _name=name)

    def __getattr__(self, name: str) -> Any:
        if _is_dunder(name):
            raise AttributeError(name)
        raise StandInUsed(f"{self.__dict__.get('_name', '?')}.{name} read")
