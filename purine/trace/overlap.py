"""How much of transfers, reductions and data loading overlaps with compute, from a trace.

All time of a device is accounted for. Its compute lanes are busy, or they wait for the next op;
then each nanosecond is attributed to what ran at that moment on the chain of causes of that op. A
transfer is exposed while the compute of a device waits for it, and hidden otherwise.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from purine.trace.gaps import Gaps, Wait
from purine.trace.tables import as_table, as_time
from purine.trace.trace import Trace

__all__ = ["DeviceTime", "Report", "overlap"]


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """The nanoseconds of one device: `wall` is the sum of the fields from `busy` to `other`.

    `busy` is compute. The others are its waits: `data` for batches, `transfers` for transfers
    and reductions, `peers` for the compute of other devices (a pipeline bubble, a slow replica),
    `other` while nothing that it needed was running (dispatch, the credit, the host). `moving` is
    the duration of the device's own transfers and reductions, which overlap with all these.
    """

    location: str
    wall: int
    busy: int
    data: int
    transfers: int
    peers: int
    other: int
    moving: int

    @property
    def fraction(self) -> float:
        """The share of the time in which the device computed, 0 to 1."""
        return self.busy / self.wall if self.wall else 0.0


@dataclass(frozen=True)
class Report:
    """The time of all devices from the end of iteration `first - 1` to the end of `last`.

    `moving` is the duration of all transfers and reductions, `exposed` the part of it during which
    the compute of a device waited for them.
    """

    first: int
    last: int
    wall: int
    devices: tuple[DeviceTime, ...]
    moving: int
    exposed: int

    @property
    def hidden(self) -> float:
        """The share of transfers and reductions that compute did not wait for, 0 to 1."""
        return 1 - self.exposed / self.moving if self.moving else 1.0

    @property
    def bubble(self) -> float:
        """The share of all devices' time in which they did not compute, 0 to 1."""
        spent = len(self.devices) * self.wall
        return 1 - sum(device.busy for device in self.devices) / spent if spent else 0.0

    def text(self, *, bubble: float | None = None) -> str:
        """A report in plain text; `bubble` is the idle share that a formula predicts."""
        count = self.last - self.first + 1
        head = ("location", "compute", "share", "data", "transfers", "peers", "other", "moving")
        rows = []
        for device in self.devices:
            busy, *waits = (as_time(getattr(device, key) / count) for key in ("busy", *head[3:]))
            rows.append((device.location, busy, f"{device.fraction:.1%}", *waits))
        promised = "" if bubble is None else f", {bubble:.1%} by the formula"
        which = f"iterations {self.first} to {self.last}"
        which = which if count > 1 else f"iteration {self.first}"
        one = len(self.devices) == 1
        devices, whose = ("device", "its") if one else ("devices", "all devices'")
        moving = "none"
        if self.moving:
            exposed = f"{as_time(self.exposed / count)} exposed, {self.hidden:.1%} hidden"
            moving = f"{as_time(self.moving / count)}, {exposed}"
        return (
            f"{devices} in {which}, {as_time(self.wall / count)} each: "
            f"compute, and what it waited for\n{as_table([head, *rows], left=1)}\n"
            f"transfers and reductions: {moving}\n"
            f"idle: {self.bubble:.1%} of {whose} time{promised}\n"
        )


def overlap(trace: Trace, *, skip: int | None = None) -> Report:
    """Account for the time of every device after the first `skip` iterations.

    `skip` defaults to the warm-up of the trace.

    >>> from purine.trace.events import Event
    >>> one, other = "host a, cpu:0", "host a, cpu:1"
    >>> trace = Trace(
    ...     (
    ...         Event("a", "Conv", 0, one, "compute", 0, 20),
    ...         Event("sum", "Average", 0, other, "inbound", 20, 26),
    ...         Event("b", "Sgd", 0, other, "compute", 26, 30),
    ...     ),
    ...     (("a", "sum", 0), ("sum", "b", 0)),
    ... )
    >>> [(d.busy, d.transfers, d.peers) for d in overlap(trace, skip=0).devices]
    [(20, 6, 4), (4, 6, 20)]
    """
    gaps = Gaps(trace, skip)
    wall = gaps.end - gaps.begin
    running, exposed = gaps.transfers()
    moving: Counter[str] = Counter()
    for index, time in running.items():
        moving[trace.events[index].location] += time
    devices = []
    for location, waited in gaps.pieces.items():
        waits: Counter[Wait] = Counter()
        for piece in waited:
            waits[piece.sort] += piece.end - piece.start
        spent = waits["data"], waits["transfers"], waits["peers"], waits["other"]
        devices.append(DeviceTime(location, wall, wall - waits.total(), *spent, moving[location]))
    total = sum(exposed.values())
    return Report(gaps.first, gaps.last, wall, tuple(devices), moving.total(), total)
