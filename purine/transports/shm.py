"""Transport `shm`: processes of one machine, straight into the receiver's memory.

The slots of each sender are an anonymous file in memory. Notifications are messages of 16 bytes in
a pipe, on which the receiver sleeps; one read takes all messages that are there. The receiver
passes both to the sender over a Unix socket. They have no names, so they vanish with their
processes, however those end. A pipe ends when its writer has ended, after all its messages.

Only processes of the same user that know the secret of the job are accepted.
"""

from __future__ import annotations

import hmac
import mmap
import os
import select
import shutil
import socket
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from ctypes import CDLL, c_size_t, c_void_p
from fcntl import F_GETPIPE_SZ, F_SETPIPE_SZ, fcntl
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from purine.errors import RunError
from purine.transports.base import (
    PATIENCE,
    Arrived,
    Board,
    Channels,
    Event,
    Granted,
    Hosts,
    Lost,
    Region,
    Slots,
    Store,
    Transport,
    none_connected,
    regions_of,
)
from purine.transports.inbox import CREDIT, MESSAGE, Inbox

__all__ = ["ShmTransport"]

_HELLO = 4096
_SIZES = struct.Struct("<QQ")
"""The bytes for what a peer sends, and those of the board."""
_MANY = 1 << 16
"""Bytes that a read takes at most: what a pipe holds."""
_CREDITS = 256
"""Credits that may be unread in a pipe beside the messages of puts."""
_LOOK = 100
"""Milliseconds after which a put that waits for room looks whether this host has closed."""

_Target: TypeAlias = tuple[torch.dtype | None, int, c_void_p, c_size_t]
"""A slot whose bytes are those of a plain value of this dtype (with None, of no value): its size,
its address, and its size once more."""
_NO_TARGET: _Target = (None, 0, c_void_p(), c_size_t())
_copy = CDLL(None).memmove
"""Without a prototype. Its arguments are C values, most of which are made once."""
_copy.restype = None


