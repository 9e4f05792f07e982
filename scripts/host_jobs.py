"""Jobs of two hosts for campaigns: `purine train` in warm processes, in namespaces, or under
`mpiexec` or `torchrun`, and what is left of them afterwards."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from netns import ADDRESSES, LINK, Link
from warm import PIDS, Child, Warm

__all__ = ["PATIENCE", "Job", "alive", "left_over", "mpich_files", "read"]

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 120.0
"""Seconds that a job has for what is waited for."""
_LOOK = 0.01
_MOMENT = 2.0


class Job:
    """`purine train` on two hosts, started as the transport and the fault need it."""

    def __init__(
        self,
        warm: Warm,
        words: Sequence[object],
        transport: str,
        log: Path,
        *,
        link: Link | None = None,
        restarts: int = 0,
    ) -> None:
        self._log, self._link, self._transport = log, link, transport
        self._hosts: list[Child] = []
        """The hosts that no launcher has started."""
        self._launcher: subprocess.Popen[bytes] | None = None
        train = ["-m", "purine", "train", *map(str, words)]
        shared = {"PURINE_TRANSPORT": transport, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
        shared |= {"MASTER_PORT": _free_port(), "GLOO_SOCKET_IFNAME": LINK if link else "lo"}
        shared |= {"MASTER_ADDR": ADDRESSES[0] if link else "127.0.0.1"}
        tools = Path(sys.executable).parent
        if restarts:
            command = [str(tools / "torchrun"), "--nproc-per-node=2", "--master-port"]
            command += [shared["MASTER_PORT"], f"--max-restarts={restarts}", *train]
            self._launch(command, shared)
        elif transport == "mpi":
            command = [str(tools / "mpiexec"), "-n", "2", *warm.mpi(*train)]
            self._launch(command, {**shared, PIDS: f"{log}.pid"})
        else:
            for rank in range(2):
                self._start(warm, train, {**shared, "RANK": str(rank)}, rank)

    def _start(self, warm: Warm, train: Sequence[str], env: dict[str, str], rank: int) -> None:
        with self.log_of(rank).open("w") as file, open(os.devnull) as nothing:
            streams = nothing.fileno(), file.fileno(), file.fileno()
            space = self._link.spaces[rank] if self._link else None
            self._hosts.append(warm.start(*train, streams=streams, env=env, namespace=space))

    def _launch(self, command: list[str], variables: dict[str, str]) -> None:
        with self._log.open("w") as file:
            environment = {**os.environ, **variables}
            self._launcher = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment
            )

    def log_of(self, host: int) -> Path:
        """The log of a host that has one of its own."""
        return self._log.with_suffix(f".host{host}.log")

    def text(self, host: int | None = None) -> str:
        """What a host or, where they share a log, the job has printed."""
        logs = [self.log_of(0), self.log_of(1)] if host is None else [self.log_of(host)]
        return "".join(read(log) for log in (self._log, *logs))

    @property
    def runs(self) -> bool:
        if self._launcher is not None:
            return self._launcher.poll() is None
        return any(host.poll() is None for host in self._hosts)

    def hosts(self) -> dict[int, int]:
        """The processes of the hosts, by number."""
        if self._launcher is None:
            return {rank: host.pid for rank, host in enumerate(self._hosts)}
        if self._transport == "mpi":
            told = {rank: read(f"{self._log}.pid{rank}") for rank in range(2)}
            return {rank: int(pid) for rank, pid in told.items() if pid}
        found, left = {}, [self._launcher.pid]
        while left:
            pid = left.pop()
            left += _children(pid)
            ranks = re.findall(r"(?:^|\0)RANK=(\d+)", read(f"/proc/{pid}/environ"))
            if ranks and "train" in read(f"/proc/{pid}/cmdline").split("\0"):
                found[int(ranks[0])] = pid
        return found

    def code_of(self, host: int) -> int:
        """The exit code of a host, or of what has launched it; to be asked after its end."""
        return self._hosts[host].wait() if self._launcher is None else self._launcher.wait()

    def wait(self) -> int:
        """The first exit code that is not 0; a job that hangs is killed with its hosts."""
        ends = time.monotonic() + PATIENCE
        while self.runs and time.monotonic() < ends:
            time.sleep(_LOOK)
        self.end()
        return next((code for code in map(self.code_of, range(2)) if code), 0)

    def end(self) -> None:
        """Kill what still runs."""
        if not self.runs:
            return
        for pid in self.hosts().values():
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        if self._launcher is not None:
            self._launcher.kill()
            self._launcher.wait()


def left_over(hosts: Iterable[int]) -> list[str]:
    """Processes and shared memory that hosts have left behind.

    What is killed at the end of a job may take a moment to end.
    """
    pids, ends = list(hosts), time.monotonic() + _MOMENT
    while (running := _of(set(pids))) and time.monotonic() < ends:
        time.sleep(_LOOK)
    left = [f"process {pid} is left" for pid in running]
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    words = ["purine", *(f"_{pid}_" for pid in pids)]
    return left + [f"/dev/shm/{n} is left" for n in names if any(word in n for word in words)]


def _of(hosts: set[int]) -> list[int]:
    """The hosts that run, and the processes in their sessions: each warm host has its own."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        status = _status(pid)
        if len(status) > 3 and not hosts.isdisjoint((pid, int(status[3]))) and alive(pid):
            found.append(pid)
    return found


def mpich_files(pid: int) -> list[str]:
    """The files of MPICH in shared memory that a process has mapped."""
    return re.findall(r"/dev/shm/mpich_shm_\w+", read(f"/proc/{pid}/maps"))


def alive(pid: int) -> bool:
    status = _status(pid)
    return bool(status) and status[0] not in "ZX"


def _status(pid: int) -> list[str]:
    return read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def read(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _children(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    words = " ".join(read(f"/proc/{pid}/task/{thread}/children") for thread in threads)
    return [int(word) for word in words.split()]


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
