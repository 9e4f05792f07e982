"""Transport `gaspi`: one-sided writes with notifications over GPI-2, made for RDMA.

A host has one segment for each transport: the slots for the values of each peer, then a copy of the
slots for the values that go to each peer. A put copies the value there, and GPI-2 writes it. The
copy stays until the peer has completed the iteration, because only then is its slot used again. A
large value is not copied: its own memory is a segment until GPI-2 has read it, and the put waits
for that.

Each slot has a notification, whose value is the version plus one. Several versions of a channel can
be in flight, and a notification that is set again before it was read would be lost. Two more
notifications of each peer carry the number of iterations that it has completed, and that it has
ended.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, sleep

import torch
from torch import Tensor

from purine.analysis.infer import size_in_bytes
from purine.errors import ConfigError, RunError
from purine.lowering.hosts import Channel
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
    Store,
    Transport,
    regions_of,
)
from purine.transports.gpi2 import Node

__all__ = ["GaspiTransport"]

_SHORTEST, _LONGEST = 50e-6, 1e-3
"""Seconds between two looks at the notifications; the pause grows while there are none."""
_CHECK = 0.1
"""Seconds between two looks for connections that broke."""
_LARGE = 1 << 20
"""Bytes above which a value is written from its own memory. To make a segment takes 0.1 ms."""
_GONE = 100e-6
"""Seconds between two looks whether GPI-2 has read a value."""


@dataclass(frozen=True, slots=True)
class _Link:
    """The memory of a peer for the values of this host."""

    rank: int
    segment: int
    offset: int
    """Where the region of this host begins in the segment."""
    first: int
    """The first notification of this host."""


class GaspiTransport(Transport):
    """The end of one host."""

    def __init__(self, host: str, store: Store, node: Node) -> None:
        self._host, self._store, self._node = host, store, node
        self._count = 1
        """Slots of a channel."""
        self._slots: dict[str, Slots] = {}
        self._outgoing: Mapping[str, Region] = {}
        self._copies: dict[str, tuple[int, Slots]] = {}
        """By peer the slots of what goes to it and is copied, and where they begin."""
        self._numbers: dict[str, dict[int, int]] = {}
        """By peer the position of each channel to it among the notifications."""
        self._meaning: list[tuple[str, int | None]] = []
        """By notification of this host its peer and channel, or None for credits and the end."""
        self._credits: dict[int, str] = {}
        self._ends: dict[int, str] = {}
        self._links: dict[str, _Link] = {}
        self._segment = 0
        self._open = False
        """Whether the segment is there."""
        self._late: dict[str, int] = {}
        """Credits that found the queue full; the newest of each peer is sent by `wait`."""
        self._ended: set[str] = set()
        self._reported: set[str] = set()
        self._closed = False
        self._sending, self._reading = threading.Lock(), threading.Lock()
        self._bell = threading.Event()
        self._check = 0.0

    def open(self, peers: Hosts, incoming: Channels, outgoing: Channels, slots: int) -> None:
        self._count = slots
        nothing = Region((), slots)
        sources = regions_of(incoming, slots, by_source=True)
        self._outgoing = regions_of(outgoing, slots, by_source=False)
        targets = regions_of([c for c in outgoing if not self._is_large(c)], slots, by_source=False)
        regions = [sources.get(peer, nothing) for peer in peers]
        copies = [targets.get(peer, nothing) for peer in peers]
        memory = torch.zeros(
            max(1, sum(region.size for region in (*regions, *copies))), dtype=torch.uint8
        )
        offers: dict[str, tuple[int, int]] = {}
        start = 0
        for peer, region in zip(peers, regions, strict=True):
            offers[peer] = start, len(self._meaning)
            self._slots[peer] = Slots(region, memory[start : start + region.size])
            start += region.size
            for number in sorted(c.number for c in incoming if c.source == peer):
                self._meaning += [(peer, number)] * slots
            self._credits[len(self._meaning)] = peer
            self._ends[len(self._meaning) + 1] = peer
            self._meaning += [(peer, None)] * 2
        for peer, region in zip(peers, copies, strict=True):
            self._copies[peer] = start, Slots(region, memory[start : start + region.size])
            start += region.size
            numbers = sorted(c.number for c in outgoing if c.target == peer)
            self._numbers[peer] = {number: index for index, number in enumerate(numbers)}
        self._check_count()
        self._segment = self._node.bind(memory)
        self._open = True
        try:
            self._connect(peers, offers)
        except RuntimeError as error:  # of the store
            raise RunError(
                f"host {self._host!r} cannot connect with the others",
                expected=f"hosts {', '.join(peers)}",
                found=" ".join(str(error).split())[:120],
                remedy="see why they did not start, and start all hosts again",
            ) from error

    def slot(self, peer: str, channel: int, version: int) -> Tensor | None:
        return self._slots[peer].value(channel, version)

    def put(self, peer: str, channel: int, version: int, value: Tensor | None) -> None:
        link, region = self._links[peer], self._outgoing[peer]
        number = self._numbers[peer][channel]
        notification = link.first + number * self._count + version % self._count
        offset, end = region.span(channel, version)
        node, note = self._node, (notification, version + 1)
        if value is None or offset == end:
            self._insist(lambda: node.notify(link.rank, link.segment, *note))
            return

        def write(source: tuple[int, int]) -> None:
            target, size = (link.segment, link.offset + offset), end - offset
            self._insist(lambda: node.write(link.rank, source, target, size, *note))

        start, copies = self._copies[peer]
        if channel in copies.region.channels:
            copies.fill(channel, version, value)
            write((self._segment, start + copies.region.offset(channel, version)))
            return
        lent = node.bind(region.flat(channel, value))
        write((lent, 0))
        while not node.settle(link.rank):
            if self._closed or self._is_lost(peer):
                return  # GPI-2 may still read it, so the memory stays
            sleep(_GONE)
        node.release(lent)

    def credit(self, peer: str, completed: int, sent: int = 0) -> None:
        with self._sending:
            if self._closed or self._notify_last(peer, 2, completed + 1):
                self._late.pop(peer, None)
            else:
                self._late[peer] = completed

    def wait(self, timeout: float) -> list[Event]:
        until, pause = monotonic() + timeout, _SHORTEST
        while True:
            events = self._read()
            left = until - monotonic()
            if events or left <= 0:
                return events
            if self._bell.wait(min(pause, left)):
                self._bell.clear()
                return self._read()
            pause = min(2 * pause, _LONGEST)

    def wake(self) -> None:
        self._bell.set()

    def close(self, lost: Collection[str] = ()) -> None:
        """Announce the end, and release the segment once no peer writes into it any more."""
        with self._sending:
            if self._closed or not self._open:
                return
            self._closed = True  # nothing is sent after the end
        until = monotonic() + FAREWELL
        for peer in self._links.keys() - set(lost):
            while not self._notify_last(peer, 1, 1) and monotonic() < until:
                sleep(_LONGEST)

        def quiet() -> bool:
            self._read()
            gone = {*self._ended, *lost} | {peer for peer in self._links if self._is_lost(peer)}
            links = self._links.items()
            settled = [self._node.settle(link.rank) for peer, link in links if peer not in lost]
            return all(settled) and gone.issuperset(self._links)

        is_quiet = _until(quiet, until)
        if not lost:
            self._part(until)
        if is_quiet and self._ended.issuperset(self._links):
            with self._reading:
                self._open = False
                self._node.release(self._segment)

    def _part(self, until: float) -> None:
        """Wait until all have seen the announcements: unsent ones are lost with the process."""
        others = [f"{peer}/closed" for peer in self._links if not self._is_lost(peer)]
        try:
            self._store.set(f"{self._host}/closed", "")
            _until(lambda: self._store.check(others), until)
        except RuntimeError:
            return  # the host of the store has seen all, and is gone

    def _connect(self, peers: Sequence[str], offers: Mapping[str, tuple[int, int]]) -> None:
        """Exchange the offsets of slots, and let all peers register the segment."""
        for peer, (offset, first) in offers.items():
            link = json.dumps([self._node.rank, self._segment, offset, first])
            self._store.set(f"{self._host}/{peer}", link)
        for peer in peers:
            self._links[peer] = _Link(*json.loads(self._store.get(f"{peer}/{self._host}")))
            self._node.register(self._segment, self._links[peer].rank)
        self._store.set(f"{self._host}/open", "")
        for peer in peers:
            self._store.get(f"{peer}/open")

    def _read(self) -> list[Event]:
        """The events that have arrived. A loss is reported after all values of that peer."""
        with self._reading:
            if not self._open:
                return []
            self._look_after_links()
            arrived = self._node.arrived(self._segment, len(self._meaning))
            lost = {peer for peer in self._links if self._is_lost(peer)}
            if lost or any(notification in self._ends for notification, _ in arrived):
                arrived += self._node.arrived(self._segment, len(self._meaning))
            events: list[Event] = []
            for notification, value in arrived:
                peer, channel = self._meaning[notification]
                if channel is not None:
                    events.append(Arrived(peer, channel, value - 1))
                elif notification in self._credits:
                    events.append(Granted(peer, value - 1))
                else:
                    self._ended.add(peer)
            for peer in sorted((lost | self._ended) - self._reported):
                why = ENDED if peer in self._ended else self._node.lost[self._links[peer].rank]
                events.append(Lost(peer, why))
            self._reported |= lost | self._ended
            return events

    def _look_after_links(self) -> None:
        with self._sending:
            for peer, completed in list(self._late.items()):
                if self._closed or self._notify_last(peer, 2, completed + 1):
                    del self._late[peer]
        if monotonic() >= self._check:
            self._check = monotonic() + _CHECK
            for link in self._links.values():
                self._node.settle(link.rank)

    def _insist(self, post: Callable[[], bool]) -> None:
        """Repeat a call while its queue is full."""
        while True:
            with self._sending:
                if self._closed or post():
                    return
            sleep(_LONGEST)

    def _notify_last(self, peer: str, back: int, value: int) -> bool:
        """Set one of the last two notifications of this host at a peer: the last but `back` - 1."""
        link = self._links[peer]
        count = len(self._numbers[peer]) * self._count + 2
        return self._node.notify(link.rank, link.segment, link.first + count - back, value)

    def _is_lost(self, peer: str) -> bool:
        return self._links[peer].rank in self._node.lost

    def _is_large(self, channel: Channel) -> bool:
        return channel.blob is not None and size_in_bytes(channel.blob) > _LARGE

    def _check_count(self) -> None:
        needed, there = len(self._meaning), self._node.notifications
        if needed > there:
            raise ConfigError(
                f"host {self._host!r} needs more notifications than GPI-2 has",
                expected=f"at most {there}: one for each slot of each blob that comes in",
                found=str(needed),
                remedy="use fewer hosts or another transport",
            )


def _until(done: Callable[[], bool], until: float) -> bool:
    """Wait until a condition holds or the timeout; returns whether it holds."""
    while not done():
        if monotonic() >= until:
            return False
        sleep(_LONGEST)
    return True