class ShmTransport(Transport):
    """The end of one host."""

    def __init__(self, host: str, store: Store, secret: bytes) -> None:
        self._host, self._store, self._secret = host, store, secret
        self._sockets: dict[str, socket.socket] = {}
        """The connections over which memory and pipes are passed, as long as hosts connect."""
        self._incoming: Mapping[str, Region] = {}
        self._outgoing: Mapping[str, Region] = {}
        self._slots: dict[str, Slots] = {}
        self._remote: dict[str, Slots] = {}
        self._give: dict[str, FileIO] = {}
        """By peer the pipe for what this host tells it."""
        self._take: dict[str, FileIO] = {}
        """By peer the pipe for what it tells this host."""
        self._memory: int | None = None
        """The file of the board, while hosts connect. The first host makes it."""
        self._board: Slots | None = None
        self._posts: Mapping[tuple[str, int], int] = {}
        """By peer and channel where on the board that is what comes from there."""
        self._tell: Mapping[str, Callable[[bytes], int | None]] = {}
        """By peer what writes to its pipe."""
        self._targets: dict[tuple[str, int], Sequence[_Target]] = {}
        """By peer and channel the slots there; each is made once."""
        self._own: Mapping[tuple[str, int], int] = {}
        """By peer and channel where on the board this host posts."""
        self._newest: dict[int, int] = {}
        """By where it posts the version that this host has posted last."""
        self._inbox = Inbox(self._write)
        self._messages = memoryview(bytearray(_MANY))
        """What was read last."""
        self._closed = False

    def open(self, peers: Hosts, incoming: Channels, outgoing: Channels, slots: int) -> None:
        apart = [[c for c in ends if c.board is None] for ends in (incoming, outgoing)]
        self._incoming = regions_of(apart[0], slots, by_source=True)
        self._outgoing = regions_of(apart[1], slots, by_source=False)
        self._posts = {(c.source, c.number): c.board for c in incoming if c.board is not None}
        self._own = {(c.target, c.number): c.board for c in outgoing if c.board is not None}
        posted = [c for c in (*incoming, *outgoing) if c.board is not None]
        self._region = Board(posted, slots)
        if posted and self._host < min(peers):
            self._memory = os.memfd_create("purine", os.MFD_CLOEXEC)
            os.ftruncate(self._memory, self._region.size)
        folder = Path(tempfile.mkdtemp(prefix="purine-"))  # for this user alone
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
                server.bind(str(folder / "socket"))
                server.listen(len(peers) + 1)
                server.settimeout(PATIENCE)
                self._store.set(f"shm/{self._host}", str(folder / "socket"))
                above = {peer for peer in peers if peer > self._host}
                for peer in peers:
                    if peer < self._host:
                        self._connect(peer)
                while above:
                    above.discard(self._accept(server))
        except TimeoutError as error:
            raise none_connected(f"host {self._host!r}", sorted(above)) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for peer, connection in self._sockets.items():
            self._offer(peer, connection)
        for peer, connection in self._sockets.items():
            self._accept_offer(peer, connection)
            connection.close()
            self._inbox.add(self._take[peer].fileno(), partial(self._read, peer))
        self._sockets.clear()
        if self._memory is not None:
            self._board = Slots(self._region, _mapped(self._memory, self._region.size))
            os.close(self._memory)
        self._tell = {peer: pipe.write for peer, pipe in self._give.items()}
        puts = Counter(channel.target for channel in outgoing)
        self.prompt = all(self._has_room(peer, puts[peer] * slots) for peer in peers)

    def slot(self, peer: str, channel: int, version: int) -> Tensor | None:
        start = self._posts.get((peer, channel))
        if start is not None and self._board is not None:
            return self._board.value(start, version)
        return self._slots[peer].value(channel, version)

    def posted(self, peer: str, channel: int, version: int, value: Tensor) -> Tensor:
        own = None if self._board is None else self._board.value(self._own[peer, channel], version)
        assert own is not None
        return own

    def put(self, peer: str, channel: int, version: int, value: Tensor | None) -> None:
        if value is not None:
            try:
                targets = self._targets[peer, channel]
            except KeyError:
                targets = self._targets[peer, channel] = self._targets_of(peer, channel)
            dtype, size, address, length = targets[version % len(targets)]
            # in place of a call of `Slots.fill`: with 64 KiB a put takes 3 us
            if (
                value.dtype is dtype
                and value.nbytes == size
                and value.is_cpu
                and value.is_contiguous()
                and not value.is_neg()
            ):
                _copy(address, c_void_p(value.data_ptr()), length)
            else:
                self._fill(peer, channel, version, value)
        message, tell = MESSAGE.pack(channel, 0, version), self._tell[peer]
        try:
            while tell(message) is None:
                _wait_for_room(self._give[peer])
        except (OSError, ValueError):  # closed by the peer, which `wait` reports, or by this host
            return

    def credit(self, peer: str, completed: int, sent: int = 0) -> None:
        self._inbox.credit(peer, completed, sent)

    def wait(self, timeout: float) -> list[Event]:
        return self._inbox.wait(timeout)

    def wake(self) -> None:
        self._inbox.wake()

    def close(self, lost: Collection[str] = ()) -> None:
        if self._closed:
            return
        self._closed = True
        for connection in self._sockets.values():  # of hosts that did not connect
            connection.close()
        for pipe in (*self._give.values(), *self._take.values()):
            pipe.close()
        self._inbox.close()

    def _targets_of(self, peer: str, channel: int) -> Sequence[_Target]:
        """The slots of a channel, if they are at the peer and not on the board."""
        remote = None if (peer, channel) in self._own else self._remote.get(peer)
        slots = [] if remote is None else remote.addresses(channel)
        return [(dtype, n, c_void_p(at), c_size_t(n)) for dtype, n, at in slots] or [_NO_TARGET]

    def _fill(self, peer: str, channel: int, version: int, value: Tensor) -> None:
        """Copy any value into its slot at a peer, or on the board."""
        start = self._own.get((peer, channel))
        if start is None or self._board is None:
            self._remote[peer].fill(channel, version, value)
        elif self._newest.get(start) != version:  # once for all peers
            self._board.fill(start, version, value)
            self._newest[start] = version

    def _write(self, peer: str, message: bytes) -> int:
        try:
            return self._give[peer].write(message) or 0
        except ValueError as error:  # this host has closed it
            raise BrokenPipeError from error

    def _read(self, peer: str) -> list[Event]:
        """The messages of a peer that have arrived."""
        pipe, why = self._take[peer], "its process ended"
        try:
            count = pipe.readinto(self._messages)
        except OSError as error:
            count, why = 0, error.strerror or str(error)
        if count is None:
            return []
        if not count:
            self._inbox.remove(pipe.fileno())
            return [Lost(peer, why)]
        return [
            Granted(peer, value, sent) if channel == CREDIT else Arrived(peer, channel, value)
            for channel, sent, value in MESSAGE.iter_unpack(self._messages[:count])
        ]

    def _has_room(self, peer: str, puts: int) -> bool:
        """Whether the pipe to a peer has room for all messages that can be in flight."""
        needed, pipe = (puts + _CREDITS) * MESSAGE.size, self._give[peer].fileno()
        try:
            if fcntl(pipe, F_GETPIPE_SZ) < needed:
                fcntl(pipe, F_SETPIPE_SZ, needed)
        except OSError:  # more than the system allows
            return False
        return True

    def _connect(self, peer: str) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(PATIENCE)
        connection.connect(self._store.get(f"shm/{peer}").decode())
        connection.send(self._secret + self._host.encode())
        self._sockets[peer] = connection

    def _accept(self, server: socket.socket) -> str | None:
        """The peer that connected, or None for a stranger, who is rejected."""
        connection, _ = server.accept()
        connection.settimeout(PATIENCE)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _, user, _ = struct.unpack("3i", credentials)
        hello = connection.recv(_HELLO)
        length = len(self._secret)
        if user != os.getuid() or not hmac.compare_digest(hello[:length], self._secret):
            connection.close()
            return None
        peer = hello[length:].decode()
        self._sockets[peer] = connection
        return peer

    def _offer(self, peer: str, connection: socket.socket) -> None:
        """Create the memory and the pipe for the values of a peer, and pass them to the peer."""
        region = self._incoming.get(peer)
        size = region.size if region else 0
        memory = os.memfd_create("purine", os.MFD_CLOEXEC)
        take, give = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._take[peer] = FileIO(take)
        try:
            os.ftruncate(memory, max(size, 1))
            if region is not None:
                self._slots[peer] = Slots(region, _mapped(memory, size))
            shared = [] if self._memory is None or peer < self._host else [self._memory]
            message = _SIZES.pack(size, self._region.size)
            socket.send_fds(connection, [message], [memory, give, *shared])
        finally:
            os.close(memory)
            os.close(give)  # the peer alone holds it, so that it ends with the peer

    def _accept_offer(self, peer: str, connection: socket.socket) -> None:
        message, descriptors, _, _ = socket.recv_fds(
            connection, _SIZES.size, 3, socket.MSG_CMSG_CLOEXEC
        )
        region = self._outgoing.get(peer)
        if len(descriptors) < 2:
            raise RunError(
                f"host {peer!r} ended while the hosts connected",
                expected="memory for what is sent to it",
                found="a closed connection",
                remedy="see why it ended, and start all hosts again",
            )
        memory, give, *shared = descriptors
        self._give[peer] = FileIO(give, "w")
        (self._memory,) = shared or (self._memory,)
        sizes = _SIZES.unpack(message)
        size, expected = sizes[0], (region.size if region else 0, self._region.size)
        try:
            if sizes != expected:
                raise RunError(
                    f"host {peer!r} has {sizes} bytes for what host {self._host!r} sends and posts",
                    expected=f"{expected} bytes",
                    found=f"{sizes} bytes",
                    remedy="start all hosts with the same job",
                )
            if region is not None:
                self._remote[peer] = Slots(region, _mapped(memory, size))
        finally:
            os.close(memory)


def _mapped(descriptor: int, size: int) -> Tensor:
    """The memory of a file, with all pages mapped: the first write to a page takes longer than its
    copy."""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    return torch.frombuffer(mmap.mmap(descriptor, size, flags=flags), dtype=torch.uint8)


def _wait_for_room(pipe: FileIO) -> None:
    room = select.poll()
    room.register(pipe.fileno(), select.POLLOUT)
    room.poll(_LOOK)
