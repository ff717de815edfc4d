"""Light loading: stand-ins are loud, nobody else meets them, and the supported releases never touch one."""

from __future__ import annotations

import copy
import operator
import pickle
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Optional

import pytest
from releases import output_of, release, run_python, write_tree

from kvcheck.targets.errors import TargetError
from kvcheck.targets.vllm import full, light
from kvcheck.targets.vllm.finder import Tree
from kvcheck.targets.vllm.given import DTYPES, GIVEN, NoGrammar
from kvcheck.targets.vllm.release import KNOWN_RELEASES, resolve
from kvcheck.targets.vllm.standins import LEDGER, StandIn, StandInUsed, Strict

PROJECT = str(Path(__file__).parents[2])


@pytest.fixture
def name() -> Iterator[StandIn]:
    """A stand-in outside import time; what its alarms wrote is taken back."""
    alarms, reads = len(LEDGER.alarms), copy.copy(LEDGER.reads)
    yield StandIn("torch.thing")
    del LEDGER.alarms[alarms:]
    LEDGER.reads = reads


@pytest.fixture
def import_time() -> Iterator[None]:
    uses = copy.copy(LEDGER.at_import)
    LEDGER.depth += 1
    yield
    LEDGER.depth -= 1
    LEDGER.at_import = uses


def subclass(stand_in: Any) -> object:
    class Derived(stand_in): ...  # type: ignore[misc]

    return Derived


def enter(stand_in: Any) -> None:
    with stand_in:
        pass


def assign(stand_in: Any) -> None:
    stand_in.attribute = 1


LOUD: dict[str, Callable[[Any], object]] = {
    "called": lambda x: x(),
    "called with arguments": lambda x: x(1, key=2),
    "used as a decorator": lambda x: x(print.__class__),
    "tested for truth": bool,
    "negated": operator.not_,
    "compared with a value": lambda x: x == 1,
    "compared the other way": lambda x: operator.eq(1, x),
    "unequal": lambda x: x != 1,
    "less": lambda x: x < 1,
    "at most": lambda x: x <= 1,
    "greater": lambda x: x > 1,
    "at least": lambda x: x >= 1,
    "maximum": lambda x: max(x, 1),
    "counted in a list": [1, 2].count,
    "iterated": list,
    "unpacked": lambda x: [*x],
    "length": len,
    "indexed": lambda x: x[0],
    "contains": lambda x: 1 in x,
    "int": int,
    "float": float,
    "used as an index": lambda x: [1][x],
    "range": range,
    "added": lambda x: x + 1,
    "added to": lambda x: 1 + x,
    "subtracted": lambda x: 1 - x,
    "multiplied": lambda x: 2 * x,
    "divided": lambda x: x / 2,
    "floor-divided": lambda x: 7 // x,
    "modulo": lambda x: x % 2,
    "power": lambda x: x**2,
    "negative": operator.neg,
    "absolute": abs,
    "inverted": operator.invert,
    "shifted": lambda x: x << 1,
    "and": lambda x: x & 1,
    "matrix product": lambda x: x @ x,
    "with": enter,
    "attribute set": assign,
    "subclassed": subclass,
    "attribute called": lambda x: x.one.two(),
}


@pytest.mark.parametrize("use", LOUD.values(), ids=LOUD.keys())
def test_a_use_of_a_stand_in_is_loud_and_names_it_and_the_place(use: Callable[[Any], object], name: StandIn) -> None:
    with pytest.raises(StandInUsed, match=r"torch\.thing.* at .*test_light\.py:\d+: ") as caught:
        use(name)
    assert LEDGER.alarms[-1] == str(caught.value)


@pytest.mark.parametrize(
    "use", [use for label, use in LOUD.items() if label not in ("used as an index", "range", "maximum")]
)
@pytest.mark.usefixtures("import_time")
def test_at_import_time_the_same_uses_are_accepted_and_counted(use: Callable[[Any], object]) -> None:
    before = LEDGER.at_import.total()
    use(StandIn("torch.thing"))
    assert LEDGER.at_import.total() > before


