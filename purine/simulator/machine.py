"""What a simulation knows of machines beside the times of ops: cores, dispatch, transports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from purine.simulator.network import Network

__all__ = ["TRANSPORTS", "Machine", "Wire"]


@dataclass(frozen=True, slots=True)
class Wire:
    """How a transport moves a value, beside what the link takes.

    A put takes `put` seconds of the sender, and for each byte `per_byte`; the receiver the same
    with `arrive`. A put is over when all but `buffer` bytes are on their way. With `prompt` it is
    over when the value is copied, and one thread does everything where a host has one core.
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
    thread of a host at a time, and `hop` what a lane takes to wake. `cores` are those of each
    device of a host, as (host, device) or (device). `crowding` is by how much each other core that
    computes slows a core: 0.1 means that two busy cores take 1.1 times as long. `machine_of` says
    which hosts are on one machine. `slow` are the speeds of devices that are not as fast as the
    others: {("host0", "cpu:2"): 0.5}. Without `contended`, threads never wait for cores: so it is
    where times were measured while others ran.
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
        """The cores of a device; () where it has all that `threads` says."""
        return self.cores.get((host, device), self.cores.get(("", device), ()))
