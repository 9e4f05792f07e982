"""Names of results, and the prefix of the user's module in an exported program."""

from __future__ import annotations

__all__ = ["LOSS", "MODULE", "OUTPUT"]

LOSS = "loss"
MODULE = "module."
OUTPUT = "output"
