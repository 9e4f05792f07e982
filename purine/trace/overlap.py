"""How much of transfers, reductions and data loading overlaps with compute, from a trace.

All time of a device is accounted for. Its compute lanes are busy, or they wait for the next op;
then each nanosecond is attributed to what ran at that moment on the chain of causes of that op. A
transfer is exposed while the compute of a device waits for it, and hidden otherwise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from purine.trace.events import Event
from purine.trace.tables import as_table, as_time, natural
from purine.trace.trace import Trace, causes, window

__all__ = ["DeviceTime", "Report", "devices_of_trace", "overlap"]

_Wait: TypeAlias = Literal["data", "transfers", "peers", "other"]

_TRANSFER_LANES = ("inbound", "outbound")
_TRANSFER_KINDS = ("Copy", "Average", "Reduce")


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


def devices_of_trace(trace: Trace) -> tuple[str, ...]:
    """The locations that computed, sorted by `natural`."""
    locations = {event.location for event in trace.events if _computes(event)}
    return tuple(sorted(locations, key=natural))


def overlap(trace: Trace, *, skip: int | None = None) -> Report:
    """Account for the time of every device after the first `skip` iterations.

    `skip` defaults to the warm-up of the trace.

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
    events = trace.events
    first, begin, end = window(trace, trace.warm_up if skip is None else skip)
    last, wall = max(event.iteration for event in events), end - begin
    before = causes(trace)
    queues: dict[str, list[int]] = {location: [] for location in devices_of_trace(trace)}
    moving: Counter[str] = Counter()
    for index, event in enumerate(events):
        if _computes(event):
            queues[event.location].append(index)
        elif _transfers(event):
            moving[event.location] += max(0, event.end - max(event.start, begin))
    exposed: dict[int, list[tuple[int, int]]] = defaultdict(list)
    devices = []
    for location, queue in queues.items():
        waits: Counter[_Wait] = Counter()
        for sooner, later, cause in _gaps(events, queue, before, begin, end):
            for what, start, stop, blamed in _blamed(events, before, sooner, later, cause):
                waits[what] += stop - start
                if what == "transfers":
                    assert blamed is not None
                    exposed[blamed].append((start, stop))
        spent = waits["data"], waits["transfers"], waits["peers"], waits["other"]
        devices.append(DeviceTime(location, wall, wall - waits.total(), *spent, moving[location]))
    covered = sum(map(_covered, exposed.values()))
    return Report(first, last, wall, tuple(devices), moving.total(), covered)


def _gaps(
    events: Sequence[Event],
    queue: Sequence[int],
    before: Sequence[int | None],
    begin: int,
    end: int,
) -> Iterator[tuple[int, int, int | None]]:
    """The times in which no compute lane of a device is busy: start, end, cause of the next op."""
    covered = begin
    for index in queue:
        event = events[index]
        if event.start > covered:
            yield covered, event.start, before[index]
        covered = max(covered, event.end)
    if covered < end:  # after its last op a device waits for the event that ends last
        yield covered, end, max(range(len(events)), key=lambda index: events[index].end)


def _blamed(
    events: Sequence[Event], before: Sequence[int | None], start: int, end: int, cause: int | None
) -> Iterator[tuple[_Wait, int, int, int | None]]:
    """Attribute a gap to the events on the chain of causes, from its end back to its start."""
    while end > start and cause is not None:
        event = events[cause]
        ran, until = max(event.start, start), max(min(event.end, end), start)
        if until < end:
            yield "other", until, end, None
        if ran < until:
            yield _wait(event), ran, until, cause
        end = min(ran, until)
        cause = before[cause]
    if end > start:
        yield "other", start, end, None


def _wait(event: Event) -> _Wait:
    """The sort of a wait for an event; the compute of the waiting device is never on the chain."""
    if _transfers(event):
        return "transfers"
    if event.kind == "Data" or event.lane.startswith("io"):
        return "data"
    return "peers" if _computes(event) else "other"


def _computes(event: Event) -> bool:
    return event.lane.startswith("compute")


def _transfers(event: Event) -> bool:
    if event.lane.startswith(_TRANSFER_LANES):
        return True
    return event.kind in _TRANSFER_KINDS and not _computes(event)


def _covered(pieces: Sequence[tuple[int, int]]) -> int:
    """The length of the union of intervals."""
    ordered = sorted(pieces)
    total, until = 0, ordered[0][0]
    for start, stop in ordered:
        total += max(0, stop - max(start, until))
        until = max(until, stop)
    return total
