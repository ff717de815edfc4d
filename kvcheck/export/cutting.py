"""Cuts from the pieces in `parts` what a test uses: definitions and methods that are named, and what those name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from importlib import resources

ORDER = ("server", "connector", "memory", "observed")
"""The files of `parts`, in the order in which a test has them."""

_Definition = ast.ClassDef | ast.FunctionDef


class _File:
    """One file of `parts`: its text, what it defines, and what it imports of vLLM."""

    def __init__(self, name: str) -> None:
        self._text = resources.files("kvcheck.export.parts").joinpath(f"{name}.py").read_text(encoding="utf-8")
        self._lines = self._text.splitlines()
        tree = ast.parse(self._text)
        self.definitions = [node for node in tree.body if isinstance(node, _Definition)]
        self.imports = [
            (node.module, alias.name)
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("vllm")
            for alias in node.names
        ]

    def text(self, first: int, last: int) -> str:
        """Lines, counted from 1, without what only a linter reads."""
        return "\n".join(re.sub(r"  # noqa.*", "", line) for line in self._lines[first - 1 : last])


def cut(used: str) -> tuple[str, list[tuple[str, str]]]:
    """The pieces that this code uses, as text, and the names that they import: (module, name)."""
    files = [_File(name) for name in ORDER]
    names, chosen = _names(ast.parse(used)), set[ast.AST]()
    while more := set(_wanted(files, names)) - chosen:
        chosen |= more
        for node in more:
            names |= _own_names(node)
    texts = [_text(file, node, chosen) for file in files for node in file.definitions if node in chosen]
    imports = sorted({pair for file in files for pair in file.imports if pair[1] in names})
    return "\n\n\n".join(texts), imports


def _wanted(files: Iterable[_File], names: set[str]) -> Iterator[ast.AST]:
    """Definitions, and methods of these, that somebody names."""
    for file in files:
        called_from_outside = {name for _, name in file.imports}
        for node in file.definitions:
            if node.name not in names:
                continue
            yield node
            if isinstance(node, ast.ClassDef):
                whole = bool(_names(*node.bases) & called_from_outside)
                yield from (one for one in _methods(node) if whole or one.name in names or one.name == "__init__")


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    return [one for one in node.body if isinstance(one, ast.FunctionDef)]


def _names(*nodes: ast.AST) -> set[str]:
    """Every name and attribute in this code."""
    found = set()
    for node in nodes:
        for one in ast.walk(node):
            if isinstance(one, ast.Name):
                found.add(one.id)
            elif isinstance(one, ast.Attribute):
                found.add(one.attr)
    return found


def _own_names(node: ast.AST) -> set[str]:
    """What a definition names itself; of a class, without its methods."""
    if not isinstance(node, ast.ClassDef):
        return _names(node)
    return _names(*node.bases, *(one for one in node.body if not isinstance(one, ast.FunctionDef)))


def _text(file: _File, node: _Definition, chosen: set[ast.AST]) -> str:
    if isinstance(node, ast.FunctionDef):
        return file.text(node.lineno, node.end_lineno or node.lineno)
    methods = _methods(node)
    head = [one for one in node.body if one not in methods]
    first = file.text(node.lineno, max(node.lineno, *(one.end_lineno or 0 for one in head)))
    kept = [file.text(one.lineno, one.end_lineno or one.lineno) for one in methods if one in chosen]
    return "\n\n".join([first, *kept])
