"""Hosts that are processes, on one machine or several.

`torchrun`, `mpiexec`, `srun` or `purine launch` start one on each machine. They find each other
through the store of `torch.distributed`. Host k is called `hostk` in locations.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from purine.errors import ConfigError, HostLostError, RunError
from purine.graph import Graph
from purine.lowering.together import Group
from purine.nearest import unknown_name
from purine.registry.aten import dtype_of
from purine.transports import nccl
from purine.transports.base import ENDED, Transport, bytes_of, own_address
from purine.transports.clock import ROUNDS, Reading, estimate
from purine.transports.communicator import Communicator, GlooCommunicator
from purine.transports.gaspi import GaspiTransport
from purine.transports.gpi2 import join
from purine.transports.mpi import MpiTransport, check_job
from purine.transports.pulse import Pulse
from purine.transports.shm import ShmTransport
from purine.transports.tcp import TcpTransport
from purine.transports.torchdist import TorchTransport
from purine.transports.world import Texts, Values, World, host_lost, unheard

__all__ = ["RESTARTS", "TRANSPORTS", "ProcessWorld", "rank_and_size"]

T = TypeVar("T")
TRANSPORTS = ("gaspi", "mpi", "shm", "tcp", "torchdist")
_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("GASPI_RANK", "GASPI_NRANKS"),
)
"""Variables by which launchers tell a process its number and how many there are."""
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
"""The variable in which `torchrun` counts how often it has started the hosts again. Its store keeps
what hosts wrote before, so each start has keys of its own."""
_PATIENCE = timedelta(seconds=60)
_LOOK = 0.25
"""Seconds between two looks for lost hosts."""
_GRACE = 1.0
"""Seconds that a call may still take after a host is lost: one that has done its part may end."""
_LAST_WORDS = 3.0
"""Seconds for which the host of the store stays at most, so that all others see who is lost."""
_CHUNK = 16 << 20
"""Bytes of a text that are sent at a time."""
_STOP = "stop"
_NEVER = timedelta(days=365)
"""A receive may wait as long as it takes: hosts tell each other that they are alive."""


def rank_and_size() -> tuple[int, int]:
    """The number of this process and of all, from the launcher; (0, 1) without one."""
    for rank, size in _RANKS:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


class ProcessWorld(World):
    """Hosts that are processes, connected through the store of `torch.distributed`."""

    def __init__(self, transport: str = "shm") -> None:
        super().__init__()
        if transport not in TRANSPORTS:
            raise unknown_name(ConfigError, "transport", transport, TRANSPORTS)
        rank, size = rank_and_size()
        if transport == "mpi":
            check_job(rank, size)
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
            store, *_ = next(rendezvous("env://", timeout=_PATIENCE))
            store = PrefixStore(f"start{os.environ.get(RESTARTS) or 0}", store)
            signs = PrefixStore("pulse", store)
            signs.set(f"host{rank}", "0")
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=size, timeout=_PATIENCE
            )
        except (RuntimeError, ValueError) as error:
            raise RunError(
                "the hosts cannot find each other",
                expected=f"{size} hosts at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
                found=" ".join(str(error).split())[:200],
                remedy="check that all hosts start, and that the first one can be reached there",
            ) from error
        self.hosts = tuple(f"host{number}" for number in range(size))
        self.host = self.hosts[rank]
        self._ranks = {host: number for number, host in enumerate(self.hosts)}
        self._transport = transport
        self._store = dist.distributed_c10d._get_default_store()
        self._caller = _Caller()
        connection = signs.clone()  # type: ignore[attr-defined]  # missing in the stubs of torch
        self._pulse = Pulse(connection, self.host, self.peers, keeper=self.hosts[0])
        self._pulse.start()
        self._count = 0
        self._end: int | None = None
        """The iteration at which all hosts stop."""

    def transport(self) -> Transport:
        self._count += 1
        if self._transport == "mpi":
            return MpiTransport(self._ranks)
        if self._transport == "torchdist":
            group = dist.new_group(backend="gloo", timeout=_NEVER)
            assert isinstance(group, dist.ProcessGroup)
            return TorchTransport(self._ranks, group)
        store = PrefixStore(f"transport{self._count}", self._store)
        if self._transport == "gaspi":
            node = join(self._store, self._ranks[self.host], len(self.hosts))
            return GaspiTransport(self.host, store, node)
        secret = hashlib.sha256(self._shared(f"secret{self._count}", os.urandom(32).hex())).digest()
        if self._transport == "tcp":
            address = own_address(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
            return TcpTransport(self.host, store, secret, address)
        return ShmTransport(self.host, store, secret)

    def engage(self) -> None:
        """Let all hosts join an engine that transports between two of them need later."""
        if self._transport == "gaspi":
            join(self._store, self._ranks[self.host], len(self.hosts))

    def communicators(self, groups: Sequence[Group]) -> list[Communicator | None]:
        ranks, on_gpus = self._ranks, [group for group in groups if group.gpus]
        if on_gpus:
            told = self.jointly(partial(nccl.gpus_of, on_gpus, self.host), op="communicators")
            nccl.refuse_shared(on_gpus, told)
        watched: Callable[[Callable[[], object]], object] = partial(
            self._watched, op="communicators", blob="group"
        )

        def connected(group: Group) -> Communicator | None:
            if group.gpus:
                return nccl.connected(group, self.host, ranks, timeout=_NEVER, watched=watched)
            numbers = [ranks[host] for host in group.hosts]
            own = watched(partial(dist.new_group, numbers, backend="gloo", timeout=_NEVER))
            return GlooCommunicator(own, ranks) if isinstance(own, dist.ProcessGroup) else None

        return list(map(connected, groups))

    def all_gather(self, text: str, *, op: str = "compare", blob: str = "settings") -> Texts:
        self._count += 1
        store = PrefixStore(f"gather{self._count}", self._store)
        self._watched(partial(store.set, self.host, text), op, blob)
        texts = {self.host: text}
        for peer in self.peers:
            get = partial(_patient_get, store, peer)
            texts[peer] = self._watched(get, op, blob, peer).decode()
        return texts

    def gather(self, graph: Graph, values: Values, names: Collection[str]) -> dict[str, Tensor]:
        gathered: dict[str, Tensor] = {}
        for name in names:
            blob = graph.blobs[name]
            host, shape, dtype = blob.location.host, blob.shape or (), dtype_of(blob.dtype)
            own = host == self.host
            value = values[name].cpu() if own else torch.empty(shape, dtype=dtype)
            flat = bytes_of(value)
            send = partial(dist.broadcast, flat, src=self._ranks[host])
            self._watched(send, "gather", name, host)
            gathered[name] = flat.view(dtype).view(shape)
        return gathered

    def collect(self, text: str) -> list[str]:
        own = text.encode()
        if not self.first:
            self._watched(partial(_send_text, own), "collect", "text", self.hosts[0])
            return []
        others = [
            self._watched(partial(_receive_text, rank), "collect", "text", host)
            for rank, host in enumerate(self.hosts)
            if rank
        ]
        return [text, *others]

    def clock(self) -> Reading:
        if not self.first:
            ask = partial(estimate, _ask_time, self.now)
            return self._watched(ask, "clock", "time", self.hosts[0])
        for rank, host in enumerate(self.hosts):
            if rank:
                self._watched(partial(_tell_time, rank, self.now), "clock", "time", host)
        return Reading(self.now(), 0, 0)

    def stops(self, iteration: int, *, wanted: bool, ahead: int) -> bool:
        with suppress(HostLostError):  # the next step tells which op waits for the lost host
            if self._end is None and (
                wanted or self._watched(partial(self._store.check, [_STOP]), "stops", _STOP)
            ):
                proposed = str(iteration + ahead + 1)
                agree = partial(self._store.compare_set, _STOP, "", proposed)
                self._end = int(self._watched(agree, "stops", _STOP))
        return self._end is not None and iteration >= self._end

    def barrier(self) -> None:
        self.all_gather("", op="barrier", blob="states")

    def close(self) -> None:
        self._pulse.close()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _shared(self, key: str, value: str) -> bytes:
        """A text of the first host, on all hosts."""
        if self.first:
            self._watched(partial(self._store.set, key, value), "share", key)
        return bytes(self._watched(partial(self._store.get, key), "share", key, self.hosts[0]))

    def _watched(self, call: Callable[[], T], op: str, blob: str, host: str | None = None) -> T:
        """The result of a call that waits for other hosts, unless one of them is lost meanwhile.

        `host` is the host that answers, if it is a single one.
        """
        result, since, seen = self._caller.call(call), None, self._pulse.round()
        while not result.done():
            wait([result], timeout=_LOOK)
            if not self._lost(host):
                since = None
            elif since is None:
                since, seen = monotonic(), self._pulse.round()
            elif monotonic() - since > _GRACE and (
                not self.first or seen() or monotonic() - since > _LAST_WORDS
            ):
                break
        error = result.exception() if result.done() else None
        if result.done() and not isinstance(error, RuntimeError):
            return result.result()
        why = "it does not answer" if error is None else " ".join(str(error).split())[:120]
        if isinstance(error, (dist.DistNetworkError, dist.DistStoreError)) and not self.first:
            host = self.hosts[0]  # the store is there
        losses = dict(self._lost(host))
        if not losses:
            if host is None or host == self.host:
                host = self.peers[0] if len(self.peers) == 1 else self.hosts[0]
            losses = {host: why}
        name = host if host in losses else next(iter(losses))
        raise host_lost(name, losses[name], op=op, blob=blob) from error

    def _lost(self, host: str | None) -> Mapping[str, str]:
        """The lost hosts on which a call depends: `host`, or any of them."""
        if self.losses is not unheard:
            return self.losses()
        ended = {peer: ENDED for peer in self._pulse.ended if host in (None, peer)}
        return {**ended, **self._pulse.losses()}


def _send_text(text: bytes) -> None:
    """Send a text to the first host: its length, then chunks of it."""
    dist.send(torch.tensor([len(text)]), dst=0)
    for start in range(0, len(text), _CHUNK):
        chunk = bytearray(text[start : start + _CHUNK])
        dist.send(torch.frombuffer(chunk, dtype=torch.uint8), dst=0)


def _receive_text(rank: int) -> str:
    length = torch.empty(1, dtype=torch.int64)
    dist.recv(length, src=rank)
    text = torch.empty(int(length), dtype=torch.uint8)
    for start in range(0, len(text), _CHUNK):
        dist.recv(text[start : start + _CHUNK], src=rank)
    return text.numpy().tobytes().decode()


def _ask_time() -> int:
    time = torch.zeros(1, dtype=torch.int64)
    dist.send(time, dst=0)
    dist.recv(time, src=0)
    return int(time)


def _tell_time(rank: int, now: Callable[[], int]) -> None:
    """Answer the questions of one host."""
    time = torch.zeros(1, dtype=torch.int64)
    for _ in range(ROUNDS):
        dist.recv(time, src=rank)
        time[0] = now()
        dist.send(time, dst=rank)


def _patient_get(store: PrefixStore, key: str) -> bytes:
    """The value of a key, waiting as long as it takes until it is there."""
    store.wait([key], _NEVER)
    return bytes(store.get(key))


class _Caller:
    """A thread for calls that may never return; it does not keep the process alive."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._serve, name="world", daemon=True).start()

    def call(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        self._calls.put(run)
        return future

    def _serve(self) -> None:
        while True:
            self._calls.get()()
