"""What holds for every mistake: it is told in full, exits with 2, soon, and leaves no trace.

A case says which texts the message has to hold: what is wrong, where, what was expected and found.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.command import Called, call, tree

__all__ = ["refused"]

_SECONDS = 120  # what takes so long has no end


def refused(
    folder: Path, arguments: Sequence[str | Path], texts: Sequence[str], *, several: bool = False
) -> Called:
    """Call, and check what holds for every mistake; `several` may be told at once by `check`."""
    before = tree(folder)
    with _ending():
        called = call(*arguments)
    assert called.code == 2
    assert called.err.startswith("error: ")
    assert several or sum(line.startswith("error: ") for line in called.err.splitlines()) == 1
    assert "Traceback" not in called.err
    for text in ("  expected: ", "  found: ", "  to do: ", *texts):
        assert text in called.err, f"{text!r} is not in:\n{called.err}"
    assert tree(folder) == before
    return called


@contextmanager
def _ending() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no end in {_SECONDS} s")

    handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
