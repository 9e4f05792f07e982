"""`purine train --live`: the server of the page, which starts and ends with the job."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from purine.errors import ConfigError

__all__ = ["live_page"]

_SECONDS = 6.0
"""For which the server may still answer after the end of the job."""


@contextmanager
def live_page(run: Path) -> Iterator[str]:
    """The address of the page of the job that runs in a folder, until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "purine.viewer.serve", str(run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the job, which then closes the page
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        address = process.stdout.readline().strip()
        if not address:
            what, expected = "the live page cannot be served", "a free port on 127.0.0.1"
            remedy = "leave --live out, and look with purine view or purine status"
            raise ConfigError(what, expected, "the server ended at once", remedy)
        yield address
    finally:
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
