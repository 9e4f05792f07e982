"""Python command lines in forked children, for tests that need processes but not their imports.

A process for itself spends seconds on importing torch. The program at the end of this file imports
it once and runs no kernel, so its children begin within milliseconds and inherit code alone.
What is tested of the start of Python itself needs `subprocess`.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["Child", "python", "start"]

ROOT = Path(__file__).parents[1]


class Child:
    """A process that `start` began."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self.pid = int(server.recv(100))

    def wait(self) -> int:
        """The exit code, or minus the number of the signal that ended it; to be called once."""
        return os.waitstatus_to_exitcode(int(self._server.recv(100)))


def start(
    *arguments: str | Path,
    streams: tuple[int, int, int],
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
) -> Child:
    """Begin `python ARGUMENTS` with these descriptors as standard streams; `env` is added.

    One child runs at a time: it is waited for before the next one begins.
    """
    environment = {**os.environ, **(env or {})}
    server = _server(environment.get("TRITON_INTERPRET", ""))
    request = {"arguments": [*map(str, arguments)], "env": environment, "cwd": str(cwd)}
    socket.send_fds(server, [json.dumps(request).encode()], streams)
    return Child(server)


def python(
    *arguments: str | Path,
    stdout: int | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
) -> subprocess.CompletedProcess[str]:
    """What `python ARGUMENTS` prints and exits with, without its standard input."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        nothing = os.open(os.devnull, os.O_RDONLY)
        streams = nothing, out.fileno() if stdout is None else stdout, err.fileno()
        code = start(*arguments, streams=streams, env=env, cwd=cwd).wait()
        os.close(nothing)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess([*map(str, arguments)], code, out.read(), err.read())


@cache
def _server(interpret: str) -> socket.socket:
    """The connection to the program below, which ends when this process does.

    There is one for each value of `TRITON_INTERPRET`, which Triton reads when it is imported.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen(
        [sys.executable, "-m", "tests.forked", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TRITON_INTERPRET": interpret},
        cwd=ROOT,
    )
    theirs.close()
    return ours


def serve(connection: socket.socket) -> None:
    """Run what comes, one at a time: answer the process id at the start, the status at the end."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 1_000_000, 3)
        if not message:
            return
        child = os.fork()
        if child == 0:
            connection.close()
            end(run, descriptors, **json.loads(message))
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(str(child).encode())
        connection.send(str(os.waitpid(child, 0)[1]).encode())


def end(function: Callable[..., object], *arguments: Any, **options: Any) -> NoReturn:
    """Call the function and end this process as Python does, except that nothing is freed."""
    os._exit(finish(function, *arguments, **options))


def finish(function: Callable[..., object], *arguments: Any, **options: Any) -> int:
    """Call the function and do what Python does at its end; returns the exit code."""
    code: object = 0
    try:
        function(*arguments, **options)
    except SystemExit as exit_:
        code = exit_.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120  # as Python has it
    sys.stderr.flush()
    return code or 0


def run(descriptors: list[int], arguments: list[str], env: dict[str, str], cwd: str) -> None:
    """Do what `python ARGUMENTS` does."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = sys.__stdin__ = _stream(0, "r")
    sys.stdout = sys.__stdout__ = _stream(1, "w")
    sys.stderr = sys.__stderr__ = _stream(2, "w")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    first, *rest = arguments
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(rest[0], {"__name__": "__main__"})
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")


def _stream(descriptor: int, mode: str) -> Any:
    lines = mode == "r" or descriptor == 2 or os.isatty(descriptor)
    return open(descriptor, mode, buffering=1 if lines else -1, closefd=False)


if __name__ == "__main__":
    import purine.cli.progress  # noqa: F401  (which the command imports when it is called)
    from tests.command import call

    call("show", "--net", "mlp")  # imports the rest, with fake tensors alone
    serve(socket.socket(fileno=int(sys.argv[1])))
