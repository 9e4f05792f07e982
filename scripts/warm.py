"""Python command lines in children of a warm process, for campaigns that start hundreds of hosts.

A host for itself spends seconds on importing torch and on building what other hosts have built
before. `Warm` forks one process after the caller has done both. Its children begin within
milliseconds and inherit code and caches. No kernel may have run before: threads do not survive.
They also inherit what is to be done at exit, so temporary folders are made afterwards.

`mpiexec` starts its ranks by itself. For it, this file is also a program without any imports worth
mentioning, `python -IS scripts/warm.py SOCKET ARGUMENTS`. It hands its environment, its streams and
its connection to `mpiexec` to a child of the warm process, and ends as that child does. If
`mpiexec` kills it, the child is killed too.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

__all__ = ["PIDS", "Child", "Warm"]

PIDS = "WARM_PIDS"
"""The variable with the first part of the name of a file; a rank adds its number, and writes the
process there that does its work."""

_LARGEST = 1 << 20
"""Bytes of a request."""
_NETWORK = 0x40000000  # CLONE_NEWNET


class Child:
    """A process that a `Warm` has begun. It is killed when this object is closed or collected."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._status: int | None = None
        told = connection.recv(100)
        if not told:
            raise RuntimeError("the warm process is gone")
        self.pid = int(told)

    def poll(self) -> int | None:
        """The exit code, or minus the number of a signal; None while it runs."""
        if self._status is None and select.select([self._connection], [], [], 0)[0]:
            return self.wait()
        return self._status

    def wait(self) -> int:
        if self._status is None:
            told = self._connection.recv(100)
            self._status = os.waitstatus_to_exitcode(int(told)) if told else -signal.SIGKILL
            self.close()
        return self._status

    def close(self) -> None:
        """Let go of the process, which is killed if it still runs."""
        self._connection.close()


class Warm:
    """A forked process that begins children. To be made before this process starts threads."""

    def __init__(self) -> None:
        threads = len(os.listdir("/proc/self/task"))
        if threads > 1:
            raise RuntimeError(f"a process of {threads} threads cannot be forked")
        self._folder = tempfile.mkdtemp(prefix="warm-")  # children must not remove it at their end
        self.path = os.path.join(self._folder, "socket")
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.bind(self.path)
        server.listen(64)
        ours, theirs = socket.socketpair()
        self._process = os.fork()
        if self._process == 0:
            ours.close()
            _serve(server, theirs)
        self._lifeline = ours
        theirs.close()
        server.close()

    def start(
        self,
        *arguments: object,
        streams: tuple[int, int, int],
        env: Mapping[str, str],
        namespace: str | None = None,
    ) -> Child:
        """Begin `python ARGUMENTS`; `env` is added to the environment of this process."""
        return _ask(
            self.path, [*map(str, arguments)], {**os.environ, **env}, streams, namespace=namespace
        )

    def mpi(self, *arguments: object) -> list[str]:
        """The command that `mpiexec` starts for `python ARGUMENTS`."""
        return [sys.executable, "-IS", __file__, self.path, *map(str, arguments)]

    def close(self) -> None:
        """End the process and all its children."""
        self._lifeline.close()
        os.waitpid(self._process, 0)
        shutil.rmtree(self._folder)


def _ask(
    path: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    descriptors: Sequence[int],
    *,
    numbers: Sequence[int] = (),
    namespace: str | None = None,
) -> Child:
    """Ask for a child; `numbers` are those that descriptors after the streams have in it."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST)
    connection.connect(path)
    request = {"arguments": arguments, "env": dict(env), "cwd": os.getcwd()}
    request |= {"numbers": numbers, "namespace": namespace}
    socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
    return Child(connection)


def _serve(server: socket.socket, lifeline: socket.socket) -> NoReturn:
    """Begin children, tell their status at their end, and kill those that nobody waits for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    waiting = select.poll()
    for opened in (server, lifeline):
        waiting.register(opened, select.POLLIN)
    children: dict[int, tuple[int, socket.socket]] = {}
    """By the descriptor of a process or connection: the process, and its connection."""
    while True:
        descriptor, _ = waiting.poll()[0]  # one at a time: its handling may close others
        if descriptor == lifeline.fileno():
            for pid, _ in children.values():
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        if descriptor == server.fileno():
            connection, _ = server.accept()
            begun = _begin(connection, (server.fileno(), lifeline.fileno(), *children))
            if begun is None:
                connection.close()
                continue
            for end in (os.pidfd_open(begun), connection.fileno()):
                children[end] = begun, connection
                waiting.register(end, select.POLLIN)
            continue
        pid, connection = children[descriptor]
        if descriptor == connection.fileno():  # nobody waits for it any more
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        for end in [end for end, (other, _) in children.items() if other == pid]:
            waiting.unregister(end)
            del children[end]
            if end != connection.fileno():
                os.close(end)
        with suppress(OSError):
            connection.send(str(status).encode())
        connection.close()


def _begin(connection: socket.socket, foreign: Sequence[int]) -> int | None:
    """Fork the child of a request. Without `foreign` descriptors: it must not keep them open."""
    try:
        data, descriptors, _, _ = socket.recv_fds(connection, _LARGEST, 8)
    except OSError:
        return None
    if not data:
        return None
    pid = os.fork()
    if pid == 0:
        connection.close()
        for descriptor in foreign:
            os.close(descriptor)
        _run(descriptors, **json.loads(data))
    for descriptor in descriptors:
        os.close(descriptor)
    connection.send(str(pid).encode())
    return pid


def _run(
    descriptors: Sequence[int],
    arguments: list[str],
    env: dict[str, str],
    cwd: str,
    numbers: Sequence[int],
    namespace: str | None,
) -> NoReturn:
    from tests import forked  # not where `mpiexec` starts this file

    os.setsid()  # what it starts can be found by its session
    streams, others = [*descriptors[:3]], descriptors[3:]
    # First out of the way of the numbers that they shall have.
    moved = [os.dup2(one, 500 + k) for k, one in enumerate(others)]
    streams = [os.dup2(one, 600 + k) for k, one in enumerate(streams)]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if namespace is not None:
        _enter(namespace)
    code = forked.finish(forked.run, streams, arguments=arguments, env=env, cwd=cwd, session=False)
    if numbers:
        ctypes.CDLL(None).exit(code)  # runs the exit handlers of MPI, which tell `mpiexec`
    os._exit(code)


def _enter(namespace: str) -> None:
    """Enter a network namespace."""
    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _NETWORK):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)
    os.close(descriptor)


def _rank(path: str, arguments: Sequence[str]) -> NoReturn:
    """Be a rank of `mpiexec`, whose work a child of the warm process does."""
    numbers = [int(os.environ[name]) for name in ("PMI_FD",) if name in os.environ]
    child = _ask(path, arguments, os.environ, [0, 1, 2, *numbers], numbers=numbers)
    if PIDS in os.environ:
        with open(os.environ[PIDS] + os.environ["PMI_RANK"], "w") as file:
            file.write(str(child.pid))
    code = child.wait()
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    _rank(sys.argv[1], sys.argv[2:])
