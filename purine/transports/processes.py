"""Hosts that are processes, on one machine or several.

`torchrun`, `mpiexec`, `srun` or `purine launch` start one on each machine. They find each other
through the store of `torch.distributed`. Host k is called `hostk` in locations.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from purine.errors import ConfigError, RunError
from purine.graph import Graph
from purine.nearest import unknown_name
from purine.registry.aten import dtype_of
from purine.transports.base import Transport
from purine.transports.shm import ShmTransport
from purine.transports.torchdist import TorchTransport
from purine.transports.world import World, difference

__all__ = ["TRANSPORTS", "ProcessWorld", "rank_and_size"]

TRANSPORTS = ("shm", "torchdist")
_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""Variables by which launchers tell a process its number and how many there are."""
_PATIENCE = timedelta(seconds=60)
_STOP = "stop"
_NEVER = timedelta(days=365)
"""A receive may wait as long as it takes: hosts tell each other that they are alive."""


def rank_and_size() -> tuple[int, int]:
    """The number of this process and of all, as the launcher tells; (0, 1) without one."""
    for rank, size in _RANKS:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


class ProcessWorld(World):
    """Hosts that are processes, connected through the store of `torch.distributed`."""

    def __init__(self, transport: str = "shm") -> None:
        if transport not in TRANSPORTS:
            raise unknown_name(ConfigError, "transport", transport, TRANSPORTS)
        rank, size = rank_and_size()
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise ConfigError(
                f"the hosts cannot find each other: {missing[0]} is not set",
                expected="MASTER_ADDR and MASTER_PORT: address and free port of the first host",
                found=", ".join(f"no {name}" for name in missing),
                remedy="start with torchrun or purine launch, or export both for mpiexec or srun",
            )
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
        try:
            dist.init_process_group("gloo", timeout=_PATIENCE)
        except (RuntimeError, ValueError) as error:
            raise RunError(
                "the hosts cannot find each other",
                expected=f"{size} hosts at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
                found=" ".join(str(error).split())[:200],
                remedy="see that all hosts start, and that the first one can be reached there",
            ) from error
        self.hosts = tuple(f"host{number}" for number in range(size))
        self.host = self.hosts[rank]
        self._transport = transport
        self._store = dist.distributed_c10d._get_default_store()
        self._count = 0
        self._end: int | None = None
        """The iteration at which all hosts stop."""

    def transport(self) -> Transport:
        self._count += 1
        if self._transport == "torchdist":
            ranks = {host: rank for rank, host in enumerate(self.hosts)}
            group = dist.new_group(backend="gloo", timeout=_NEVER)
            assert isinstance(group, dist.ProcessGroup)
            return TorchTransport(ranks, group)
        secret = hashlib.sha256(self._shared(f"secret{self._count}", os.urandom(32).hex())).digest()
        store = PrefixStore(f"transport{self._count}", self._store)
        return ShmTransport(self.host, store, secret)

    def compare(self, facts: Mapping[str, str]) -> None:
        self._count += 1
        store = PrefixStore(f"compare{self._count}", self._store)
        for name, value in facts.items():
            store.set(f"{self.host}/{name}", value)
        for name, value in facts.items():
            for peer in self.peers:
                other = store.get(f"{peer}/{name}").decode()
                if other != value:
                    raise difference(self.host, peer, name, facts, {name: other})

    def gather(self, graph: Graph, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        gathered = {name: value.cpu() for name, value in values.items()}
        for rank, host in enumerate(self.hosts):
            names = [
                name
                for name in graph.states
                if graph.blobs[name].location.host == host and (host != self.host or name in values)
            ]
            for name in names:
                blob = graph.blobs[name]
                if host != self.host:
                    gathered[name] = torch.empty(blob.shape or (), dtype=dtype_of(blob.dtype))
                flat = gathered[name].contiguous().view(-1).view(torch.uint8)
                dist.broadcast(flat, src=rank)
                gathered[name] = flat.view(dtype_of(blob.dtype)).view(blob.shape or ())
        return gathered

    def share(self, text: str) -> str:
        self._count += 1
        return self._shared(f"share{self._count}", text).decode()

    def stops(self, iteration: int, *, wanted: bool, ahead: int) -> bool:
        if self._end is None and (wanted or self._store.check([_STOP])):
            proposed = str(iteration + ahead + 1)
            self._end = int(self._store.compare_set(_STOP, "", proposed))
        return self._end is not None and iteration >= self._end

    def barrier(self) -> None:
        dist.barrier()

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def _shared(self, key: str, value: str) -> bytes:
        """A text of the first host, on all of them."""
        if self.first:
            self._store.set(key, value)
        return bytes(self._store.get(key))
