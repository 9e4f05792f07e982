"""What holds for every mistake: it is told in full, exits with 2 and leaves no trace.

A case says which texts the message has to hold: what is wrong, where, what was expected and found.
"""

from __future__ import annotations

from pathlib import Path

from tests.command import Called, call, tree

__all__ = ["refused"]


def refused(folder: Path, arguments: list[str], texts: list[str]) -> Called:
    """Call, and check what holds for every mistake."""
    before = tree(folder)
    called = call(*arguments)
    assert called.code == 2
    assert called.err.startswith("error: ")
    assert "Traceback" not in called.err
    for text in texts:
        assert text in called.err
    assert tree(folder) == before
    return called
