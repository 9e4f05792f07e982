"""Calls of the command line inside the test's own process."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

from purine.cli import main


@dataclass(frozen=True)
class Called:
    code: int
    out: str
    err: str


def call(*arguments: str | Path) -> Called:
    """What `purine ARGUMENTS` prints and exits with; a traceback escapes."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
            code: object = 0
        except SystemExit as end:
            code = end.code or 0
    assert isinstance(code, int)
    return Called(code, out.getvalue(), err.getvalue())


def tree(folder: Path) -> list[str]:
    """Every file and folder below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
