"""The parameters of simulated machines besides the times of ops: cores, dispatch, transports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from purine.simulator.network import Network

__all__ = ["TRANSPORTS", "Machine", "Wire"]


@dataclass(frozen=True, slots=True)
class Wire:
    """The costs of a transport besides the link.

    A put takes `put` seconds of the sender, and `per_byte` for each byte; the receiver needs
    `arrive` in the same way. A put completes when all but `buffer` bytes have been sent. With
    `prompt` it completes when the value is copied, and one thread does everything on a host with
    one core.
    """

    name: str
    put: float
    arrive: float
    per_byte: float
    received_byte: float
    buffer: int
    prompt: bool = False


TRANSPORTS: Mapping[str, Wire] = {
    "tcp": Wire("tcp", 15e-6, 25e-6, 0.12e-9, 0.15e-9, 1 << 18),
    "shm": Wire("shm", 4e-6, 15e-6, 0.10e-9, 0.0, 1 << 40, prompt=True),
    "torchdist": Wire("torchdist", 40e-6, 60e-6, 0.25e-9, 0.25e-9, 1 << 20),
    "inproc": Wire("inproc", 4e-6, 15e-6, 0.10e-9, 0.0, 1 << 40),
    "gaspi": Wire("gaspi", 15e-6, 60e-6, 0.25e-9, 0.25e-9, 1 << 40),
    "mpi": Wire("mpi", 10e-6, 40e-6, 0.15e-9, 0.15e-9, 1 << 40),
}
"""What a message takes at both ends by transport: the order of magnitude on one machine of today.
`purine calibrate` measures those that it finds."""


@dataclass(frozen=True)
class Machine:
    """The machines of a simulation.

    `dispatch` is the time between two ops of a lane, which the interpreter's lock allows to one
    thread of a host at a time, and `hop` the time to wake a thread. `cores` are those of each
    device of a host, by (host, device) or (device). `crowding` is the slowdown of a core by each
    other busy core: with 0.1, two busy cores take 1.1 times as long. `machine_of` maps hosts to
    machines. `slow` has the speeds of slow devices: {("host0", "cpu:2"): 0.5}. Without `contended`,
    threads never wait for cores: this is for times that were measured while other threads ran.
    """

    dispatch: float = 12e-6
    hop: float = 15e-6
    cores: Mapping[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    threads: int = 1
    crowding: float = 0.0
    contended: bool = True
    wire: Wire = TRANSPORTS["tcp"]
    network: Network = field(default_factory=Network)
    machine_of: Mapping[str, str] = field(default_factory=dict)
    slow: Mapping[tuple[str, str], float] = field(default_factory=dict)
    weights: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By pair of hosts by how much more is sent than the graph says, where hosts stand for
    others."""

    def cores_of(self, host: str, device: str) -> tuple[int, ...]:
        """The cores of a device; () if it has as many as `threads` says."""
        return self.cores.get((host, device), self.cores.get(("", device), ()))
