"""Kernels of our own without a GPU: scripts that run in Triton's interpreter."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests.forked import python

__all__ = ["interpret", "needs_triton", "widen_products"]

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


def interpret(script: str) -> None:
    """Run a script, which fails where a kernel is wrong; Triton interprets from its import on."""
    found = python("-c", script, env={"TRITON_INTERPRET": "1"})
    assert found.returncode == 0, found.stderr


def widen_products() -> None:
    """Let the interpreter multiply matrices of bfloat16, for which it takes the integers of bits.

    For scripts that run in it.
    """
    import numpy as np
    from triton.runtime import interpreter

    builder, tl = interpreter.InterpreterBuilder, interpreter.tl
    plain = builder.create_dot

    def wide(value: Any) -> Any:
        if value.dtype.scalar != tl.bfloat16 or value.data.dtype != np.uint16:
            return value
        bits = value.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    def create_dot(self: Any, left: Any, right: Any, *rest: Any) -> Any:
        return plain(self, wide(left), wide(right), *rest)

    builder.create_dot = create_dot
