"""Transport `torchdist`: the sends and receives of `torch.distributed`, wherever torch is.

Gloo has messages and no one-sided puts. A put is therefore a header (channel and version) and a
payload. A credit is a header alone, whose third number tells how many puts were made. Messages of
one sender arrive in the order in which it sent them.

Gloo sends a message only when the receiver has asked for it, so one message at a time would wait
for the network twice. Several are under way instead. The receiver asks for some headers ahead. One
thread for each peer reads headers and asks for each payload, straight into its slot; another waits
for the payloads. The sender copies small payloads and goes on; it waits for large ones.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from purine.lowering.hosts import Channel
from purine.transports.base import (
    ENDED,
    Arrived,
    Event,
    Granted,
    Lost,
    Region,
    Slots,
    Transport,
    regions_of,
)

__all__ = ["TorchTransport"]

_HEADER, _PAYLOAD = 0, 1
"""The tags of the two messages of a put."""
_AHEAD = 8
"""Headers that a receiver asks for ahead. A host ends with as many messages that it ends."""
_UNDER_WAY = 32
"""Messages that are under way to a peer at most."""
_COPIED = 1 << 20
"""Payloads up to this many bytes are copied, and at most as many are under way to a peer: what is
urgent waits behind little that was sent before."""
_CREDIT, _END = -1, -2
"""What a header has in the place of a channel where no payload follows."""

_Header = tuple[int, int, int]

_FAREWELL = 5.0
"""Seconds that a host waits at the end for its peers to end too."""
_HASTE = 0.5
"""The same after a loss, when all hosts end."""


class TorchTransport(Transport):
    """The end of one host. `ranks` are the numbers of all hosts in `group`."""

    def __init__(self, ranks: Mapping[str, int], group: dist.ProcessGroup) -> None:
        self._ranks, self._group = ranks, group
        self._incoming: Mapping[str, Region] = {}
        self._outgoing: Mapping[str, Region] = {}
        self._slots: dict[str, Slots] = {}
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._copies: dict[str, Slots] = {}
        """By peer the slots of what goes to it. One is used again when the peer has completed the
        iteration, so what was sent from there has arrived."""
        self._under_way: dict[str, deque[tuple[int, dist.Work]]] = {}
        """By peer the sends that are not known to be complete, with their bytes."""
        self._credits: dict[str, queue.SimpleQueue[_Header]] = {}
        """By peer the headers that its thread is to send: credits, and that this host ends."""

    def open(
        self,
        peers: Sequence[str],
        incoming: Sequence[Channel],
        outgoing: Sequence[Channel],
        slots: int,
    ) -> None:
        self._incoming = regions_of(incoming, slots, by_source=True)
        self._outgoing = regions_of(outgoing, slots, by_source=False)
        for peer, region in self._incoming.items():
            self._slots[peer] = Slots(region, torch.empty(region.size, dtype=torch.uint8))
        for peer, region in self._outgoing.items():
            self._copies[peer] = Slots(region, torch.empty(region.size, dtype=torch.uint8))
            self._under_way[peer] = deque()
        for peer in peers:
            self._credits[peer] = queue.SimpleQueue()
            payloads: queue.SimpleQueue[_Payload] = queue.SimpleQueue()
            calls = ((self._ask, payloads), (self._receive, payloads), (self._tell,))
            for target, *more in calls:
                arguments = (peer, *more)
                thread = threading.Thread(target=target, args=arguments, name=peer, daemon=True)
                self._threads.append(thread)
                thread.start()

    def slot(self, peer: str, channel: int, version: int) -> Tensor | None:
        return self._slots[peer].value(channel, version)

    def put(self, peer: str, channel: int, version: int, value: Tensor | None) -> None:
        rank, region, under_way = self._ranks[peer], self._outgoing[peer], self._under_way[peer]
        with suppress(RuntimeError):  # `_ask` reports that the peer is gone
            header = self._send(rank, torch.tensor([channel, version, 0]), _HEADER)
            under_way.append((0, header))
            if value is not None and value.numel():
                copy = self._copies[peer].bytes_of(channel, version)
                assert copy is not None
                if copy.numel() <= _COPIED:
                    self._copies[peer].fill(channel, version, value)
                    under_way.append((copy.numel(), self._send(rank, copy, _PAYLOAD)))
                else:
                    self._send(rank, region.flat(channel, value), _PAYLOAD).wait()
            if sum(size for size, _ in under_way) > _COPIED or len(under_way) > _UNDER_WAY:
                done = [under_way.popleft()[1] for _ in range((len(under_way) + 1) // 2)]
                for send in reversed(done):  # they complete in order, so this waits once
                    send.wait()

    def credit(self, peer: str, completed: int, sent: int = 0) -> None:
        self._credits[peer].put((_CREDIT, completed, sent))

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
        for waiting in self._credits.values():
            waiting.put((_END, 0, 0))
        ends = monotonic() + (_HASTE if lost else _FAREWELL)
        for thread in self._threads:  # peers end at the same iteration
            if thread.name not in lost:
                thread.join(max(0.0, ends - monotonic()))

    def _tell(self, peer: str) -> None:
        """Send credits to a peer, only the newest where several wait, until this host ends."""
        waiting, header = self._credits[peer], (_CREDIT, 0, 0)
        while header[0] != _END:
            header = waiting.get()
            with suppress(queue.Empty):
                while header[0] != _END:
                    header = waiting.get_nowait()
            count = _AHEAD if header[0] == _END else 1
            try:
                messages = [torch.tensor(header) for _ in range(count)]
                sends = [self._send(self._ranks[peer], message, _HEADER) for message in messages]
                for send in sends:
                    send.wait()
            except RuntimeError:  # `_ask` reports that the peer is gone
                return

    def _send(self, rank: int, message: Tensor, tag: int) -> dist.Work:
        return self._group.send([message], rank, tag)

    def _ask(self, peer: str, payloads: queue.SimpleQueue[_Payload]) -> None:
        """Read headers and ask for the payloads, until the peer ends or is lost."""
        rank = self._ranks[peer]
        headers = [torch.empty(3, dtype=torch.int64) for _ in range(_AHEAD)]
        asked = deque((header, self._group.recv([header], rank, _HEADER)) for header in headers)
        try:
            while asked:
                header, receive = asked.popleft()
                receive.wait()
                channel, version, sent = header.tolist()
                if channel == _END:  # as many of these come as there are headers asked for
                    continue
                asked.append((header, self._group.recv([header], rank, _HEADER)))
                if channel == _CREDIT:
                    self._events.put(Granted(peer, version, sent))
                    continue
                slot = self._slots[peer].bytes_of(channel, version)
                payload = None if slot is None else self._group.recv([slot], rank, _PAYLOAD)
                payloads.put((Arrived(peer, channel, version), payload))
            payloads.put((Lost(peer, ENDED), None))
        except RuntimeError as error:
            payloads.put((Lost(peer, _reason(error)), None))

    def _receive(self, peer: str, payloads: queue.SimpleQueue[_Payload]) -> None:
        """Report each put when its payload is in its slot, and last that the peer is gone."""
        event: Event | None = None
        while not isinstance(event, Lost):
            event, payload = payloads.get()
            try:
                if payload is not None:
                    payload.wait()
            except RuntimeError as error:
                event = Lost(peer, _reason(error))
            self._events.put(event)


_Payload: TypeAlias = tuple[Event, dist.Work | None]
"""What to report, and the receive that has to be complete before."""


def _reason(error: RuntimeError) -> str:
    return " ".join(str(error).split())[:120]
