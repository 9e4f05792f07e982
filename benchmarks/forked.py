"""Processes that are forked from a benchmark and answer its questions.

The benchmark imports torch and builds what its processes have in common once, so they begin within
milliseconds. No kernel may have run on several threads before: threads do not survive a fork.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn, TextIO, TypeVar

__all__ = ["Forked", "apart"]

T = TypeVar("T")

_OURS: set[TextIO] = set()
"""The ends of pipes that only the benchmark itself uses."""


class Forked:
    """A process that runs `work` with the lines of questions, and a function that tells answers."""

    def __init__(self, work: Callable[[Iterator[str], Callable[[object], None]], None]) -> None:
        threads = len(os.listdir("/proc/self/task"))
        if threads > 1:
            raise RuntimeError(f"a process of {threads} threads cannot be forked")
        asked, told = os.pipe(), os.pipe()
        self.pid = os.fork()
        if not self.pid:
            for stream in _OURS:
                stream.close()
            os.close(asked[1])
            os.close(told[0])
            _serve(work, asked[0], told[1])
        os.close(asked[0])
        os.close(told[1])
        self._asking = os.fdopen(asked[1], "w")
        self.answers = os.fdopen(told[0])
        """Where the answers can be read, line by line."""
        _OURS.update((self._asking, self.answers))

    def ask(self, question: str) -> None:
        print(question, file=self._asking, flush=True)

    def end(self) -> int:
        """End it, and return the exit code."""
        for stream in (self._asking, self.answers):
            _OURS.discard(stream)
            stream.close()
        os.kill(self.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def apart(make: Callable[[], T]) -> T:
    """What `make` returns in a process of its own, where it may start threads."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            with os.fdopen(write, "wb") as told:
                pickle.dump(make(), told)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as told:
        text = told.read()
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise RuntimeError("a process of the benchmark has failed")
    made: T = pickle.loads(text)
    return made


def _serve(
    work: Callable[[Iterator[str], Callable[[object], None]], None], asked: int, told: int
) -> NoReturn:
    code = 1
    try:
        with os.fdopen(asked) as questions, os.fdopen(told, "w") as answers:
            work(iter(questions), lambda answer: print(answer, file=answers, flush=True))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
