"""Transport `shm`: processes of one machine, straight into the receiver's memory.

The slots of each sender are an anonymous file in memory. Notifications are messages of 16 bytes in
a pipe, on which the receiver sleeps; one read takes all that are there. The receiver passes both to
the sender over a Unix socket. They have no names, so they vanish with their processes however those
end. A pipe ends when its writer has ended, after all that is in it.

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
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from io import FileIO
from pathlib import Path

import torch
from torch import Tensor

from purine.errors import RunError
from purine.lowering.hosts import Channel
from purine.transports.base import (
    Arrived,
    Event,
    Granted,
    Lost,
    Region,
    Slots,
    Store,
    Transport,
    regions_of,
)
from purine.transports.inbox import CREDIT, MESSAGE, Inbox

__all__ = ["ShmTransport"]

_HELLO = 4096
_MANY = 1 << 16
"""Bytes that a read takes at most: what a pipe holds."""
_LOOK = 100
"""Milliseconds after which a put that waits for room looks whether this host has closed."""
_PATIENCE = 60.0
"""Seconds that a host waits for the others to connect."""


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
        self._inbox = Inbox(self._write)
        self._messages = memoryview(bytearray(_MANY))
        """What was read last."""
        self._closed = False

    def open(
        self,
        peers: Sequence[str],
        incoming: Sequence[Channel],
        outgoing: Sequence[Channel],
        slots: int,
    ) -> None:
        self._incoming = regions_of(incoming, slots, by_source=True)
        self._outgoing = regions_of(outgoing, slots, by_source=False)
        folder = Path(tempfile.mkdtemp(prefix="purine-"))  # for this user alone
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
                server.bind(str(folder / "socket"))
                server.listen(len(peers) + 1)
                server.settimeout(_PATIENCE)
                self._store.set(f"shm/{self._host}", str(folder / "socket"))
                above = {peer for peer in peers if peer > self._host}
                for peer in peers:
                    if peer < self._host:
                        self._connect(peer)
                while above:
                    above.discard(self._accept(server))
        except TimeoutError as error:
            raise RunError(
                f"host {self._host!r} waited {_PATIENCE:.0f} s for other hosts",
                expected=f"connections from {', '.join(sorted(above))}",
                found="none",
                remedy="see why they did not start, and start all hosts again",
            ) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for peer, connection in self._sockets.items():
            self._offer(peer, connection)
        for peer, connection in self._sockets.items():
            self._accept_offer(peer, connection)
            connection.close()
            self._inbox.add(self._take[peer].fileno(), partial(self._read, peer))
        self._sockets.clear()

    def slot(self, peer: str, channel: int, version: int) -> Tensor | None:
        return self._slots[peer].value(channel, version)

    def put(self, peer: str, channel: int, version: int, value: Tensor | None) -> None:
        if value is not None:
            self._remote[peer].fill(channel, version, value)
        pipe, message = self._give[peer], MESSAGE.pack(channel, 0, version)
        try:
            while pipe.write(message) is None:
                _wait_for_room(pipe)
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

    def _write(self, peer: str, message: bytes) -> int:
        try:
            return self._give[peer].write(message) or 0
        except ValueError as error:  # this host has closed it
            raise BrokenPipeError from error

    def _read(self, peer: str) -> list[Event]:
        """The messages of a peer that are there now."""
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

    def _connect(self, peer: str) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(_PATIENCE)
        connection.connect(self._store.get(f"shm/{peer}").decode())
        connection.send(self._secret + self._host.encode())
        self._sockets[peer] = connection

    def _accept(self, server: socket.socket) -> str | None:
        """The peer that connected, or None for a stranger, who is sent away."""
        connection, _ = server.accept()
        connection.settimeout(_PATIENCE)
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
        """Make the memory and the pipe for what comes from a peer, and pass them to the peer."""
        region = self._incoming.get(peer)
        size = region.size if region else 0
        memory = os.memfd_create("purine", os.MFD_CLOEXEC)
        take, give = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._take[peer] = FileIO(take)
        try:
            os.ftruncate(memory, max(size, 1))
            if region is not None:
                self._slots[peer] = Slots(region, _mapped(memory, size))
            socket.send_fds(connection, [size.to_bytes(8, "little")], [memory, give])
        finally:
            os.close(memory)
            os.close(give)  # the peer alone holds it, so that it ends with the peer

    def _accept_offer(self, peer: str, connection: socket.socket) -> None:
        message, descriptors, _, _ = socket.recv_fds(connection, 8, 2, socket.MSG_CMSG_CLOEXEC)
        region = self._outgoing.get(peer)
        size, expected = int.from_bytes(message, "little"), region.size if region else 0
        if len(descriptors) != 2:
            raise RunError(
                f"host {peer!r} ended while the hosts connected",
                expected="memory for what is sent to it",
                found="a closed connection",
                remedy="see why it ended, and start all hosts again",
            )
        memory, give = descriptors
        self._give[peer] = FileIO(give, "w")
        try:
            if size != expected:
                raise RunError(
                    f"host {peer!r} has {size} bytes for what host {self._host!r} sends",
                    expected=f"{expected} bytes",
                    found=f"{size} bytes",
                    remedy="start all hosts with the same job",
                )
            if region is not None:
                self._remote[peer] = Slots(region, _mapped(memory, size))
        finally:
            os.close(memory)


def _mapped(descriptor: int, size: int) -> Tensor:
    """The memory of a file, all of it there: a first write to a page takes longer than its copy."""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    return torch.frombuffer(mmap.mmap(descriptor, size, flags=flags), dtype=torch.uint8)


def _wait_for_room(pipe: FileIO) -> None:
    room = select.poll()
    room.register(pipe.fileno(), select.POLLOUT)
    room.poll(_LOOK)
