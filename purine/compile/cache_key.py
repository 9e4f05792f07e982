"""The version of our own code in the key under which compiled steps are stored.

Inductor's key knows our own ops by name only. So it gets a hash of the code of these ops, of the
rewrites, and of the call of the compiler. The hash is of syntax trees without docstrings: words and
comments do not change it.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

__all__ = ["code_hash", "code_of", "own_code", "own_files"]

_PACKAGE = Path(__file__).parents[1]
_CALLED = ("kernels/*.py", "compile/inductor.py", "compile/rewrites/*.py")
_DEFINING = ("custom_op(", "KERNELS[")
"""How a kind defines an op of our own, or a kernel of our own for an ATen op."""


@cache
def own_code() -> str:
    """The hash of all our code that compiled steps depend on."""
    return code_hash(own_files())


def own_files() -> list[Path]:
    """The files with the code that compiled steps depend on."""
    kinds = (
        path
        for path in (_PACKAGE / "kinds").rglob("*.py")
        if any(text in path.read_text(encoding="utf-8") for text in _DEFINING)
    )
    return sorted([*(path for part in _CALLED for path in _PACKAGE.glob(part)), *kinds])


def code_hash(files: Iterable[Path]) -> str:
    """A hash of the code of some files, without docstrings and comments."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}\n{code_of(path.read_text(encoding='utf-8'))}\n".encode())
    return digest.hexdigest()


def code_of(source: str) -> str:
    """The syntax tree of a module as text, without docstrings, comments and line numbers.

    >>> code_of("x = 1  # one") == code_of('"A module."\\nx = 1')
    True
    >>> code_of("x = 1") == code_of("x = 2")
    False
    """
    return ast.dump(_WithoutStrings().visit(ast.parse(source)))


class _WithoutStrings(ast.NodeTransformer):
    """Removes statements that are strings: docstrings of modules, classes, functions, constants."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if text else node
