"""What exported files look like: from the model's recordings, so that no release is needed."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from kvcheck.engines.judging import judge_run
from kvcheck.export.code import WIDTH, Call, Name, code
from kvcheck.export.cutting import cut
from kvcheck.export.found import Found
from kvcheck.export.pytest_test import pytest_test
from kvcheck.export.vllm_test import vllm_test
from kvcheck.files import InputError, read_run
from kvcheck.model.actions import Arrive, Run, Schedule
from kvcheck.targets.reference.target import ReferenceTarget

ROOT = Path(__file__).parents[2]
TARGET = ReferenceTarget("model@0.28.0")
NAMES = [file.parent.name for file in sorted((ROOT / "counterexamples").glob("*/run.json"))]


REFUSED = {"given-up-counted-as-held"}


def found(name: str, target: ReferenceTarget = TARGET) -> Found | None:
    """A counterexample as the model of a release shows it; None if it does not."""
    result = judge_run(target, read_run(ROOT / "counterexamples" / name), record=True)
    return Found(result.trace, result.violations[0]) if result.trace and result.violations else None


def there(name: str) -> Found:
    one = found(name)
    assert one is not None
    return one


@pytest.mark.parametrize("name", NAMES)
def test_a_test_of_the_server_s_own_imports_vllm_and_pytest_alone(name: str) -> None:
    one = found(name)
    if one is None or name in REFUSED:
        return  # not among the faults of this model, or seen by something else first
    text = vllm_test(one, "it")
    tree = ast.parse(text)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imports}
    assert {str(module).split(".")[0] for module in modules} == {"pytest", "vllm"}
    assert max(map(len, text.splitlines())) <= WIDTH
    assert not re.search(r"[^\S\n]$", text, re.MULTILINE)
    assert "noqa" not in text


def test_enough_of_them_are_looked_at() -> None:
    assert sum(found(name) is not None for name in NAMES) > 30


def test_everything_that_a_test_names_is_there() -> None:
    for name in NAMES[::5]:
        one = found(name)
        if one is None or name in REFUSED:
            continue
        tree = ast.parse(vllm_test(one, "it"))
        defined = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        defined |= {alias.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for alias in n.names}
        called = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        own = {
            n.func.attr
            for n in ast.walk(tree)
            if isinstance(n, ast.Call)
            and isinstance(n.func, ast.Attribute)
            and isinstance(n.func.value, ast.Name)
            and n.func.value.id in ("self", "server")
        }
        builtin = set(dir(sys.modules["builtins"]))
        assert called - defined - builtin - {"make", "one"} == set(), name
        assert own <= defined, name


def test_actions_without_a_subject_are_left_out() -> None:
    run = read_run(ROOT / "counterexamples/window-drafter-lookup-assertion")
    longer = Run(layout=run.layout, actions=(*run.actions[:1], Arrive(label="a", prompt=(7, 7)), *run.actions[1:]))
    result = judge_run(ReferenceTarget("model@0.27.1"), longer, record=True)
    assert result.trace is not None
    text = vllm_test(Found(result.trace, result.violations[0]), "it")
    assert text.count("server.arrive(") == 1
    assert "[7, 7]" not in text


def test_what_is_not_used_is_left_out() -> None:
    text = vllm_test(there("mamba-external-estimate"), "it")
    assert "def transfer" not in text
    assert "WatchedServer" not in text
    assert "def matched" in text


def test_what_a_test_cannot_say_is_refused_in_one_line() -> None:
    one = there("given-up-counted-as-held")
    with pytest.raises(
        InputError, match=r"^estimate\.remaining sliding_window schedule: not exported: the numbers are"
    ):
        vllm_test(one, "it")


def test_a_run_of_the_cache_manager_alone_is_refused() -> None:
    one = there("eagle-window-run-too-short")
    one.trace = one.trace.__class__(
        Run(layout=one.layout, actions=(Schedule(),), level="manager"),
        one.trace.target,
        one.trace.promises,
        one.trace.observations,
    )
    with pytest.raises(InputError, match="without the server's scheduler"):
        vllm_test(one, "it")


def test_a_test_that_uses_kvcheck_fails_on_the_target_and_passes_on_a_sound_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = pytest_test(there("mamba-external-estimate"), "it")
    for spec, fails in (("", True), ("model@0.28.0", True), ("model", False)):
        if spec:
            monkeypatch.setenv("KVCHECK_TARGET", spec)
        names: dict[str, object] = {}
        exec(compile(text, "test_it.py", "exec"), names)
        test = names["test_it"]
        assert callable(test)
        if fails:
            with pytest.raises(AssertionError):
                test()
        else:
            test()


# ---- code ------------------------------------------------------------------------------------------------------------


def test_code_is_broken_at_the_width_and_means_the_same() -> None:
    value = {"a": list(range(60)), "b": Call("dict", [1, 2], x=Call("str", "y" * 40), z=Name("None")), 'c"\n': None}
    text = code(value, 4, "v = ")
    assert max(map(len, text.splitlines())) <= WIDTH
    names: dict[str, object] = {}
    flat = code({"a": list(range(60)), 'c"\n': None}, 60, "v = ")
    exec(flat, names)
    assert names["v"] == {"a": list(range(60)), 'c"\n': None}
    ast.parse(text)


def test_only_what_is_named_is_cut() -> None:
    text, imports = cut("block_hasher(config, 2)")
    assert [line for line in text.splitlines() if line.startswith("def ")] == [
        "def hash_lookahead(config):",
        "def block_hasher(config, hash_block_size):",
    ]
    assert "class " not in text
    assert imports == [
        ("vllm.utils.hashing", "sha256"),
        ("vllm.v1.core.kv_cache_utils", "get_request_block_hasher"),
    ]
