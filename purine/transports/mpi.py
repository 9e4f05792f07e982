"""Transport `mpi`: puts into windows of MPI, for hosts that `mpiexec` or `srun` started.

The slots of a host are one window of `MPI_Win_allocate`, which its peers write without its help. A
put writes the payload, waits until it is in the window (flush), and then sends a message of 24
bytes. So a notification is never seen before its payload. Messages of one sender keep their order,
so the last one, which announces its end, is seen after all its puts.

Calls that all hosts make together (creating and freeing a window, finalizing MPI) hang if one of
them is gone. Here they are made only when all hosts are known to be there, with bounded waits.
"""

from __future__ import annotations

import atexit
import re
import threading
from array import array
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from purine.errors import ConfigError, RunError
from purine.transports.base import (
    ENDED,
    FAREWELL,
    PATIENCE,
    Arrived,
    Channels,
    Event,
    Granted,
    Hosts,
    Lost,
    Region,
    Slots,
    Transport,
    none_connected,
    regions_of,
)

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["MpiTransport", "check_job"]

_CREDIT, _END = -1, -2
"""What a message has in the place of a channel when it is not about a put."""
_ALIGNMENT = 64
_SHORTEST, _LONGEST = 50e-6, 1e-3
"""Seconds between two looks for messages: they grow while none comes."""
_SELDOM = 500e-6
"""Seconds between two looks beside puts: being woken in the middle of one costs 10 us."""


class _Library:
    """MPI in this process: initialized by the first transport, finalized when the process ends."""

    def __init__(self) -> None:
        try:
            import mpi4py

            mpi4py.rc.finalize = False  # it would hang when a host is gone; see `_finalize`
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise ConfigError(
                "transport 'mpi' cannot be used",
                expected="the package mpi4py and an MPI library",
                found=" ".join(str(error).split())[:200],
                remedy="pip install 'purine[mpi]', and an MPI: a module of the cluster, or "
                "pip install mpich",
            ) from error
        self.MPI = MPI
        level = MPI.Query_thread()
        if level < MPI.THREAD_SERIALIZED:
            raise ConfigError(
                "transport 'mpi' calls MPI from several threads",
                expected="MPI_THREAD_MULTIPLE or MPI_THREAD_SERIALIZED",
                found=f"level {level}",
                remedy="use an MPI library with threads, or PURINE_TRANSPORT=torchdist",
            )
        self.guard: AbstractContextManager[object] = (
            nullcontext() if level >= MPI.THREAD_MULTIPLE else threading.RLock()
        )
        self.lost = False
        """Whether a peer was not there to end a transport together."""
        self.stuck = False
        """Whether a thread is left in a call that does not return."""
        atexit.register(self._finalize)

    def finished(self, request: MPI.Request, seconds: float) -> bool:
        """Whether a request completes before the timeout."""
        ends, pause = monotonic() + seconds, _SHORTEST
        while True:
            with self.guard:
                if request.Test():
                    return True
            if monotonic() > ends:
                return False
            sleep(pause)
            pause = min(2 * pause, _LONGEST)

    def _finalize(self) -> None:
        """Finalize MPI if all hosts are there to do so; otherwise leave that to `mpiexec`."""
        MPI = self.MPI
        if MPI.Is_finalized() or self.stuck:
            return
        with suppress(MPI.Exception):
            together = MPI.COMM_WORLD.Ibarrier()
            if self.finished(together, FAREWELL if self.lost else PATIENCE):
                MPI.Finalize()


_library = cache(_Library)


def check_job(rank: int, size: int) -> None:
    """Raise `ConfigError` unless this process is number `rank` of an MPI job of this size."""
    world = _library().MPI.COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (rank, size):
        raise ConfigError(
            "transport 'mpi' needs hosts that were started by MPI",
            expected=f"process {rank} of an MPI job of {size}",
            found=f"process {world.Get_rank()} of an MPI job of {world.Get_size()}",
            remedy=f"start with mpiexec -n {size} python -m purine train ..., with the mpiexec of "
            "the MPI library of mpi4py, and not with torchrun or purine launch",
        )


