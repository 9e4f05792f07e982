"""Transport `tcp`: plain sockets between machines, each payload straight into its slot.

Every host listens on one given address and connects to the others. A pair of hosts has a connection
in each direction. Puts go along it: a header of 16 bytes and the payload, in one system call.
Credits come back on it. So each direction of a socket carries one type of message.

One thread reads all connections without blocking on any of them. It reads the rest of a payload and
the next header at once. The send buffer is small, so an urgent message waits only for a few bytes
sent before it.

Only processes that know the secret of the job are accepted.
"""

from __future__ import annotations

import hmac
import socket
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from ctypes import Array, c_ubyte
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

import torch
from torch import Tensor

from purine.errors import RunError
from purine.transports.base import (
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
    Store,
    Transport,
    none_connected,
    regions_of,
)
from purine.transports.inbox import CREDIT, MESSAGE, Inbox

__all__ = ["TcpTransport"]

_SECRET = 32
"""Bytes of the secret, with which a connection begins; the name of the host follows."""
_NAME = 64
_SEND_BUFFER = 1 << 17
"""Bytes that may wait in the system, which doubles this number. What is urgent waits behind them:
10 ms on a link of 200 Mbit/s. More is quicker only on links of over 10 Gbit/s."""
_PORTION = 1 << 18
"""Bytes of a payload for which a read waits at most, so that it goes on beside what sends."""
_NOTHING = memoryview(bytearray())


@dataclass(slots=True)
class _Incoming:
    """The receiving end of a connection, and how much of the current message has arrived."""

    peer: str
    connection: socket.socket
    header: memoryview = field(default_factory=lambda: memoryview(bytearray(MESSAGE.size)))
    read: int = 0
    """The bytes of the header that are here."""
    payload: memoryview = _NOTHING
    """Where the rest of a payload goes that comes before this header."""
    arrived: Arrived | None = None
    """What to report when that is here."""
    awaited: int = 1
    """How many bytes have to be there before the system tells."""

    def sleep(self) -> None:
        """Let the system wake this thread only when the payload or a portion has arrived."""
        count = min(len(self.payload), _PORTION) or 1
        if count != self.awaited:
            self.awaited = count
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)