def test_reading_and_isinstance_are_counted_not_loud(name: Any) -> None:
    assert repr(name.one) == "<stand-in torch.thing.one>"
    assert name.one is name.one
    assert not isinstance(1, name)
    assert LEDGER.reads["torch.thing.one"] == 3
    assert LEDGER.reads["isinstance(_, torch.thing)"] == 1


def test_a_stand_in_is_hashed_and_copied_as_itself(name: Any) -> None:
    assert {name: 1}[name] == 1
    assert copy.deepcopy([name])[0] is copy.copy(name) is name


@pytest.mark.usefixtures("import_time")
def test_types_are_built_from_stand_ins() -> None:
    tensor: Any = StandIn("torch.Tensor")
    assert Optional[tensor] is not None  # noqa: UP045 - the old form is what is tested
    assert list[tensor] is not None
    assert Callable[[tensor], tensor] is not None
    union = tensor | int | None
    assert isinstance(3, union)
    assert not isinstance("text", union)

    class Module(tensor, flavour="sweet"): ...  # type: ignore[misc, call-arg]

    assert issubclass(Module, tensor)
    assert Module.__mro__[1].__name__ == "Tensor"


def test_an_object_whose_class_inherited_from_a_stand_in_cannot_be_made(name: Any) -> None:
    LEDGER.depth += 1
    derived: Any = subclass(name)
    LEDGER.depth -= 1
    with pytest.raises(StandInUsed, match="Derived created"):
        derived()


def test_a_strict_namespace_is_loud_about_what_it_lacks(name: Any) -> None:
    config: Any = Strict("config", present=1)
    assert config.present == 1
    reads: tuple[Callable[[], Any], ...] = (
        lambda: config.absent,
        lambda: getattr(config, "absent", 0),
        lambda: hasattr(config, "absent"),
    )
    for read in reads:
        with pytest.raises(StandInUsed, match=r"config\.absent read at .*test_light\.py"):
            read()
    config.absent = 2
    assert config.absent == 2
    assert copy.deepcopy(config).present == 1


def test_the_grammar_refuses_structured_output(name: Any) -> None:
    class Request:
        request_id = "r"
        structured_output_request: Any = None

    plain, structured = Request(), Request()
    structured.structured_output_request = object()
    grammar = NoGrammar()
    assert grammar.should_advance(plain) is False
    assert grammar.accept_tokens(plain, [1]) is True
    assert grammar.validate_tokens(plain, [1]) == [1]
    with pytest.raises(StandInUsed, match="wants structured output"):
        grammar.should_advance(structured)
    with pytest.raises(StandInUsed, match="grammar_init"):
        grammar.grammar_init  # noqa: B018


def test_data_types_are_equal_by_name_and_survive_pickling() -> None:
    float32 = DTYPES["float32"]
    assert pickle.loads(pickle.dumps(float32)) == float32
    assert hash(pickle.loads(pickle.dumps(float32))) == hash(float32)
    assert float32 != DTYPES["float16"]
    assert GIVEN["vllm.utils.torch_utils"]["get_dtype_size"](float32) == 4


# ---- which modules there are ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("indexed", [False, True])
def test_a_tree_tells_modules_from_packages_from_nothing(indexed: bool, tmp_path: Path) -> None:
    files = {"vllm/__init__.py": "", "vllm/envs.py": "", "vllm/v1/core/pool.py": ""}
    write_tree(tmp_path, files)
    tree = Tree(tmp_path, sorted(files) if indexed else None)
    kinds = {module: tree.kind(module) for module in ("vllm", "vllm.envs", "vllm.v1", "vllm.v1.core.pool", "vllm.no")}
    assert kinds == {
        "vllm": "package", "vllm.envs": "module", "vllm.v1": "package", "vllm.v1.core.pool": "module", "vllm.no": None,
    }  # fmt: skip
    assert tree.source("vllm") == tmp_path / "vllm/__init__.py"
    assert tree.source("vllm.envs") == tmp_path / "vllm/envs.py"
    assert tree.source("vllm.v1") is None
    assert tree.source("vllm.no") is None


