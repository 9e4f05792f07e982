"""Standard output that may break: a closed pipe, a full disk, or none at all.

A command that only prints ends there: silently if a pipe was closed, as Unix tools do, else with a
message. A training must not end unnoticed: it stops with a checkpoint, says so on stderr and exits
with 2 (`purine.cli.progress`). A training that was started without standard output says so on
stderr and trains on.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import threading
from collections.abc import Callable
from typing import TextIO

from purine.errors import ConfigError, reason

__all__ = ["Output", "drop_output", "has_output", "prepare_output", "unwritable"]


class Output:
    """A stream for the lines of a training. The first write that fails is kept in `error`.

    Later writes are dropped, because the stream may end in the middle of a line.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.error: OSError | None = None
        self._lock = threading.RLock()

    @property
    def encoding(self) -> str:
        return self.stream.encoding or "utf-8"

    def isatty(self) -> bool:
        return self.stream.isatty()

    def write(self, text: str) -> int:
        self._try(lambda: self.stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self.stream.flush)

    def _try(self, action: Callable[[], object]) -> None:
        with self._lock:
            if self.error is None:
                try:
                    action()
                except OSError as error:
                    self.error = error

    def print(self, text: str) -> None:
        """Write a line at once."""
        with self._lock:
            self.write(f"{text}\n")
            self.flush()


class _Missing(io.TextIOBase):
    """Stands for a standard output that the process was started without."""

    def write(self, text: str) -> int:
        if text:
            raise OSError(errno.EBADF, "there is no standard output")
        return 0


def prepare_output() -> None:
    """Make standard streams safe to use, whatever the process was started with.

    File descriptors 0 to 2 are opened, so that no file of a run gets one that libraries write to.
    Characters that the terminal cannot encode are escaped.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor
    if sys.stdout is None:
        sys.stdout = _Missing()
    if sys.stderr is None:  # print would write its lines to standard output
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def has_output() -> bool:
    """Whether the process was started with a standard output."""
    return not isinstance(sys.stdout, _Missing)


def drop_output() -> None:
    """Discard the buffered output, which Python would try to write again at exit."""
    if has_output():
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def unwritable(error: OSError, what: str, remedy: str) -> ConfigError:
    """The error for output that could not be written."""
    closed = error.errno == errno.EPIPE
    found = "the pipe was closed by its reader" if closed else reason(error)
    return ConfigError(what, "a terminal, a file or a pipe that takes the output", found, remedy)
