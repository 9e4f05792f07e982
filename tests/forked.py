"""Python command lines in forked children, for tests that need processes but not their imports.

A process for itself spends seconds on importing torch. The program at the end of this file imports
it once and runs no kernel, so its children begin within milliseconds and inherit code alone.
What is tested of the start of Python itself needs `subprocess`.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TextIO

import torch

__all__ = ["Child", "python", "start", "start_hosts"]

ROOT = Path(__file__).parents[1]


class Child:
    """A process that `start` began; `out` and `err` are its output, where they were asked for."""

    def __init__(
        self, status: socket.socket, out: TextIO | None, err: TextIO | None, session: bool
    ) -> None:
        self._status, self._out, self._err, self._session = status, out, err, session
        self._code: int | None = None
        self.pid = int(status.recv(100))

    @property
    def out(self) -> TextIO:
        assert self._out is not None
        return self._out

    @property
    def runs(self) -> bool:
        return self._code is None and not select.select([self._status], [], [], 0)[0]

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, or minus the number of the signal that ended it."""
        if self._code is None:
            self._status.settimeout(timeout)
            self._code = os.waitstatus_to_exitcode(int(self._status.recv(100)))
            self._status.close()
        return self._code

    def ended(self, timeout: float) -> tuple[int, str, str]:
        """The exit code, and what it wrote that is not read yet; it is killed when time is up."""
        assert self._err is not None
        with self.out as out, self._err as err, ThreadPoolExecutor(2) as readers:
            texts = [readers.submit(stream.read) for stream in (out, err)]
            try:
                code = self.wait(timeout)
            except TimeoutError:
                self.kill()
                raise
            return code, texts[0].result(), texts[1].result()

    def kill(self) -> None:
        """End it, if it runs, with all processes of its session."""
        if self._code is None:
            with suppress(ProcessLookupError):
                (os.killpg if self._session else os.kill)(self.pid, signal.SIGKILL)
            self.wait()


def start(
    *arguments: str | Path,
    streams: tuple[int, int, int] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    session: bool = False,
) -> Child:
    """Begin `python ARGUMENTS` with these descriptors as standard streams; `env` is added.

    Without `streams` the output goes through pipes to the child that is returned. A process with a
    `session` of its own leads a group, which signals of a terminal would reach.
    """
    environment = {**os.environ, **(env or {})}
    server = _server(environment.get("TRITON_INTERPRET", ""))
    request = {"arguments": [*map(str, arguments)], "env": environment, "cwd": str(cwd)}
    request["session"] = session
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own, out, err = [theirs.fileno()], None, None
    if streams is None:
        own.append(os.open(os.devnull, os.O_RDONLY))
        (out, write), (err, error) = _pipe(), _pipe()
        own += write, error
        streams = own[1], write, error
    socket.send_fds(server, [json.dumps(request).encode()], [*streams, theirs.fileno()])
    theirs.detach()
    for descriptor in own:
        os.close(descriptor)
    return Child(ours, out, err, session)


def start_hosts(*arguments: str | Path, count: int = 2) -> list[Child]:
    """Begin `python ARGUMENTS` as several hosts, with one thread each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return [start(*arguments, env={**shared, "RANK": str(rank)}) for rank in range(count)]


def _pipe() -> tuple[TextIO, int]:
    read, write = os.pipe()
    return open(read), write


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
    """Run what comes; a process between this one and the child waits for its end."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 1_000_000, 4)
        if not message:
            return
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            connection.close()
            watch(json.loads(message), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def watch(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Fork the child; tell its process id at the start and its status at the end."""
    *streams, status = descriptors
    child = os.fork()
    if child == 0:
        os.close(status)
        end(run, streams, **request)
    for stream in streams:
        os.close(stream)
    with suppress(BrokenPipeError), socket.socket(fileno=status) as told:
        told.send(str(child).encode())
        told.send(str(os.waitpid(child, 0)[1]).encode())
    os._exit(0)


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


def run(
    descriptors: list[int], arguments: list[str], env: dict[str, str], cwd: str, session: bool
) -> None:
    """Do what `python ARGUMENTS` does."""
    if session:
        os.setsid()
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
    if "OMP_NUM_THREADS" in env:  # which the library of threads has read before the fork
        torch.set_num_threads(int(env["OMP_NUM_THREADS"]))
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
    import purine.cli.launch  # (commands import these when they are called)
    import purine.cli.progress
    import purine.runtime.run
    import purine.transports.processes  # noqa: F401
    from tests.command import call

    call("show", "--net", "mlp")  # imports the rest, with fake tensors alone
    gc.collect()
    gc.freeze()  # children look for cycles among what they make themselves
    serve(socket.socket(fileno=int(sys.argv[1])))
