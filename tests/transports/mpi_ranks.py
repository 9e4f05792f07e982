"""Ranks of an MPI job for the suite of all transports, which runs in another process.

Each rank answers calls to its transports, each call on a connection of its own. It ends when the
connection closes that the process of the tests holds.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import cache
from itertools import count
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from torch import Tensor

from purine.lowering.hosts import Channel
from purine.transports.base import Event, Transport
from purine.transports.mpi import MpiTransport, check_job

MPIEXEC = Path(sys.executable).parent / "mpiexec"
_NUMBERS = count()


class RankTransport(Transport):
    """A transport of another process."""

    def __init__(self, address: str, number: int, ranks: dict[str, int]) -> None:
        self._address, self._number = address, number
        self._call("make", ranks)

    def _call(self, method: str, *arguments: object) -> object:
        with Client(self._address) as connection:
            connection.send_bytes(pickle.dumps((self._number, method, arguments)))
            assert connection.poll(60), f"{method} does not return"
            result = pickle.loads(connection.recv_bytes())
        if isinstance(result, BaseException):
            raise result
        return result

    def open(
        self,
        peers: Sequence[str],
        incoming: Sequence[Channel],
        outgoing: Sequence[Channel],
        slots: int,
    ) -> None:
        self._call("open", peers, incoming, outgoing, slots)

    def slot(self, peer: str, channel: int, version: int) -> Tensor | None:
        return self._call("slot", peer, channel, version)  # type: ignore[return-value]

    def put(self, peer: str, channel: int, version: int, value: Tensor | None) -> None:
        self._call("put", peer, channel, version, value)

    def credit(self, peer: str, completed: int, sent: int = 0) -> None:
        self._call("credit", peer, completed, sent)

    def wait(self, timeout: float) -> list[Event]:
        return self._call("wait", timeout)  # type: ignore[return-value]

    def wake(self) -> None:
        self._call("wake")

    def close(self) -> None:
        self._call("close")


@cache
def _started(size: int) -> list[str]:
    """The addresses of the ranks of a job, which ends with this process."""
    folder = tempfile.TemporaryDirectory(prefix="purine-")
    process = subprocess.Popen(
        [MPIEXEC, "-n", str(size), sys.executable, "-m", __name__, folder.name],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
    )
    addresses = [str(Path(folder.name) / str(rank)) for rank in range(size)]
    lives: list[Connection] = []

    def end() -> None:
        for life in lives:
            life.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        folder.cleanup()

    atexit.register(end)
    ends = time.monotonic() + 60
    while len(lives) < size:
        assert process.poll() is None, "mpiexec has ended"
        assert time.monotonic() < ends, "the ranks do not start"
        try:
            lives.append(Client(addresses[len(lives)]))
        except OSError:
            time.sleep(0.05)
            continue
        lives[-1].send_bytes(b"life")
    return addresses


def transports(hosts: Sequence[str]) -> dict[str, Transport]:
    """A new transport for each host."""
    ranks = {host: rank for rank, host in enumerate(hosts)}
    number = next(_NUMBERS)
    addresses = _started(len(hosts))
    return {host: RankTransport(addresses[rank], number, ranks) for host, rank in ranks.items()}


def _answer(connection: Connection, ends: dict[int, MpiTransport], over: threading.Event) -> None:
    message = connection.recv_bytes()
    if message == b"life":
        connection.poll(None)
        over.set()
        return
    number, method, arguments = pickle.loads(message)
    result: object = None
    try:
        if method == "make":
            ends[number] = MpiTransport(*arguments)
        else:
            result = getattr(ends[number], method)(*arguments)
            if isinstance(result, Tensor):
                result = result.clone()  # and not the whole window
    except BaseException as error:
        result = error
    connection.send_bytes(pickle.dumps(result))
    connection.close()


def _serve(folder: str) -> None:
    rank = int(os.environ["PMI_RANK"])
    check_job(rank, int(os.environ["PMI_SIZE"]))  # all ranks initialize MPI together
    ends: dict[int, MpiTransport] = {}
    over = threading.Event()
    listener = Listener(str(Path(folder) / str(rank)), backlog=16)

    def accept() -> None:
        while True:
            arguments = (listener.accept(), ends, over)
            threading.Thread(target=_answer, args=arguments, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    over.wait()


if __name__ == "__main__":
    _serve(sys.argv[1])
