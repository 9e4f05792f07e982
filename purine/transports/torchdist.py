"""Transport `torchdist`: the sends and receives of `torch.distributed`, available wherever torch
is.

Gloo has messages but no one-sided puts. A put of a small value is one message: a header (channel
and version) and the value, which the receiver copies into its slot. A credit is a header only,
whose third number is the count of puts. Messages of one sender keep their order.

Gloo sends a message only after the receiver has posted a receive. The receiver posts some receives
ahead. A large value is a message of its own: one thread for each peer reads headers and posts
receives for large values, straight into their slots; another thread waits for these. The sender
continues while small values are in flight; it waits for large ones, of which it makes no copy.
"""

from __future__ import annotations

import ctypes
import queue
import struct
import threading
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

import torch
import torch.distributed as dist
from torch import Tensor

from purine.transports.base import (
    ENDED,
    FAREWELL,
    Arrived,
    Channels,
    Event,
    Granted,
    Hosts,
    Lost,
    Region,
    Slots,
    Transport,
    regions_of,
)

__all__ = ["TorchTransport"]

_HEADER = struct.Struct("<qqq")
"""A channel, a version and 0; or `_CREDIT`, a count of iterations and how many puts were made."""
_START = 64
"""Where the value begins in a message."""
_SMALL = 1 << 18
"""Values up to this many bytes go with their header: a copy takes less than another message."""
_UNSENT = 1 << 20
"""Bytes that are copied and unsent at most: what is urgent waits behind them."""
_AHEAD = 16
"""Messages that a receiver asks for ahead, half of them at a time, and that a sender has under way
at most. A host ends with as many messages that it ends."""
_MESSAGE, _VALUE = 0, 1
"""The tags of messages, and of large values."""
_CREDIT, _END = -1, -2
"""What a header has in the place of a channel when it is not of a put."""

_Header = tuple[int, int, int]

_HASTE = 0.5
"""Seconds that a host waits at the end after a loss, when all hosts end."""


class _Buffer:
    """Memory of a message, and the send or receive that uses it."""

    def __init__(self, size: int) -> None:
        self.memory = torch.empty(_START + size, dtype=torch.uint8)
        self.address = self.memory.data_ptr()
        self._line = (ctypes.c_ubyte * _HEADER.size).from_address(self.address)
        self.work: dist.Work | None = None
        self.used = 0
        """Bytes that are sent."""

    @property
    def header(self) -> _Header:
        channel, version, sent = _HEADER.unpack_from(self._line)
        return channel, version, sent

    @header.setter
    def header(self, numbers: _Header) -> None:
        _HEADER.pack_into(self._line, 0, *numbers)


@dataclass(slots=True)
class _Link:
    rank: int
    outgoing: Region
    slots: Slots
    free: list[_Buffer]
    """Buffers for puts."""
    unsent: deque[_Buffer] = field(default_factory=deque)
    """Messages that are not known to be sent, the oldest in front."""
    headers: queue.SimpleQueue[_Header] = field(default_factory=queue.SimpleQueue)
    """What its thread is to send: credits, and that this host ends."""
    large: queue.SimpleQueue[tuple[Event, dist.Work | None]] = field(
        default_factory=queue.SimpleQueue
    )
    """What to report when a receive is complete."""


