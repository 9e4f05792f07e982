"""GPI-2 for tests: the library, and hosts that are processes, since each can join it only once."""

from __future__ import annotations

import ctypes.util
import fcntl
import io
import multiprocessing
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from purine.lowering.hosts import Channel
from purine.transports.base import Event, Transport
from purine.transports.gaspi import GaspiTransport
from purine.transports.gpi2 import LIBRARY, join

ROOT = Path(__file__).parents[2]


def needs_gpi2() -> None:
    """Skip the test if there is no GPI-2; it is built from `shared/gpi-2` if that is there."""
    found, why = _library()
    if found is None:
        pytest.skip(f"no GPI-2: {why}")
    os.environ[LIBRARY] = found


@cache
def _library() -> tuple[str | None, str]:
    """The path of the library, or None and the reason."""
    installed = os.environ.get(LIBRARY) or ctypes.util.find_library("GPI2")
    if installed:
        return installed, ""
    script = ROOT.parent / "shared" / "gpi-2" / "build"
    if not script.exists():
        return None, f"{LIBRARY} is not set, and its source is not beside the checkout"
    prefix = Path(tempfile.gettempdir()) / f"purine-gpi2-{os.getuid()}"
    prefix.mkdir(mode=0o700, exist_ok=True)
    with (prefix / "lock").open("w") as lock:  # one build on a machine
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            built = subprocess.run(
                [script, prefix], capture_output=True, text=True, timeout=300, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return None, f"it cannot be built: {error}"
    if built.returncode:
        lines = built.stderr.strip().splitlines() or ["without a message"]
        return None, f"it cannot be built ({lines[0]})"
    return built.stdout.strip(), ""


class Processes:
    """Hosts that are processes of this machine; each makes one transport after the other."""

    def __init__(self, hosts: Sequence[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        spawn = multiprocessing.get_context("spawn")
        self._count = 0
        self._pipes: dict[str, tuple[Connection, Connection]] = {}
        self._processes = []
        for rank, host in enumerate(hosts):
            pairs = [spawn.Pipe() for _ in range(2)]
            ends = tuple(pair[1] for pair in pairs)
            arguments = (rank, host, len(hosts), port, *ends)
            process = spawn.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            for end in ends:
                end.close()
            self._processes.append(process)
            self._pipes[host] = pairs[0][0], pairs[1][0]

    def ends(self) -> dict[str, Transport]:
        self._count += 1
        return {host: _Remote(self._count, *pipes) for host, pipes in self._pipes.items()}

    def end(self) -> None:
        for calls, _ in self._pipes.values():
            calls.send_bytes(b"")
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


class _Remote(Transport):
    """The transport of another process. `wait` has a pipe of its own, since it blocks."""

    def __init__(self, number: int, calls: Connection, waits: Connection) -> None:
        self._number, self._calls, self._waits = number, calls, waits
        self._calling, self._waiting = threading.Lock(), threading.Lock()
        self._closed = False

    def open(
        self,
        peers: Sequence[str],
        incoming: Sequence[Channel],
        outgoing: Sequence[Channel],
        slots: int,
    ) -> None:
        self._call("open", peers, incoming, outgoing, slots)

    def slot(self, peer: str, channel: int, version: int) -> Tensor | None:
        return self._call("slot", peer, channel, version)  # type: ignore[no-any-return]

    def put(self, peer: str, channel: int, version: int, value: Tensor | None) -> None:
        self._call("put", peer, channel, version, value)

    def credit(self, peer: str, completed: int, sent: int = 0) -> None:
        self._call("credit", peer, completed, sent)

    def wait(self, timeout: float) -> list[Event]:
        with self._waiting:
            return _ask(self._waits, self._number, "wait", timeout)  # type: ignore[no-any-return]

    def wake(self) -> None:
        self._call("wake")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._call("close")

    def _call(self, name: str, *arguments: object) -> Any:
        with self._calling:
            return _ask(self._calls, self._number, name, *arguments)


def _ask(pipe: Connection, *words: object) -> Any:
    pipe.send_bytes(_packed(words))
    assert pipe.poll(60), f"no answer to {words[1]}"
    answer = _unpacked(pipe.recv_bytes())
    if isinstance(answer, Exception):
        raise answer
    return answer


def _packed(value: object) -> bytes:
    """As bytes, with the strides of tensors."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _unpacked(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)


def _serve(
    rank: int, host: str, size: int, port: int, calls: Connection, waits: Connection
) -> None:
    """Answer calls until the other end sends nothing or is gone."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0, timedelta(seconds=60))
    node = join(store, rank, size)
    transports: dict[int, GaspiTransport] = {}

    def answer(pipe: Connection) -> None:
        while data := pipe.recv_bytes():
            number, name, *arguments = _unpacked(data)
            if name == "open":
                transports[number] = GaspiTransport(host, PrefixStore(str(number), store), node)
            try:
                result = getattr(transports[number], name)(*arguments)
                if isinstance(result, Tensor):
                    result = result.clone()  # a slot alone, not the memory around it
            except Exception as error:
                result = error
            pipe.send_bytes(_packed(result))

    threading.Thread(target=answer, args=(waits,), daemon=True).start()
    try:
        answer(calls)
    except EOFError:
        return