class TcpTransport(Transport):
    """The end of one host. `address` is the one that it listens on."""

    def __init__(self, host: str, store: Store, secret: bytes, address: str) -> None:
        assert len(secret) == _SECRET
        self._host, self._store, self._secret, self._address = host, store, secret, address
        self._puts: dict[str, socket.socket] = {}
        """By peer the connection for what goes to it."""
        self._takes: dict[str, socket.socket] = {}
        """By peer the connection for what comes from it; credits go back on it."""
        self._incoming: Mapping[str, Region] = {}
        self._outgoing: Mapping[str, Region] = {}
        self._slots: dict[str, Slots] = {}
        self._bytes: dict[str, memoryview] = {}
        self._sizes: dict[int, type[Array[c_ubyte]]] = {}
        """By size the type of so many bytes. To make one takes as long as to send 64 KiB."""
        self._lost: set[str] = set()
        self._closed = False
        self._inbox = Inbox(self._write)

    def open(self, peers: Hosts, incoming: Channels, outgoing: Channels, slots: int) -> None:
        self._incoming = regions_of(incoming, slots, by_source=True)
        self._outgoing = regions_of(outgoing, slots, by_source=False)
        for peer, region in self._incoming.items():
            memory = torch.empty(region.size, dtype=torch.uint8)
            self._slots[peer] = Slots(region, memory)
            self._bytes[peer] = memory.numpy().data
        self._connect_all(peers)
        for peer in peers:
            for connection in (self._puts[peer], self._takes[peer]):
                connection.settimeout(None)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._inbox.add(
                    connection.fileno(), partial(self._read, _Incoming(peer, connection))
                )

    def slot(self, peer: str, channel: int, version: int) -> Tensor | None:
        return self._slots[peer].value(channel, version)

    def put(self, peer: str, channel: int, version: int, value: Tensor | None) -> None:
        header = MESSAGE.pack(channel, 0, version)
        connection, size = self._puts[peer], 0
        parts: list[bytes | Array[c_ubyte]] = [header]
        if value is not None and (size := value.nbytes):
            payload = self._outgoing[peer].ordered(channel, value)
            block = self._sizes.get(size) or self._sizes.setdefault(size, c_ubyte * size)
            parts.append(block.from_address(payload.data_ptr()))
        with suppress(OSError):  # `wait` reports that the peer is gone
            sent = connection.sendmsg(parts)
            if sent < len(header):
                connection.sendall(header[sent:])
                sent = len(header)
            if sent < len(header) + size:
                connection.sendall(memoryview(parts[1])[sent - len(header) :])

    def credit(self, peer: str, completed: int, sent: int = 0) -> None:
        self._inbox.credit(peer, completed, sent)

    def wait(self, timeout: float) -> list[Event]:
        return self._inbox.wait(timeout)

    def wake(self) -> None:
        self._inbox.wake()

    def close(self, lost: Collection[str] = ()) -> None:
        """Announce the end, and wait a short time for the announcements of the peers.

        A socket that is closed with unread data makes its peer drop what it has not read yet.
        """
        if self._closed:
            return
        self._closed = True
        for peer, connection in (*self._puts.items(), *self._takes.items()):
            with suppress(OSError):  # lets a thread go that sends to a host that reads no more
                connection.shutdown(socket.SHUT_RDWR if peer in lost else socket.SHUT_WR)
        ends = monotonic() + FAREWELL
        while len(self._lost.union(lost)) < len(self._puts) and monotonic() < ends:
            self.wait(0.1)
        for connection in (*self._puts.values(), *self._takes.values()):
            connection.close()
        self._inbox.close()

    def _write(self, peer: str, message: bytes) -> int:
        return self._takes[peer].send(message, socket.MSG_DONTWAIT)

    def _read(self, state: _Incoming) -> list[Event]:
        """The messages that are complete; the part of the next one is kept.

        The rest of a payload and the next header are read at once. A read that returns less than it
        asked for has emptied the socket.
        """
        events: list[Event] = []
        why = "its process ended"
        try:
            while True:
                missing = len(state.payload)
                parts = (state.payload, state.header[state.read :])
                count = state.connection.recvmsg_into(parts, 0, socket.MSG_DONTWAIT)[0]
                if not count:
                    break
                if count < missing:
                    state.payload = state.payload[count:]
                    state.sleep()
                    return events
                if state.arrived is not None:
                    events.append(state.arrived)
                    state.payload, state.arrived = _NOTHING, None
                state.read += count - missing
                if state.read < MESSAGE.size:
                    state.sleep()
                    return events
                state.read = 0
                channel, sent, number = MESSAGE.unpack(state.header)
                if channel == CREDIT:  # seldom are two there at a time
                    events.append(Granted(state.peer, number, sent))
                    return events
                first, last = self._incoming[state.peer].span(channel, number)
                arrived = Arrived(state.peer, channel, number)
                if first < last:
                    state.payload, state.arrived = self._bytes[state.peer][first:last], arrived
                else:
                    events.append(arrived)
        except BlockingIOError:
            state.sleep()
            return events
        except OSError as error:
            why = error.strerror or str(error)
        self._inbox.remove(state.connection.fileno())
        if state.peer not in self._lost:
            self._lost.add(state.peer)
            events.append(Lost(state.peer, why))
        return events

    def _connect_all(self, peers: Sequence[str]) -> None:
        with socket.create_server((self._address, 0), backlog=len(peers) + 8) as server:
            server.settimeout(1.0)
            port = server.getsockname()[1]
            self._store.set(f"tcp/{self._host}", f"{self._address} {port}")
            for peer in peers:
                self._connect(peer)
            ends = monotonic() + PATIENCE
            while missing := [peer for peer in peers if peer not in self._takes]:
                if monotonic() > ends:
                    raise none_connected(f"host {self._host!r}", missing)
                with suppress(TimeoutError, OSError):
                    self._accept(server, peers)

    def _connect(self, peer: str) -> None:
        address, port = self._store.get(f"tcp/{peer}").decode().split()
        try:
            source = (self._address, 0)
            connection = socket.create_connection((address, int(port)), PATIENCE, source)
        except OSError as error:
            raise RunError(
                f"host {self._host!r} cannot reach host {peer!r}",
                expected=f"a connection from {self._address} to {address}, port {port}",
                found=error.strerror or str(error),
                remedy="give each host an address that the others reach in PURINE_ADDRESS",
            ) from error
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        connection.sendall(self._secret + self._host.encode().ljust(_NAME))
        self._puts[peer] = connection

    def _accept(self, server: socket.socket, peers: Sequence[str]) -> None:
        """Accept a peer. A stranger is rejected."""
        connection, _ = server.accept()
        connection.settimeout(1.0)
        hello = connection.recv(_SECRET + _NAME, socket.MSG_WAITALL)
        peer = hello[_SECRET:].decode(errors="replace").strip()
        known = hmac.compare_digest(hello[:_SECRET], self._secret)
        if known and peer in peers and peer not in self._takes:
            self._takes[peer] = connection
        else:
            connection.close()