class TorchTransport(Transport):
    """The end of one host. `ranks` are the numbers of all hosts in `group`."""

    def __init__(self, ranks: Mapping[str, int], group: dist.ProcessGroup) -> None:
        self._ranks, self._group = ranks, group
        self._links: dict[str, _Link] = {}
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def open(self, peers: Hosts, incoming: Channels, outgoing: Channels, slots: int) -> None:
        sources = regions_of(incoming, slots, by_source=True)
        targets = regions_of(outgoing, slots, by_source=False)
        for peer in peers:
            source = sources.get(peer, Region((), slots))
            target = targets.get(peer, Region((), slots))
            self._links[peer] = _Link(
                self._ranks[peer],
                target,
                Slots(source, torch.empty(source.size, dtype=torch.uint8)),
                [_Buffer(_longest(target)) for _ in range(_AHEAD)],
            )
            for call in (self._read, self._receive, self._tell):
                thread = threading.Thread(target=call, args=(peer,), name=peer, daemon=True)
                self._threads.append(thread)
                thread.start()

    def slot(self, peer: str, channel: int, version: int) -> Tensor | None:
        return self._links[peer].slots.value(channel, version)

    def put(self, peer: str, channel: int, version: int, value: Tensor | None) -> None:
        link = self._links[peer]
        size = 0 if value is None else link.outgoing.length(channel)
        with suppress(RuntimeError):  # `_read` reports that the peer is gone
            small = size if size <= _SMALL else 0
            self._wait_for_room(link, small)
            buffer = link.free.pop()
            buffer.header, buffer.used = (channel, version, 0), small
            if value is not None and small:
                payload = link.outgoing.ordered(channel, value)
                assert payload.nbytes == size
                ctypes.memmove(buffer.address + _START, payload.data_ptr(), size)
            message = buffer.memory[: _START + small]
            buffer.work = self._group.send([message], link.rank, _MESSAGE)
            link.unsent.append(buffer)
            if value is not None and size > _SMALL:
                flat = link.outgoing.flat(channel, value)
                self._group.send([flat], link.rank, _VALUE).wait()

    def _wait_for_room(self, link: _Link, size: int) -> None:
        """Wait until a buffer is free and this number of bytes may be sent."""
        unsent = link.unsent
        while unsent and (not link.free or size + sum(one.used for one in unsent) > _UNSENT):
            oldest = unsent.popleft()
            assert oldest.work is not None
            oldest.work.wait()
            link.free.append(oldest)

    def credit(self, peer: str, completed: int, sent: int = 0) -> None:
        self._links[peer].headers.put((_CREDIT, completed, sent))

    def wait(self, timeout: float) -> list[Event]:
        events: list[Event | None] = []
        with suppress(queue.Empty):
            events.append(self._events.get(timeout=timeout))
            while True:
                events.append(self._events.get_nowait())
        return [event for event in events if event is not None]

    def wake(self) -> None:
        self._events.put(None)

    def close(self, lost: Collection[str] = ()) -> None:
        for link in self._links.values():
            link.headers.put((_END, 0, 0))
        ends = monotonic() + (_HASTE if lost else FAREWELL)
        for thread in self._threads:  # peers end at the same iteration
            if thread.name not in lost:
                thread.join(max(0.0, ends - monotonic()))

    def _tell(self, peer: str) -> None:
        """Send credits to a peer, only the newest if several are due, until this host ends."""
        link, header = self._links[peer], (_CREDIT, 0, 0)
        while header[0] != _END:
            header = link.headers.get()
            with suppress(queue.Empty):
                while header[0] != _END:
                    header = link.headers.get_nowait()
            buffer = _Buffer(0)
            buffer.header = header
            try:
                sends = [
                    self._group.send([buffer.memory], link.rank, _MESSAGE)
                    for _ in range(_AHEAD if header[0] == _END else 1)
                ]
                for send in sends:
                    send.wait()
            except RuntimeError:  # `_read` reports that the peer is gone
                return

    def _read(self, peer: str) -> None:
        """Read messages and report them, until the peer ends or is lost."""
        link, ends = self._links[peer], 0
        size = _longest(link.slots.region)
        asked, free = deque[_Buffer](), [_Buffer(size) for _ in range(_AHEAD)]
        try:
            while ends < _AHEAD:
                if 2 * len(free) >= _AHEAD or ends:
                    for buffer in free:
                        buffer.work = self._group.recv([buffer.memory], link.rank, _MESSAGE)
                    asked += free
                    free.clear()
                buffer = asked.popleft()
                assert buffer.work is not None
                buffer.work.wait()
                if buffer.header[0] == _END:
                    ends += 1
                    continue
                self._message(peer, link, buffer)
                free.append(buffer)
            link.large.put((Lost(peer, ENDED), None))
        except RuntimeError as error:
            link.large.put((Lost(peer, _reason(error)), None))

    def _message(self, peer: str, link: _Link, buffer: _Buffer) -> None:
        """Report the content of a message, or post the receive of the large value that it
        announces."""
        channel, version, sent = buffer.header
        if channel == _CREDIT:
            self._events.put(Granted(peer, version, sent))
        elif link.slots.region.length(channel) > _SMALL:
            slot = link.slots.bytes_of(channel, version)
            assert slot is not None
            receive = self._group.recv([slot], link.rank, _VALUE)
            link.large.put((Arrived(peer, channel, version), receive))
        else:
            link.slots.write(channel, version, buffer.address + _START)
            self._events.put(Arrived(peer, channel, version))

    def _receive(self, peer: str) -> None:
        """Report each large value when it is in its slot, and finally that the peer is gone."""
        event: Event | None = None
        while not isinstance(event, Lost):
            event, receive = self._links[peer].large.get()
            try:
                if receive is not None:
                    receive.wait()
            except RuntimeError as error:
                event = Lost(peer, _reason(error))
            self._events.put(event)


def _longest(region: Region) -> int:
    """The bytes of the longest value of a region that is sent with its header."""
    lengths = [region.length(channel) for channel in region.channels]
    return max((length for length in lengths if length <= _SMALL), default=0)


def _reason(error: RuntimeError) -> str:
    return " ".join(str(error).split())[:120]
