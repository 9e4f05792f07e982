"""Raw engines between two processes: what our transports are measured against.

Each is the least that a program needs to move bytes over one engine, in the pattern of our
exchange: rank 0 sends iterations of a few blobs each into a ring of slots at rank 1, which answers
once for each whole iteration, and at most `slots` iterations are under way. What our interface adds
is left out: headers, versions, a thread for events, the end of a host.

The default group of `torch.distributed` connects the processes, and its store lets them meet.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
import os
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from ctypes import byref, c_ubyte, c_uint, c_ulong, c_ushort, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

__all__ = ["RAW", "SMALL", "End", "Plan"]

SMALL = 8
"""Bytes of a message of which the latency is measured."""
_LINE = 64
"""Bytes between two small messages in shared memory: a cache line."""


@dataclass(frozen=True)
class Plan:
    """What is sent: the sizes of blobs, blobs of an iteration, and iterations under way."""

    sizes: tuple[int, ...]
    most_blobs: int
    slots: int
    most_bytes: int = 4 << 20
    """Bytes of an iteration, unless one blob is larger."""

    def blobs(self, size: int) -> int:
        return max(1, min(self.most_blobs, self.most_bytes // size))

    @property
    def ring(self) -> int:
        """Bytes of the largest ring of slots."""
        return self.slots * max(self.blobs(size) * size for size in self.sizes)


class End(ABC):
    """One of two processes that send to each other over one engine."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.plan, self.rank = plan, rank
        self.payload = torch.zeros(plan.ring // plan.slots, dtype=torch.uint8)
        """The blobs of an iteration, one after the other; small messages are its first bytes."""

    @abstractmethod
    def ping(self, count: int) -> None:
        """Send a small message to and fro, so many times."""

    @abstractmethod
    def stream(self, size: int, count: int) -> None:
        """Send so many iterations of blobs of a size; all have arrived when rank 0 returns."""

    @abstractmethod
    def last(self, size: int, count: int) -> tuple[int, int]:
        """The first and the last byte of the last blob that arrived, at rank 1."""

    def close(self) -> None:  # noqa: B027 (most have nothing to do)
        """Leave."""

    def sources(self, size: int) -> list[Any]:
        """The blobs of an iteration at the sender, as arrays."""
        parts = self.payload.numpy()
        return [parts[k * size : (k + 1) * size] for k in range(self.plan.blobs(size))]

    def targets(self, memory: Any, size: int) -> list[Any]:
        """All slots of the ring, in the order in which they are filled."""
        count = self.plan.slots * self.plan.blobs(size)
        return [memory[k * size : (k + 1) * size] for k in range(count)]

    def ends_of(self, memory: Any, size: int, count: int) -> tuple[int, int]:
        blobs = self.plan.blobs(size)
        slot = self.targets(memory, size)[(count * blobs - 1) % (self.plan.slots * blobs)]
        return int(slot[0]), int(slot[size - 1])


def _store() -> dist.Store:
    return dist.PrefixStore("raw", dist.distributed_c10d._get_default_store())


class SharedMemory(End):
    """A copy into mapped memory, and a byte in a pipe to wake the other process."""

    def __init__(self, plan: Plan, rank: int) -> None:
        super().__init__(plan, rank)
        store = _store()
        size = plan.ring + 2 * _LINE
        if rank == 1:
            memory = os.memfd_create("ring")
            os.ftruncate(memory, size)
            (self._take, told), (telling, self._give) = os.pipe(), os.pipe()
            ends = (memory, told, telling)
            store.set("ends", " ".join(f"/proc/{os.getpid()}/fd/{end}" for end in ends))
            store.get("opened")
        else:
            shared, put, take = store.get("ends").decode().split()
            memory = os.open(shared, os.O_RDWR)
            self._give, self._take = os.open(put, os.O_WRONLY), os.open(take, os.O_RDONLY)
            store.set("opened", "")
        self._bytes = memoryview(mmap.mmap(memory, size))

    def ping(self, count: int) -> None:
        own = memoryview(self.payload[:SMALL].numpy())
        place = self.plan.ring + self.rank * _LINE
        for _ in range(count):
            if self.rank == 1:
                os.read(self._take, 1)
            self._bytes[place : place + SMALL] = own
            os.write(self._give, b"x")
            if self.rank == 0:
                os.read(self._take, 1)

    def stream(self, size: int, count: int) -> None:
        give, take, slots, blobs = self._give, self._take, self.plan.slots, self.plan.blobs(size)
        if self.rank == 1:
            arrived = 0
            for iteration in range(1, count + 1):
                while arrived < iteration * blobs:
                    arrived += len(os.read(take, 1 << 16))
                os.write(give, b"x")
            return
        sources = [memoryview(source) for source in self.sources(size)]
        targets = self.targets(self._bytes, size)
        completed = 0
        for iteration in range(count):
            while iteration >= completed + slots:
                completed += len(os.read(take, 1 << 16))
            start = iteration % slots * blobs
            for blob, source in enumerate(sources):
                targets[start + blob][:] = source
                os.write(give, b"x")
        while completed < count:
            completed += len(os.read(take, 1 << 16))

    def last(self, size: int, count: int) -> tuple[int, int]:
        return self.ends_of(self._bytes, size, count)


class Socket(End):
    """A TCP connection."""

    def __init__(self, plan: Plan, rank: int) -> None:
        super().__init__(plan, rank)
        store = _store()
        self._ring = memoryview(bytearray(plan.ring if rank else SMALL))
        if rank == 1:
            with socket.create_server(("127.0.0.1", 0)) as server:
                store.set("port", str(server.getsockname()[1]))
                self._socket, _ = server.accept()
        else:
            self._socket = socket.create_connection(("127.0.0.1", int(store.get("port"))))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _receive(self, target: memoryview) -> None:
        if self._socket.recv_into(target, len(target), socket.MSG_WAITALL) != len(target):
            raise ConnectionError("the other process is gone")

    def ping(self, count: int) -> None:
        own, target = memoryview(self.payload[:SMALL].numpy()), self._ring[:SMALL]
        for _ in range(count):
            if self.rank == 1:
                self._receive(target)
            self._socket.sendall(own)
            if self.rank == 0:
                self._receive(target)

    def stream(self, size: int, count: int) -> None:
        slots, blobs = self.plan.slots, self.plan.blobs(size)
        if self.rank == 1:
            targets = self.targets(self._ring, size)
            for iteration in range(count):
                start = iteration % slots * blobs
                for target in targets[start : start + blobs]:
                    self._receive(target)
                self._socket.sendall(b"x")
            return
        sources, completed = [memoryview(source) for source in self.sources(size)], 0
        for iteration in range(count):
            while iteration >= completed + slots:
                completed += len(self._socket.recv(1 << 16))
            for source in sources:
                self._socket.sendall(source)
        while completed < count:
            completed += len(self._socket.recv(1 << 16))

    def last(self, size: int, count: int) -> tuple[int, int]:
        return self.ends_of(self._ring, size, count)


class Gloo(End):
    """Sends and receives of `torch.distributed`, each asked for as soon as its slot is free.

    As many are unsent as ours has: `_MESSAGES`, and `_BYTES` unless one is larger.
    """

    _MESSAGES, _BYTES = 16, 1 << 20

    def __init__(self, plan: Plan, rank: int) -> None:
        super().__init__(plan, rank)
        self._ring = torch.zeros(plan.ring if rank else SMALL, dtype=torch.uint8)

    def ping(self, count: int) -> None:
        own, target = self.payload[:SMALL], self._ring[:SMALL]
        for _ in range(count):
            if self.rank == 1:
                dist.recv(target, 0)
            dist.send(own, 1 - self.rank)
            if self.rank == 0:
                dist.recv(target, 1)

    def stream(self, size: int, count: int) -> None:
        slots, blobs = self.plan.slots, self.plan.blobs(size)
        answers, under_way = deque[Any](), deque[Any]()
        if self.rank == 1:
            targets = self.targets(self._ring, size)
            under_way += (dist.irecv(target, 0) for target in targets[: count * blobs])
            for iteration in range(count):
                for _ in range(blobs):
                    under_way.popleft().wait()
                if iteration + slots < count:
                    start = iteration % slots * blobs
                    under_way += (dist.irecv(slot, 0) for slot in targets[start : start + blobs])
                answers.append(dist.isend(self._ring[:SMALL], 0))
            for answer in answers:
                answer.wait()
            return
        sources = [self.payload[k * size : (k + 1) * size] for k in range(blobs)]
        most = max(1, min(self._MESSAGES, self._BYTES // size))
        answers += (dist.irecv(self._ring, 1) for _ in range(min(slots, count)))
        for iteration in range(count):
            if iteration >= slots:
                answers.popleft().wait()
                answers.append(dist.irecv(self._ring, 1))
            for source in sources:
                if len(under_way) == most:
                    under_way.popleft().wait()
                under_way.append(dist.isend(source, 1))
        for work in (*under_way, *answers):
            work.wait()

    def last(self, size: int, count: int) -> tuple[int, int]:
        return self.ends_of(self._ring, size, count)


class Mpi(End):
    """Puts into a window of MPI, each with a flush, and a message to tell of it.

    Receives of MPI spin. A host has its compute on the same cores, so this one sleeps between two
    looks, as ours does.
    """

    _PAUSE = 50e-6

    def __init__(self, plan: Plan, rank: int) -> None:
        super().__init__(plan, rank)
        from mpi4py import MPI

        self._comm, self._byte = MPI.COMM_WORLD, MPI.BYTE
        self._window = MPI.Win.Allocate((plan.ring if rank else 0) + SMALL, 1, comm=self._comm)
        self._window.Lock_all()
        self._memory = np.frombuffer(self._window.tomemory(), dtype=np.uint8)

    def _put(self, source: Any, offset: int) -> None:
        self._window.Put([source, self._byte], 1 - self.rank, offset)
        self._window.Flush(1 - self.rank)
        self._tell()

    def _tell(self) -> None:
        self._comm.Send([bytearray(1), self._byte], 1 - self.rank)

    def _hear(self) -> None:
        peer, missed = 1 - self.rank, 0
        while not self._comm.Iprobe(peer):  # one that finds none may have fetched a message
            missed += 1
            if missed > 1:
                time.sleep(self._PAUSE)
        self._comm.Recv([bytearray(1), self._byte], 1 - self.rank)

    def ping(self, count: int) -> None:
        own = self.payload[:SMALL].numpy()
        for _ in range(count):
            if self.rank == 1:
                self._hear()
            self._put(own, 0)
            if self.rank == 0:
                self._hear()

    def stream(self, size: int, count: int) -> None:
        slots, blobs = self.plan.slots, self.plan.blobs(size)
        if self.rank == 1:
            for _ in range(count):
                for _ in range(blobs):
                    self._hear()
                self._tell()
            self._window.Sync()
            return
        sources = self.sources(size)
        for iteration in range(count):
            if iteration >= slots:
                self._hear()
            start = iteration % slots * blobs
            for blob, source in enumerate(sources):
                self._put(source, (start + blob) * size)
        for _ in range(min(slots, count)):
            self._hear()

    def last(self, size: int, count: int) -> tuple[int, int]:
        return self.ends_of(self._memory, size, count)

    def close(self) -> None:
        self._window.Unlock_all()
        self._window.Free()


class Gpi2(End):
    """`gaspi_write_notify` of GPI-2 out of one segment into another.

    Its waits spin, which keeps its own thread from the core. Like ours it asks without waiting, and
    sleeps between two looks.
    """

    _SEGMENT, _QUEUE, _BLOCK, _NOW = 200, 7, 2**64 - 1, 0
    _LATER = 1
    """What a call returns whose time is up."""
    _PAUSE = 50e-6
    _OFTEN = 8
    """Iterations after which the queue is emptied, before it is full."""

    def __init__(self, plan: Plan, rank: int) -> None:
        super().__init__(plan, rank)
        from purine.transports.gpi2 import LIBRARY, join

        store = _store()
        join(store, rank, 2)  # a process joins GPI-2 once, whoever comes first
        library = os.environ.get(LIBRARY) or ctypes.util.find_library("GPI2")
        self._library = ctypes.CDLL(library)
        number, word, long = c_ubyte, c_uint, c_ulong
        place = (number, long, c_ushort, number, long, long)
        self._write_notify = self._call("gaspi_write_notify", *place, word, word, number, long)
        self._notify = self._call("gaspi_notify", number, c_ushort, word, word, number, long)
        self._waitsome = self._call("gaspi_notify_waitsome", number, word, word, c_void_p, long)
        self._reset = self._call("gaspi_notify_reset", number, word, c_void_p)
        self._wait = self._call("gaspi_wait", number, long)
        create = self._call("gaspi_segment_create", number, long, number, long, long)
        self._sizes = (self.payload.numel(), plan.ring)
        size = self._sizes[rank]
        create(self._SEGMENT, size + SMALL, 0, self._BLOCK, 0)
        pointer = c_void_p()
        self._call("gaspi_segment_ptr", number, c_void_p)(self._SEGMENT, byref(pointer))
        assert pointer.value is not None
        memory = (c_ubyte * (size + SMALL)).from_address(pointer.value)
        self._memory = np.frombuffer(memory, dtype=np.uint8)
        if rank == 0:  # sends straight out of its segment
            self.payload = torch.from_numpy(self._memory[:size])
        self._answer = plan.slots * plan.most_blobs
        """The notification of answers and of small messages, after one for each slot."""

    def _call(self, name: str, *kinds: Any) -> Any:
        function = getattr(self._library, name)
        function.argtypes, function.restype = kinds, ctypes.c_int

        def checked(*arguments: Any) -> bool:
            code = function(*arguments)
            if code not in (0, self._LATER):
                raise RuntimeError(f"{name} of GPI-2 failed with {code}")
            return code == 0

        return checked

    def _write(self, source: int, rank: int, target: int, size: int, notification: int) -> None:
        segment, queue = self._SEGMENT, self._QUEUE
        where = (segment, source, rank, segment, target, size)
        self._write_notify(*where, notification, 1, queue, self._BLOCK)

    def _tell(self, value: int) -> None:
        self._notify(self._SEGMENT, 0, self._answer, value, self._QUEUE, self._BLOCK)

    def _drain(self) -> None:
        while not self._wait(self._QUEUE, self._NOW):
            time.sleep(self._PAUSE)

    def _hear(self, notification: int) -> int:
        first, value = c_uint(), c_uint()
        while not value.value:
            if self._waitsome(self._SEGMENT, notification, 1, byref(first), self._NOW):
                self._reset(self._SEGMENT, first.value, byref(value))
            else:
                time.sleep(self._PAUSE)
        return value.value

    def ping(self, count: int) -> None:
        answer, peer = self._answer, 1 - self.rank
        source, target = self._sizes[self.rank], self._sizes[peer]  # behind all blobs
        for _ in range(count):
            if self.rank == 1:
                self._hear(answer)
            self._write(source, peer, target, SMALL, answer)
            if self.rank == 0:
                self._hear(answer)
            self._drain()

    def stream(self, size: int, count: int) -> None:
        slots, blobs = self.plan.slots, self.plan.blobs(size)
        if self.rank == 1:
            for iteration in range(count):
                start = iteration % slots * blobs
                for blob in range(blobs):
                    self._hear(start + blob)
                self._tell(iteration + 1)
                if iteration % self._OFTEN == 0:
                    self._drain()
            self._drain()
            return
        completed = 0
        for iteration in range(count):
            while iteration >= completed + slots:
                completed = self._hear(self._answer)
            start = iteration % slots * blobs
            for blob in range(blobs):
                target = (start + blob) * size
                self._write(blob * size, 1, target, size, start + blob)
            if iteration % self._OFTEN == 0:
                self._drain()
        while completed < count:
            completed = self._hear(self._answer)
        self._drain()

    def last(self, size: int, count: int) -> tuple[int, int]:
        return self.ends_of(self._memory, size, count)


RAW: dict[str, tuple[str, type[End]]] = {
    "shm": ("memcpy", SharedMemory),
    "tcp": ("socket", Socket),
    "torchdist": ("gloo", Gloo),
    "mpi": ("mpi-rma", Mpi),
    "gaspi": ("gpi-2", Gpi2),
}
"""By transport of ours the name of its raw engine, and its ends."""
