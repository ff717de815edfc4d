"""Files that terms of a prover go through use nothing of Python's that a term gets wrong, some of it in silence."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcheck.model import laws
from kvcheck.prover import statements

STATEMENTS = sorted(Path(statements.__path__[0]).glob("[!_]*.py"))
ON_INTS = {
    "agreement": {"finders", "valid", "complete"},
    "capability": {"_group"},
    "pool": {"_writers", "_any_state", "possible"},
}
"""Functions that numbers of a prover do not go through: lookups run on ints, and tables of variables are made."""
CALLS = {"min", "max", "abs", "any", "all", "bool", "int", "divmod", "round", "sorted", "range"}
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def mistakes(function: ast.AST) -> Iterator[str]:
    """What a term would get wrong in a function."""
    for node in ast.walk(function):
        if isinstance(node, ast.BoolOp):
            yield "and, or"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield "not"
        elif isinstance(node, ast.Compare) and len(node.ops) > 1:
            yield "a chain"
        elif isinstance(node, ast.Compare) and not isinstance(node.ops[0], ORDERS):
            yield type(node.ops[0]).__name__
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Mod | ast.Div):
            yield "a division"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            if node.func.id != "range" or not all(map(_literal, node.args)):
                yield f"{node.func.id}()"
        elif isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert) and not _asks_a_fault(node.test):
            yield "a branch"


def _literal(node: ast.expr) -> bool:
    names = [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
    return all(name.isupper() for name in names)


def _asks_a_fault(test: ast.expr) -> bool:
    return isinstance(test, ast.Attribute) and isinstance(test.value, ast.Name) and test.value.id == "faults"


def functions(file: Path) -> dict[str, ast.AST]:
    """The functions of a file, without those that make runs of a counterexample."""
    tree = ast.parse(file.read_text())
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    return {
        name: node
        for name, node in found.items()
        if not name.endswith("_shown") and name not in ON_INTS.get(file.stem, ()) and name not in ("_window", "_shown")
    }


@pytest.mark.parametrize("file", [Path(laws.__file__), *STATEMENTS], ids=lambda file: file.stem)
def test_laws_and_statements_use_the_words_of_arith_only(file: Path) -> None:
    assert {name: found for name, node in functions(file).items() if (found := list(mistakes(node)))} == {}
    assert functions(file)


@pytest.mark.parametrize(
    "line",
    [
        "if x < y: pass",
        "a = 1 if x < y else 2",
        "while x < y: pass",
        "assert x < y",
        "a = x == y",
        "a = x != y",
        "a = x in [y]",
        "a = x not in [y]",
        "a = x is y",
        "a = x < y < z",
        "a = x < y and y < z",
        "a = not x < y",
        "a = x // y",
        "a = x % y",
        "a = x / y",
        "a = min(x, y)",
        "a = any([x < y])",
        "for i in range(x): pass",
    ],
)
def test_the_lint_finds_what_a_term_would_get_wrong(line: str) -> None:
    assert list(mistakes(ast.parse(f"def law(x, y, z, faults):\n    {line}")))


def test_the_lint_lets_faults_and_orders_pass() -> None:
    text = "def law(x, y, faults):\n    if faults.one:\n        return x < y\n    return [x + i for i in range(MOST)]"
    assert list(mistakes(ast.parse(text))) == []
