"""`purine`, whose command `launch` forks its hosts: `python -m tests.cli.forking launch ...`.

Hosts for themselves spend seconds on imports, which tests of what hosts do need not wait for.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from purine.cli import main
from tests.forked import end, run


class Forked:
    """What `purine launch` needs of `subprocess.Popen`."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        stdin: int,
        stdout: int | None,
        stderr: int | None,
        text: bool,
        env: Mapping[str, str],
        pass_fds: Sequence[int] = (),
    ) -> None:
        assert (stdin, text, words[0]) == (subprocess.DEVNULL, True, sys.executable)
        nothing = os.open(os.devnull, os.O_RDWR)
        read, write = os.pipe()
        streams = [nothing, 1 if stdout is None else nothing, 2 if stderr is None else write]
        self.stderr: TextIO | None = None
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(read)
            own = [os.dup(stream) for stream in streams]
            end(run, own, [*words[1:]], dict(env), os.getcwd(), session=False)
        self._ended = os.pidfd_open(self.pid)
        os.close(nothing)
        os.close(write)
        if stderr is None:
            os.close(read)
        else:
            self.stderr = open(read)  # noqa: SIM115

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("purine", timeout or 0.0)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


if __name__ == "__main__":
    subprocess.Popen = Forked  # type: ignore[assignment, misc]
    main(sys.argv[1:])