class MpiTransport(Transport):
    """The end of one host. `ranks` are the numbers of all hosts in the MPI job.

    With a `link` these hosts are a part of the job: only they open the transport of this number.
    """

    def __init__(self, ranks: Mapping[str, int], *, link: int | None = None) -> None:
        self._members = None if link is None else tuple(ranks.values())
        self._link = link or 0
        if link is not None:
            ranks = {host: number for number, host in enumerate(ranks)}
        self._library = _library()
        self._guard, self._MPI = self._library.guard, self._library.MPI
        self._ranks = ranks
        self._linked: tuple[str, ...] = ()
        self._peers: dict[int, str] = {}
        """By rank, the peers from which more may come."""
        self._broken = False
        """Whether a call that concerns a peer has failed."""
        self._incoming: Mapping[str, Region] = {}
        self._outgoing: Mapping[str, Region] = {}
        self._slots: dict[str, Slots] = {}
        self._remote: dict[str, int] = {}
        """By peer, where the slots of this host begin in its window."""
        self._failed: deque[Lost] = deque()
        """Peers to which a put or a message failed, until `wait` reports them."""
        self._sent: deque[MPI.Request] = deque()
        """Messages on their way: a request keeps the buffer of its message alive."""
        self._bell = threading.Lock()
        """Free when `wait` is to return. An `Event` takes much longer to wait for."""
        self._bell.acquire()
        self._reading = threading.Lock()
        """Held while messages are taken, which keeps their order."""
        self._heard: deque[Event] = deque()
        """What puts have found, until `wait` reports it."""
        self._putting: set[int] = set()
        """The ranks that a put is under way to."""
        self._next_look = 0.0
        """When a put is to look for messages next."""
        self._closed = False

    def open(self, peers: Hosts, incoming: Channels, outgoing: Channels, slots: int) -> None:
        MPI = self._MPI
        self._linked = tuple(peers)
        self._peers = {self._ranks[peer]: peer for peer in peers}
        self._incoming = regions_of(incoming, slots, by_source=True)
        self._outgoing = regions_of(outgoing, slots, by_source=False)
        try:
            if self._members is None:
                with self._guard:
                    self._comm, copied = MPI.COMM_WORLD.Idup()
                self._complete(copied)  # from here on all hosts are there
            else:
                with self._guard:
                    members = MPI.COMM_WORLD.Get_group().Incl(self._members)
                    self._comm = MPI.COMM_WORLD.Create_group(members, self._link)
            _unlink_shared_files()
            self._comm.Set_errhandler(MPI.ERRORS_RETURN)
            size = sum(region.size for region in self._incoming.values())
            with self._guard:
                self._window = MPI.Win.Allocate(size + _ALIGNMENT, 1, comm=self._comm)
                self._window.Set_errhandler(MPI.ERRORS_RETURN)
                self._window.Lock_all()
            self._share()
        except MPI.Exception as error:
            raise RunError(
                "MPI cannot connect the hosts",
                expected="a window for puts on all hosts",
                found=_reason(error),
                remedy="try PURINE_TRANSPORT=torchdist",
            ) from error

    def slot(self, peer: str, channel: int, version: int) -> Tensor | None:
        return self._slots[peer].value(channel, version)

    def put(self, peer: str, channel: int, version: int, value: Tensor | None) -> None:
        rank, region = self._ranks[peer], self._outgoing[peer]
        if rank not in self._peers:
            return
        self._putting.add(rank)
        try:
            if value is not None and value.numel():
                payload = region.ordered(channel, value)
                start = self._remote[peer] + region.offset(channel, version)
                memory = self._MPI.buffer.fromaddress(payload.data_ptr(), payload.nbytes)
                with self._guard:
                    self._window.Put((memory, self._MPI.BYTE), rank, start)
                    self._window.Flush(rank)
            self._tell(rank, channel, version)
        except self._MPI.Exception as error:
            self._fail(peer, error)
        self._putting.discard(rank)
        self._look()

    def credit(self, peer: str, completed: int, sent: int = 0) -> None:
        if self._ranks[peer] in self._peers:
            try:
                self._tell(self._ranks[peer], _CREDIT, completed, sent)
            except self._MPI.Exception as error:
                self._fail(peer, error)

    def wait(self, timeout: float) -> list[Event]:
        ends, pause = monotonic() + timeout, _SHORTEST
        while True:
            with self._reading:
                events = list(self._heard) or self._messages()
                self._heard.clear()
            while self._failed:
                events.append(self._failed.popleft())
            left = ends - monotonic()
            if self._putting:  # puts look too
                pause = max(pause, _SELDOM)
            if events or left <= 0 or self._bell.acquire(timeout=min(pause, left)):
                return events
            pause = min(2 * pause, _LONGEST)

    def _look(self) -> None:
        """Read the messages that are there after a put, so that `wait` need not poll between puts.

        Being woken in the middle of a put costs its core more than polling once.
        """
        now = monotonic()
        if self._closed or now < self._next_look or not self._reading.acquire(blocking=False):
            return
        self._next_look = now + _SHORTEST
        try:
            events = self._messages()
            self._heard += events
        finally:
            self._reading.release()
        if events:
            self.wake()

    def wake(self) -> None:
        with suppress(RuntimeError):  # it is free already
            self._bell.release()

    def close(self, lost: Collection[str] = ()) -> None:
        """Free the window together with the peers. If one is gone, the system frees it."""
        if self._closed or not hasattr(self, "_window"):
            return
        self._closed = True
        for peer in self._linked:  # also those that have ended: they wait for this
            try:
                self._tell(self._ranks[peer], _END, 0)
            except self._MPI.Exception as error:
                self._fail(peer, error)
        ends = monotonic() + FAREWELL
        while self._peers and not self._broken and not lost and monotonic() < ends:
            self._messages()
            sleep(_LONGEST)
        if self._peers or self._broken or lost:
            self._library.lost = True
            return
        freeing = threading.Thread(target=self._free, name="mpi", daemon=True)
        freeing.start()
        freeing.join(FAREWELL)
        self._library.stuck |= freeing.is_alive()

    def _complete(self, request: MPI.Request) -> None:
        if not self._library.finished(request, PATIENCE):
            self._library.lost = True
            raise none_connected("this host", self._peers.values())

    def _share(self) -> None:
        """Lay out the window of this host, and exchange the offsets and sizes of slots."""
        memory = torch.frombuffer(self._window.tomemory(), dtype=torch.uint8)
        start = -memory.data_ptr() % _ALIGNMENT
        mine, theirs = (array("q", bytes(16 * len(self._ranks))) for _ in range(2))
        for peer, region in self._incoming.items():
            self._slots[peer] = Slots(region, memory[start : start + region.size])
            rank = self._ranks[peer]
            mine[2 * rank], mine[2 * rank + 1] = start, region.size
            start += region.size
        with self._guard:
            exchanged = self._comm.Ialltoall([mine, self._MPI.INT64_T], [theirs, self._MPI.INT64_T])
        self._complete(exchanged)
        for peer, region in self._outgoing.items():
            self._remote[peer], size = theirs[2 * self._ranks[peer] :][:2]
            if size != region.size:
                raise RunError(
                    f"host {peer!r} has {size} bytes for the values of this host",
                    expected=f"{region.size} bytes",
                    found=f"{size} bytes",
                    remedy="start all hosts with the same job",
                )

    def _tell(self, rank: int, channel: int, value: int, sent: int = 0) -> None:
        """Send a message; it need not be complete when this returns."""
        message = array("q", (channel, value, sent))
        with self._guard:
            request = self._comm.Isend([message, self._MPI.INT64_T], rank)
            if not request.Test():
                self._sent.append(request)
            if self._sent:
                with suppress(IndexError):  # another thread may have taken the oldest
                    oldest = self._sent.popleft()
                    if not oldest.Test():
                        self._sent.append(oldest)

    def _messages(self) -> list[Event]:
        MPI, events, message = self._MPI, list[Event](), array("q", (0, 0, 0))
        status, missed = MPI.Status(), 0
        try:
            while self._peers and missed < 2:  # a look that finds none may have fetched one
                with self._guard:
                    matched = self._comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
                    if matched is None:
                        missed += 1
                        continue
                    matched.Recv([message, MPI.INT64_T])
                missed = 0
                rank = status.Get_source()
                peer, (channel, value, sent) = self._peers.get(rank), message
                if peer is None:
                    continue
                if channel == _END:
                    del self._peers[rank]
                    events.append(Lost(peer, ENDED))
                elif channel == _CREDIT:
                    events.append(Granted(peer, value, sent))
                else:
                    events.append(Arrived(peer, channel, value))
        except MPI.Exception as error:  # MPI does not say whose message failed
            for peer in list(self._peers.values()):
                self._fail(peer, error)
        if events:
            with self._guard:
                self._window.Sync()  # what was put is seen by reads of memory that follow
        return events

    def _fail(self, peer: str, error: MPI.Exception) -> None:
        self._library.lost = self._broken = True
        if self._peers.pop(self._ranks[peer], None) is not None:
            self._failed.append(Lost(peer, _reason(error)))
            self.wake()

    def _free(self) -> None:
        with suppress(self._MPI.Exception), self._guard:
            self._window.Unlock_all()
            self._window.Free()
            self._comm.Free()


def _unlink_shared_files() -> None:
    """Unlink the files by which MPICH shares memory, so that nothing is left if hosts are killed.

    MPICH removes them when it is finalized. The processes of this machine have mapped them before
    they come here, and need their names no more.
    """
    with suppress(OSError), open("/proc/self/maps") as maps:
        for name in set(re.findall(r"/dev/shm/mpich_shm_\w+", maps.read())):
            Path(name).unlink(missing_ok=True)


def _reason(error: MPI.Exception) -> str:
    return " ".join(error.Get_error_string().split())[:120]
