"""Kernels of our own without a GPU: scripts that run in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

__all__ = ["interpret", "needs_triton"]

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


def interpret(script: str) -> None:
    """Run a script, which fails where a kernel is wrong; Triton interprets from its import on."""
    found = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
