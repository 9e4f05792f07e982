"""Transport `shm`: processes of one machine, straight into the receiver's memory.

The slots of each sender are an anonymous file in memory, whose descriptor the receiver passes to
the sender over a Unix socket. It has no name, so it vanishes with its processes however they end.
Notifications are messages of 16 bytes over the same socket, on which the receiver sleeps.

Only processes of the same user that know the secret of the job are accepted.
"""

from __future__ import annotations

import hmac
import mmap
import os
import selectors
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Collection, Mapping, Sequence
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
    Store,
    Transport,
    copied_into,
    regions_of,
)

__all__ = ["ShmTransport"]

_MESSAGE = struct.Struct("<iIq")
"""A channel, 0 and a version; or `_CREDIT`, how many puts were made, and a count of iterations."""
_CREDIT = -1
_COUNT = (1 << 32) - 1
_HELLO = 4096
_PATIENCE = 60.0
"""Seconds that a host waits for the others to connect."""


class ShmTransport(Transport):
    """The end of one host."""

    def __init__(self, host: str, store: Store, secret: bytes) -> None:
        self._host, self._store, self._secret = host, store, secret
        self._sockets: dict[str, socket.socket] = {}
        self._incoming: Mapping[str, Region] = {}
        self._outgoing: Mapping[str, Region] = {}
        self._memory: dict[str, Tensor] = {}
        self._remote: dict[str, Tensor] = {}
        self._late: dict[str, tuple[int, int]] = {}
        """Credits that found the socket full; the newest of each peer is sent by `wait`."""
        self._lock = threading.Lock()
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._bell, selectors.EVENT_READ)

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
            self._take(peer, connection)
            connection.settimeout(None)
            self._selector.register(connection, selectors.EVENT_READ, peer)

    def slot(self, peer: str, channel: int, version: int) -> Tensor | None:
        return self._incoming[peer].slot(self._memory[peer], channel, version)

    def put(self, peer: str, channel: int, version: int, value: Tensor | None) -> None:
        if value is not None:
            copied_into(self._outgoing[peer].slot(self._remote[peer], channel, version), value)
        try:
            self._sockets[peer].send(_MESSAGE.pack(channel, 0, version))
        except OSError:
            return  # `wait` reports that the peer is gone

    def credit(self, peer: str, completed: int, sent: int = 0) -> None:
        try:
            message = _MESSAGE.pack(_CREDIT, sent & _COUNT, completed)
            self._sockets[peer].send(message, socket.MSG_DONTWAIT)
        except BlockingIOError:
            with self._lock:
                self._late[peer] = completed, sent
            self.wake()
        except OSError:
            return  # `wait` reports that the peer is gone

    def wait(self, timeout: float) -> list[Event]:
        with self._lock:
            late, self._late = self._late, {}
        for peer, credit in late.items():
            self.credit(peer, *credit)
        events: list[Event] = []
        for key, _ in self._selector.select(0.01 if self._late else timeout):
            if key.fd == self._bell:
                os.eventfd_read(self._bell)
            else:
                events += self._read(key.data)
        return events

    def wake(self) -> None:
        os.eventfd_write(self._bell, 1)

    def close(self, lost: Collection[str] = ()) -> None:
        if self._closed:
            return
        self._closed = True
        for connection in self._sockets.values():
            connection.close()
        self._selector.close()
        os.close(self._bell)
        self._sockets.clear()

    def _read(self, peer: str) -> list[Event]:
        """The messages of a peer that are there now."""
        events: list[Event] = []
        connection = self._sockets[peer]
        while True:
            try:
                message = connection.recv(_MESSAGE.size, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return events
            except OSError as error:
                message, why = b"", error.strerror or str(error)
            else:
                why = "its process ended"
            if not message:
                self._selector.unregister(connection)
                return [*events, Lost(peer, why)]
            channel, sent, value = _MESSAGE.unpack(message)
            events.append(
                Granted(peer, value, sent) if channel == _CREDIT else Arrived(peer, channel, value)
            )

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
        """Make the memory for what comes from a peer, and pass it to the peer."""
        region = self._incoming.get(peer)
        size = region.size if region else 0
        descriptor = os.memfd_create("purine", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, max(size, 1))
            self._memory[peer] = _mapped(descriptor, size)
            socket.send_fds(connection, [size.to_bytes(8, "little")], [descriptor])
        finally:
            os.close(descriptor)

    def _take(self, peer: str, connection: socket.socket) -> None:
        message, descriptors, _, _ = socket.recv_fds(connection, 8, 1)
        region = self._outgoing.get(peer)
        size, expected = int.from_bytes(message, "little"), region.size if region else 0
        if not descriptors:
            raise RunError(
                f"host {peer!r} ended while the hosts connected",
                expected="memory for what is sent to it",
                found="a closed connection",
                remedy="see why it ended, and start all hosts again",
            )
        (descriptor,) = descriptors
        try:
            if size != expected:
                raise RunError(
                    f"host {peer!r} has {size} bytes for what host {self._host!r} sends",
                    expected=f"{expected} bytes",
                    found=f"{size} bytes",
                    remedy="start all hosts with the same job",
                )
            self._remote[peer] = _mapped(descriptor, size)
        finally:
            os.close(descriptor)


def _mapped(descriptor: int, size: int) -> Tensor:
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