# ---- the import hook, on a small tree of our own --------------------------------------------------------------------

TREE = {
    "vllm/__init__.py": "raise RuntimeError('the shell of a package is not run')",
    "vllm/logger.py": "",
    "vllm/worker.py": "raise RuntimeError('a stand-in is not run')",
    "vllm/v1/core/__init__.py": "",
    "vllm/v1/core/sched/scheduler.py": """
        import colorsys
        import json

        import torch
        import torch.nn as nn
        from imaginary_library import Thing, decorate
        from numpy.typing import NDArray

        from vllm import worker
        from vllm.logger import init_logger
        from vllm.worker import Worker

        logger = init_logger(__name__)


        @decorate
        class Scheduler(Thing):
            kind: "torch.dtype | None" = torch.float32

            def __init__(self) -> None: ...

            def work(self, tensor: torch.Tensor | None = None) -> None:
                Worker().execute(tensor)

            def late(self) -> None:
                import another_library

            def careful(self) -> None:
                try:
                    import another_library
                except ImportError:
                    pass


        class Layer(nn.Module):
            def __init__(self) -> None: ...
    """,
    "vllm/v1/core/old.py": "import vllm.v1.core.not_in_this_release",
}
LOAD = """
    import sys
    from kvcheck.targets.vllm import light
    from kvcheck.targets.vllm.release import resolve
    from kvcheck.targets.vllm.standins import LEDGER, StandInUsed
    light.load(resolve("path:" + sys.argv[1]))
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_tree(tmp_path, TREE)


def in_light(body: str, tree: Path) -> str:
    """What a fresh process prints that has loaded the tree."""
    return output_of(textwrap.dedent(LOAD) + textwrap.dedent(body), tree, PYTHONPATH=PROJECT)


def test_real_modules_run_and_all_others_are_replaced(tree: Path) -> None:
    body = """
        from vllm.v1.core.sched.scheduler import Scheduler, Layer
        import vllm.v1.core.sched.scheduler as module
        assert module.__file__.startswith(sys.argv[1]), module.__file__
        assert module.colorsys.rgb_to_hls(0, 0, 0) == (0, 0, 0)
        assert LEDGER.loaded == {"vllm.v1.core", "vllm.v1.core.sched.scheduler"}, LEDGER.loaded
        assert {"vllm", "vllm.worker", "vllm.logger", "torch", "torch.nn", "imaginary_library"} <= LEDGER.stood
        assert Scheduler.kind.itemsize == 4
        Layer(), Scheduler()
        print(sorted(set(sys.modules) & {"torch", "torch.nn", "imaginary_library"}))
    """
    assert in_light(body, tree).strip() == "[]"


def test_a_stand_in_used_at_run_time_names_itself_and_the_line(tree: Path) -> None:
    body = """
        from vllm.v1.core.sched.scheduler import Scheduler
        try:
            Scheduler().work()
        except StandInUsed as error:
            print(error)
    """
    lines = textwrap.dedent(TREE["vllm/v1/core/sched/scheduler.py"]).splitlines()
    line = lines.index("        Worker().execute(tensor)") + 1
    assert in_light(body, tree).startswith(
        f"vllm.worker.Worker called at {tree}/vllm/v1/core/sched/scheduler.py:{line}"
    )


@pytest.mark.parametrize("method", ["late", "careful"])
def test_a_library_imported_by_a_function_is_loud(method: str, tree: Path) -> None:
    body = f"""
        from vllm.v1.core.sched.scheduler import Scheduler
        try:
            Scheduler().{method}()
        except StandInUsed as error:
            print(error)
    """
    assert in_light(body, tree).startswith("another_library imported by a function of vLLM at ")


def test_a_module_that_the_release_lacks_is_an_import_error(tree: Path) -> None:
    body = """
        try:
            import vllm.v1.core.old
        except ModuleNotFoundError as error:
            print(error.name)
    """
    assert in_light(body, tree).strip() == "vllm.v1.core.not_in_this_release"


def test_our_own_imports_never_get_stand_ins(tree: Path) -> None:
    body = """
        import vllm.v1.core.sched.scheduler
        try:
            import imaginary_library
        except ModuleNotFoundError:
            print("absent")
        import numpy
        print(numpy.zeros(3).sum())
    """
    assert in_light(body, tree).split() == ["absent", "0.0"]


def test_loading_the_same_release_again_is_nothing_and_another_is_refused(tree: Path, tmp_path: Path) -> None:
    other = write_tree(tmp_path / "other", TREE)
    body = f"""
        from kvcheck.targets.errors import TargetError
        light.load(resolve("path:" + sys.argv[1]))
        hooks = [type(hook).__name__ for hook in sys.meta_path]
        assert hooks.count("Finder") == 1
        try:
            light.load(resolve("path:{other}"))
        except TargetError as error:
            print(error)
    """
    assert f"this process has already loaded {tree}" in in_light(body, tree)


def test_a_release_is_loaded_only_in_the_mode_it_was_resolved_for(tree: Path) -> None:
    with pytest.raises(TargetError, match="resolved for full loading"):
        light.load(resolve(f"path:{tree}", mode="full"))
    with pytest.raises(TargetError, match="resolved for light loading"):
        full.load(resolve(f"path:{tree}"))


def test_full_loading_after_light_loading_is_refused(tree: Path) -> None:
    body = """
        from kvcheck.targets.errors import TargetError
        from kvcheck.targets.vllm import loading
        try:
            loading.load(resolve("path:" + sys.argv[1], mode="full"))
        except TargetError as error:
            print(error)
    """
    assert "has loaded a release in light mode" in in_light(body, tree)


def test_full_loading_without_a_dependency_is_one_clear_line(tree: Path) -> None:
    write_tree(tree, {"vllm/__init__.py": "import imaginary_library"})
    code = """
        import sys
        from kvcheck.targets.errors import TargetError
        from kvcheck.targets.vllm import loading
        from kvcheck.targets.vllm.release import resolve
        try:
            loading.load(resolve("path:" + sys.argv[1], mode="full"))
        except TargetError as error:
            print(error)
    """
    printed = output_of(code, tree, PYTHONPATH=PROJECT)
    assert printed.endswith("full loading lacks a dependency of vLLM: No module named 'imaginary_library'\n")


@pytest.mark.parametrize("library", ["vllm", "torch", "pydantic", "transformers"])
def test_loading_after_the_real_libraries_is_refused(library: str, tree: Path) -> None:
    code = f"""
        import sys, types
        sys.modules[{library!r}] = types.ModuleType({library!r})
        from kvcheck.targets.errors import TargetError
        from kvcheck.targets.vllm import light
        from kvcheck.targets.vllm.release import resolve
        try:
            light.load(resolve("path:" + sys.argv[1]))
        except TargetError as error:
            print(error)
    """
    assert f"must come before the import of {library}" in output_of(code, tree, PYTHONPATH=PROJECT)


# ---- the supported releases -----------------------------------------------------------------------------------------

IMPORT_ALL = """
    import importlib
    import sys
    from kvcheck.targets.vllm import light
    from kvcheck.targets.vllm.release import resolve
    from kvcheck.targets.vllm.standins import LEDGER
    light.load(resolve(sys.argv[1]))
    for name in ("sched.async_scheduler", "sched.scheduler", "kv_cache_manager", "kv_cache_coordinator"):
        importlib.import_module("vllm.v1.core." + name)
    importlib.import_module("kvcheck.targets.vllm.scripted_connector")
