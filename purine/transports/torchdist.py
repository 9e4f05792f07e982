"""Transport `torchdist`: the sends and receives of `torch.distributed`, wherever torch is.

Gloo has messages and no one-sided puts. A put is therefore a header (channel and version) and a
payload. A credit is a header alone, whose third number tells how many puts were made. At the
receiver one thread for each peer reads headers and receives each payload straight into its slot.
Messages of one sender arrive in the order in which it sent them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from time import monotonic

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
    Transport,
    regions_of,
)

__all__ = ["TorchTransport"]

_HEADER, _PAYLOAD = 0, 1
"""The tags of the two messages of a put."""
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
        self._memory: dict[str, Tensor] = {}
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
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
            self._memory[peer] = torch.empty(region.size, dtype=torch.uint8)
        for peer in peers:
            self._credits[peer] = queue.SimpleQueue()
            for target in (self._receive, self._tell):
                thread = threading.Thread(target=target, args=(peer,), name=peer, daemon=True)
                self._threads.append(thread)
                thread.start()

    def slot(self, peer: str, channel: int, version: int) -> Tensor | None:
        return self._incoming[peer].slot(self._memory[peer], channel, version)

    def put(self, peer: str, channel: int, version: int, value: Tensor | None) -> None:
        rank = self._ranks[peer]
        with suppress(RuntimeError):  # `_receive` reports that the peer is gone
            self._send(rank, torch.tensor([channel, version, 0]), _HEADER).wait()
            if value is not None and value.numel():
                self._send(rank, self._outgoing[peer].flat(channel, value), _PAYLOAD).wait()

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
            try:
                self._send(self._ranks[peer], torch.tensor(header), _HEADER).wait()
            except RuntimeError:  # `_receive` reports that the peer is gone
                return

    def _send(self, rank: int, message: Tensor, tag: int) -> dist.Work:
        return self._group.send([message], rank, tag)

    def _receive(self, peer: str) -> None:
        """Receive what a peer puts, until it ends or is lost."""
        rank, header = self._ranks[peer], torch.empty(3, dtype=torch.int64)
        region, memory = self._incoming.get(peer), self._memory.get(peer)
        try:
            while True:
                self._group.recv([header], rank, _HEADER).wait()
                channel, version, sent = header.tolist()
                if channel == _END:
                    self._events.put(Lost(peer, ENDED))
                    return
                if channel == _CREDIT:
                    self._events.put(Granted(peer, version, sent))
                    continue
                assert region is not None
                assert memory is not None
                slot = region.bytes_of(memory, channel, version)
                if slot.numel():
                    self._group.recv([slot], rank, _PAYLOAD).wait()
                self._events.put(Arrived(peer, channel, version))
        except RuntimeError as error:
            self._events.put(Lost(peer, " ".join(str(error).split())[:120]))
