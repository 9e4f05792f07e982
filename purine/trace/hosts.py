"""Waiting for other hosts: how much of the transfers between hosts was hidden, and who waited.

A device waits for another host from the moment at which nothing of its own host was missing any
more until the value arrived. That covers the compute of the other host, whatever that host waited
for in turn, and the transfer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from purine.graph.names import copied_from
from purine.trace.events import host_of
from purine.trace.gaps import Gaps, Piece
from purine.trace.tables import as_time
from purine.trace.trace import Trace

__all__ = ["Awaited", "DeviceWaits", "HostReport", "between_hosts"]


@dataclass(frozen=True, slots=True)
class Awaited:
    """The ns for which a device waited for a blob of another host."""

    host: str
    blob: str
    waited: int


@dataclass(frozen=True, slots=True)
class DeviceWaits:
    """The ns for which the compute of one device waited, by cause.

    `peers` are blobs of other hosts, the longest wait first. `data` is for batches, `own` for other
    lanes and devices of its host, and `other` is while nothing that it needed was running.
    """

    location: str
    peers: tuple[Awaited, ...]
    data: int
    own: int
    other: int

    @property
    def waited(self) -> int:
        """All of it."""
        return sum(awaited.waited for awaited in self.peers) + self.data + self.own + self.other


@dataclass(frozen=True)
class HostReport:
    """What devices waited for in `iterations` iterations, which took `wall` ns.

    `moving` is the duration of all transfers between hosts, each from the start of its put to the
    end of its arrival. `exposed` is the part of it during which the compute of a device waited.
    """

    iterations: int
    wall: int
    devices: tuple[DeviceWaits, ...]
    moving: int
    exposed: int

    @property
    def hidden(self) -> float:
        """The share of transfers between hosts that no device waited for, 0 to 1."""
        return 1 - self.exposed / self.moving if self.moving else 1.0

    def text(self, *, top: int = 3) -> str:
        """A report in plain text, with the `top` blobs of each host that a device waited for."""
        moving, exposed = (as_time(ns / self.iterations) for ns in (self.moving, self.exposed))
        title = (
            f"transfers between hosts: {moving} a step, {exposed} exposed, {self.hidden:.1%} hidden"
        )
        return "\n".join([title, *(self._line(device, top) for device in self.devices)]) + "\n"

    def _line(self, device: DeviceWaits, top: int) -> str:
        blobs: dict[str, list[Awaited]] = defaultdict(list)
        for awaited in device.peers:
            blobs[awaited.host].append(awaited)
        totals = {host: sum(item.waited for item in items) for host, items in blobs.items()}
        parts = []
        for host in sorted(totals, key=lambda host: -totals[host]):
            longest = [f"{item.blob} {self._step(item.waited)}" for item in blobs[host][:top]]
            more = ["..."] if len(blobs[host]) > top else []
            parts.append(f"{self._step(totals[host])} for {host} ({', '.join(longest + more)})")
        own = ("for data", device.data), ("for own lanes", device.own), ("other", device.other)
        parts += [f"{self._step(waited)} {what}" for what, waited in own if waited]
        where = device.location.removeprefix("host ").replace(",", "")
        share = device.waited / self.wall if self.wall else 0.0
        waited = f"{where} waited {self._step(device.waited)} a step ({share:.1%})"
        return f"{waited}: {', '.join(parts)}" if parts else waited

    def _step(self, ns: int) -> str:
        return as_time(ns / self.iterations)


def between_hosts(trace: Trace, *, skip: int | None = None) -> HostReport:
    """What devices waited for after the first `skip` iterations of a trace of several hosts.

    `skip` defaults to the warm-up of the trace.

    >>> from purine.trace.events import Event
    >>> one, other = "host a, cpu:0", "host b, cpu:0"
    >>> trace = Trace(
    ...     (
    ...         Event("f", "Conv", 0, one, "compute", 0, 20),
    ...         Event("put/x@b", "Put", 0, one, "outbound:b", 20, 24),
    ...         Event("x@b", "Arrival", 0, other, "inbound:a", 20, 30),
    ...         Event("g", "Conv", 0, other, "compute", 30, 40),
    ...     ),
    ...     (("f", "put/x@b", 0), ("put/x@b", "x@b", 0), ("x@b", "g", 0)),
    ... )
    >>> between_hosts(trace, skip=0).devices[1].peers
    (Awaited(host='a', blob='x', waited=30),)
    """
    gaps = Gaps(trace, skip)
    devices = tuple(_waits(gaps, location, pieces) for location, pieces in gaps.pieces.items())
    moving, exposed = (
        sum(time for index, time in times.items() if index in gaps.put_of)
        for times in gaps.transfers()
    )
    iterations, wall = gaps.last - gaps.first + 1, gaps.end - gaps.begin
    return HostReport(iterations, wall, devices, moving, exposed)


def _waits(gaps: Gaps, location: str, pieces: list[Piece]) -> DeviceWaits:
    peers: Counter[tuple[str, str]] = Counter()
    local: Counter[str] = Counter()
    for piece in pieces:
        if piece.via is None:
            local[piece.sort] += piece.end - piece.start
            continue
        event = gaps.events[piece.via]
        name = event.host, event.op
        if event.host == host_of(location):
            name = gaps.events[gaps.put_of[piece.via]].host, copied_from(event.op)
        peers[name] += piece.end - piece.start
    awaited = tuple(Awaited(*names, waited) for names, waited in peers.most_common())
    own = local["transfers"] + local["peers"]
    return DeviceWaits(location, awaited, local["data"], own, local["other"])