"""


@pytest.mark.release
@pytest.mark.parametrize("version", KNOWN_RELEASES)
def test_importing_a_release_leaves_no_trace_outside_vllm(version: str) -> None:
    release(version)
    code = f"""
        {textwrap.indent(textwrap.dedent(IMPORT_ALL), " " * 8).strip()}
        replaced = [name for name, module in sys.modules.items() if type(module).__name__ == "ReplacedModule"]
        assert all(name.partition(".")[0] == "vllm" for name in replaced), replaced
        assert not LEDGER.alarms and not LEDGER.reads, (LEDGER.alarms, LEDGER.reads)
        print(len(LEDGER.loaded))
    """
    assert 40 <= int(output_of(code, f"vllm=={version}", PYTHONPATH=PROJECT)) <= 80


AUDIT = """
    import ast
    from pathlib import Path
    from kvcheck.targets.vllm.finder import ReplacedModule
    from kvcheck.targets.vllm.standins import StandIn

    def root_of(node):
        while isinstance(node, ast.Attribute):
            node = node.value
        return node.id if isinstance(node, ast.Name) else None

    def quiet_uses(tree, stand_ins):
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
                yield from (node for side in (node.left, *node.comparators) if root_of(side) in stand_ins)
            elif isinstance(node, ast.Call) and root_of(node.func) in ("getattr", "hasattr", "repr", "str", "id"):
                yield from (node for argument in node.args[:1] if root_of(argument) in stand_ins)

    count = 0
    for name in sorted(LEDGER.loaded):
        module = sys.modules[name]
        stand_ins = {key for key, value in vars(module).items() if isinstance(value, (StandIn, ReplacedModule))}
        count += len(stand_ins)
        source = Path(module.__file__).read_text(encoding="utf-8")
        for node in quiet_uses(ast.parse(source), stand_ins):
            print("QUIET", name, node.lineno, ast.unparse(node))
    assert count > 50, count
