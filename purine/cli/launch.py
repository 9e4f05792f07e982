"""`purine launch`: several hosts on this machine, to try out jobs for several machines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO, Annotated

import typer

from purine.cli.parameters import argument, given
from purine.errors import ConfigError

__all__ = ["launch"]

_TRANSPORTS = ("gaspi", "shm", "tcp", "torchdist")
_PATIENCE = 3.0
"""Seconds that hosts have to end by themselves after one has failed."""
_STOPPED = (128 + signal.SIGHUP, 128 + signal.SIGINT, 128 + signal.SIGTERM)
_PATIENCE_TO_STOP = 15.0
"""The same after one has stopped because it was asked to, as all are."""


def launch(
    words: Annotated[list[str], argument("A command of purine.", metavar="-- COMMAND...")],
    hosts: Annotated[int, given("Number of hosts to start.", metavar="N")] = 2,
    transport: Annotated[
        str, given("Transport between them: shm, tcp, torchdist or gaspi.", metavar="NAME")
    ] = "shm",
) -> None:
    """Start several hosts on this machine, each a process with its share of the cores.

    The first host shows progress; messages of the others begin with their name. If one fails, all
    end with its exit code. Asynchronous workers continue without a lost worker, as long as the
    first host is there. On several machines, torchrun, mpiexec or srun start the hosts.

    \b
    purine launch --hosts 2 -- train --net lenet --devices host0-1:cpu:0 --out runs/two
    torchrun --nnodes 2 ... -m purine train --net lenet --devices host0-1:cpu:0
    """
    if not 1 <= hosts <= 64:
        remedy = "start real machines with torchrun, mpiexec or srun"
        raise ConfigError(f"--hosts is {hosts}", "1 to 64 hosts", str(hosts), remedy)
    expected = " or ".join(_TRANSPORTS)
    if transport == "mpi":
        what = "purine launch starts no hosts for transport 'mpi'"
        remedy = f"start with mpiexec -n {hosts} python -m purine ..., with PURINE_TRANSPORT=mpi"
        raise ConfigError(what, expected, transport, remedy)
    if transport not in _TRANSPORTS:
        raise ConfigError(f"--transport is {transport!r}", expected, transport, "name one of them")
    code = _Hosts(hosts, transport, words).wait()
    if code:
        raise typer.Exit(code)


class _Hosts:
    """The processes of all hosts, which end together."""

    def __init__(self, count: int, transport: str, words: list[str]) -> None:
        import socket

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        shared |= {"GLOO_SOCKET_IFNAME": "lo", "PURINE_TRANSPORT": transport}
        from purine.machine.cores import available, bind

        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # hosts ignore it until they answer it
        cores = available()
        size = len(cores) // count
        self.processes = []
        self._told, told = os.pipe()
        os.set_blocking(self._told, False)
        for rank in range(count):
            own = cores[rank * size : (rank + 1) * size] or [cores[rank % len(cores)]]
            process = subprocess.Popen(
                [sys.executable, "-m", "purine", *words],
                stdin=subprocess.DEVNULL,
                stdout=None if rank == 0 else subprocess.DEVNULL,
                stderr=None if rank == 0 else subprocess.PIPE,
                text=True,
                env={**os.environ, **shared, "RANK": str(rank), "PURINE_LAUNCHER": str(told)},
                pass_fds=(told,),
            )
            bind(process.pid, own)
            self.processes.append(process)
            if process.stderr is not None:
                arguments = (process.stderr, f"host{rank}")
                threading.Thread(target=_relay, args=arguments, daemon=True).start()

    def wait(self) -> int:
        """Wait for all hosts; returns the first exit code that is not 0."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the hosts too
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, lambda number, frame: self._send(number))
        code, patience, apart = 0, 0.1, False
        left = list(self.processes)
        while left:
            for process in list(left):
                try:
                    ended = process.wait(timeout=patience)
                except subprocess.TimeoutExpired:
                    if code or (apart and self.processes[0] not in left):
                        process.kill()
                    continue
                left.remove(process)
                apart = apart or self._are_apart()
                if apart and process is not self.processes[0]:
                    self._note(process, ended)
                    continue
                code = code or (ended if ended >= 0 else 128 - ended)
                if code or apart:
                    patience = _PATIENCE_TO_STOP if code in (0, *_STOPPED) else _PATIENCE
        return code

    def _are_apart(self) -> bool:
        """Whether the first host has announced that the others may join and leave from now on."""
        with suppress(BlockingIOError):
            return bool(os.read(self._told, 1))
        return False

    def _note(self, process: subprocess.Popen[str], code: int) -> None:
        if code not in (0, *_STOPPED):
            host = f"host{self.processes.index(process)}"
            print(
                f"{host}: ended with code {code}; the others continue", file=sys.stderr, flush=True
            )

    def _send(self, number: int) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)


def _relay(lines: IO[str], host: str) -> None:
    for line in lines:
        print(f"{host}: {line}", end="", file=sys.stderr, flush=True)
