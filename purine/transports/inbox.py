"""Shared by transports over sockets and pipes: messages of 16 bytes, and a thread that waits for
many.

A message belongs to a put or is a credit. Sending a credit never blocks: if the buffer is full the
credit is kept, a newer one replaces it, and the waiting thread sends it later.
"""

from __future__ import annotations

import os
import select
import struct
import threading
from collections.abc import Callable
from time import monotonic

from purine.transports.base import Event

__all__ = ["CREDIT", "MESSAGE", "Inbox"]

MESSAGE = struct.Struct("<iIq")
"""A channel, 0 and a version; or `CREDIT`, how many puts were made, and a count of iterations."""
CREDIT = -1
_COUNT = (1 << 32) - 1
_RETRY = 0.01
"""Seconds after which a credit that found its way full is tried again."""
_APART = 20e-6
"""Seconds between two looks that do not wait: a look takes 0.4 us, as long as a small put."""
_AT_ONCE = 32
"""Peers of which a look tells at most."""


class Inbox:
    """Sleeps until something can be read, and sends credits.

    `write` sends bytes to a peer without blocking, and returns how many it took.
    """

    def __init__(self, write: Callable[[str, bytes], int]) -> None:
        self._write = write
        self._late: dict[str, bytes] = {}
        """By peer what could not be sent: the rest of a credit, if one went in part, and one."""
        self._lock = threading.Lock()
        self._readers: dict[int, Callable[[], list[Event]]] = {}
        self._look = 0.0
        """When to look next, if not to wait."""
        self._poll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._bell, select.EPOLLIN)

    def add(self, descriptor: int, read: Callable[[], list[Event]]) -> None:
        """Call `read` whenever there is something to read, without blocking."""
        self._readers[descriptor] = read
        self._poll.register(descriptor, select.EPOLLIN)

    def remove(self, descriptor: int) -> None:
        del self._readers[descriptor]
        self._poll.unregister(descriptor)

    def credit(self, peer: str, completed: int, sent: int) -> None:
        """Send a peer the number of iterations that are complete here, and of values put to it."""
        with self._lock:
            self._send(peer, MESSAGE.pack(CREDIT, sent & _COUNT, completed))
            is_late = peer in self._late
        if is_late:
            self.wake()

    def wait(self, timeout: float) -> list[Event]:
        """The events that are there, or that come before the timeout."""
        if self._late:
            with self._lock:
                for peer in list(self._late):
                    self._send(peer)
                if self._late:
                    timeout = min(timeout, _RETRY)
        elif not timeout:
            now = monotonic()
            if now < self._look:
                return []
            self._look = now + _APART
        events: list[Event] = []
        for descriptor, _ in self._poll.poll(timeout, _AT_ONCE):
            if descriptor == self._bell:
                os.eventfd_read(self._bell)
            else:
                events += self._readers[descriptor]()
        return events

    def wake(self) -> None:
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        self._poll.close()
        os.close(self._bell)

    def _send(self, peer: str, newest: bytes = b"") -> None:
        """Send the rest of a credit that was cut off, and the newest one. The lock is held."""
        late = self._late.pop(peer, b"")
        rest = len(late) % MESSAGE.size
        message = late[:rest] + (newest or late[rest:])
        try:
            message = message[self._write(peer, message) :]
        except BlockingIOError:
            pass
        except OSError:
            return  # `wait` reports that the peer is gone
        if message:
            self._late[peer] = message