"""


@pytest.mark.release
@pytest.mark.parametrize("version", KNOWN_RELEASES)
def test_no_release_uses_a_stand_in_in_a_way_that_cannot_be_loud(version: str) -> None:
    """`is`, getattr, hasattr and the like, on a global that is bound to a stand-in."""
    release(version)
    code = textwrap.dedent(IMPORT_ALL) + textwrap.dedent(AUDIT)
    assert output_of(code, f"vllm=={version}", PYTHONPATH=PROJECT) == ""


COEXIST = """
    import sys

    import hypothesis.strategies as st
    import numpy as np
    import pytest
    from hypothesis import given, settings

    from kvcheck.targets.vllm import light
    from kvcheck.targets.vllm.release import resolve
    from kvcheck.targets.vllm.standins import LEDGER

    light.load(resolve(VERSION))

    import rich.console
    from vllm.v1.core.block_pool import BlockPool

    import hypothesis.extra.numpy
    import z3


    def test_numpy_is_the_real_one() -> None:
        assert np.arange(4).sum() == 6
        assert pytest.approx(0.3) == 0.1 + 0.2
        assert "torch" not in sys.modules


    def test_z3_is_the_real_one() -> None:
        x = z3.Int("x")
        solver = z3.Solver()
        solver.add(x > 3, x < 5)
        assert solver.check() == z3.sat


    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.integers(1, 4), max_size=5))
    def test_hypothesis_drives_the_real_pool(counts: list[int]) -> None:
        pool = BlockPool(32, True, 4)
        taken = [pool.get_new_blocks(count) for count in counts]
        assert pool.get_num_free_blocks() == 31 - sum(counts)
        for blocks in taken:
            pool.free_blocks(blocks)
        assert pool.get_num_free_blocks() == 31


    def test_nothing_used_a_stand_in() -> None:
        assert not LEDGER.alarms
        assert not LEDGER.reads
"""


@pytest.mark.release
@pytest.mark.parametrize("version", [KNOWN_RELEASES[0], "0.28.0", KNOWN_RELEASES[-1]])
def test_a_release_lives_beside_pytest_hypothesis_numpy_and_z3(version: str, tmp_path: Path) -> None:
    release(version)
    text = textwrap.dedent(COEXIST).replace("VERSION", repr(f"vllm=={version}"))
    (tmp_path / "test_together.py").write_text(text, encoding="utf-8")
    code = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    arguments = (tmp_path, "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path)
    result = run_python(code, *arguments, PYTHONPATH=PROJECT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 passed" in result.stdout
