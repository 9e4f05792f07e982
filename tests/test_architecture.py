"""Rules of the package's own code that no linter knows. `lint-imports` checks the layers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in sorted((ROOT / "purine").rglob("*.py"))
}
DEFERRED = {
    "purine": "public names are imported when they are first used",
    "purine.cli": "help and completion must not import torch",
    "purine.compile": "kernels need Triton",
    "purine.kinds": "kernels need Triton",
    "purine.viewer": "a live page must cost nothing before somebody looks",
}
"""Packages that may import modules of ours inside functions, and why."""


def imports(path: Path) -> Iterator[tuple[ast.ImportFrom, bool]]:
    """The imports of our own modules in a file, and whether each is inside a function."""
    tree = ast.parse(path.read_text())
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "purine":
            yield node, id(node) in inside


@pytest.mark.parametrize("module", MODULES)
def test_private_modules_stay_in_their_package(module: str) -> None:
    package = module.rpartition(".")[0]
    for node, _ in imports(MODULES[module]):
        assert node.module is not None
        for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
            parent, _, last = name.rpartition(".")
            if name in MODULES and last.startswith("_") and last != "__init__":
                assert package == parent, f"{module}:{node.lineno} imports {name}"


@pytest.mark.parametrize("module", MODULES)
def test_no_import_inside_a_function_breaks_a_cycle(module: str) -> None:
    for node, deferred in imports(MODULES[module]):
        package = ".".join(module.split(".")[:2]).removesuffix(".__init__")
        if deferred and package not in DEFERRED:
            raise AssertionError(f"{module}:{node.lineno} imports {node.module} inside a function")
        if deferred and package in ("purine.compile", "purine.kinds"):
            assert (node.module or "").startswith("purine.kernels"), f"{module}:{node.lineno}"
