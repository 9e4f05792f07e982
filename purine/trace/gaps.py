"""What devices waited for: gaps in their compute, divided along chains of causes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from purine.trace.events import Event, covered, host_of
from purine.trace.tables import natural
from purine.trace.trace import Trace, causes, puts_of, window

__all__ = ["Gaps", "Piece", "Wait", "devices_of_trace"]

Wait: TypeAlias = Literal["data", "transfers", "peers", "other"]

_TRANSFER_LANES = ("inbound", "outbound")
_TRANSFER_KINDS = ("Copy", "Average", "Reduce", "HostReduce", "HostBroadcast")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a gap, and the index of the event that ran then; None if nothing did.

    `via` is the event at which the chain of causes leaves the host of the device that waits: the
    arrival of a value from another host or, after the last op of the device, an event there. It is
    None while the chain is on that host.
    """

    sort: Wait
    start: int
    end: int
    event: int | None
    via: int | None


class Gaps:
    """The gaps in the compute of each device of a trace, within a window of time."""

    def __init__(self, trace: Trace, skip: int | None) -> None:
        self.events = trace.events
        self.first, self.begin, self.end = window(trace, skip)
        self.last = max(event.iteration for event in self.events)
        self.put_of: Mapping[int, int] = puts_of(trace)
        self._arrival_of = {put: arrival for arrival, put in self.put_of.items()}
        self._causes = causes(trace)
        queues: dict[str, list[int]] = {name: [] for name in devices_of_trace(trace)}
        for index, event in enumerate(self.events):
            if _computes(event):
                queues[event.location].append(index)
        self.pieces: dict[str, list[Piece]] = {name: [] for name in queues}
        """By device all that it waited for."""
        for location, queue in queues.items():
            for gap in self._gaps(queue):
                self.pieces[location] += self._blamed(*gap, host_of(location))

    def transfers(self) -> tuple[dict[int, int], dict[int, int]]:
        """By transfer and reduction how long it ran, and for how long a device waited for it."""
        running: dict[int, list[tuple[int, int]]] = defaultdict(list)
        exposed: dict[int, list[tuple[int, int]]] = defaultdict(list)
        transfer_of = self._arrival_of.get  # a put is part of the transfer that its arrival ends
        for index, event in enumerate(self.events):
            if _transfers(event):
                running[transfer_of(index, index)].append((event.start, event.end))
        for piece in (piece for pieces in self.pieces.values() for piece in pieces):
            if piece.sort == "transfers":
                assert piece.event is not None
                exposed[transfer_of(piece.event, piece.event)].append((piece.start, piece.end))
        whole, waited = (
            {index: covered(times, self.begin) for index, times in spans.items()}
            for spans in (running, exposed)
        )
        return whole, waited

    def _gaps(self, queue: Sequence[int]) -> Iterator[tuple[int, int, int | None]]:
        """When no compute lane of a device is busy: start, end, and the cause of the next op."""
        events, until = self.events, self.begin
        for index in queue:
            event = events[index]
            if event.start > until:
                yield until, event.start, self._causes[index]
            until = max(until, event.end)
        if until < self.end:  # after its last op a device waits for the event that ends last
            yield until, self.end, max(range(len(events)), key=lambda index: events[index].end)

    def _blamed(self, start: int, end: int, cause: int | None, host: str) -> Iterator[Piece]:
        """Attribute a gap to the events on the chain of causes, from its end back to its start."""
        via: int | None = None
        while end > start and cause is not None:
            event = self.events[cause]
            ran, until = max(event.start, start), max(min(event.end, end), start)
            if until < end:
                yield Piece("other", until, end, None, via)
            if via is None and (cause in self.put_of or event.host != host):
                via = cause
            if ran < until:
                yield Piece(_sort(event), ran, until, cause, via)
            end = min(ran, until)
            cause = self._causes[cause]
        if end > start:
            yield Piece("other", start, end, None, via)


def devices_of_trace(trace: Trace) -> tuple[str, ...]:
    """The locations that computed, sorted by `natural`."""
    locations = {event.location for event in trace.events if _computes(event)}
    return tuple(sorted(locations, key=natural))


def _computes(event: Event) -> bool:
    return event.lane.startswith("compute")


def _transfers(event: Event) -> bool:
    if event.lane.startswith(_TRANSFER_LANES):
        return True
    return event.kind in _TRANSFER_KINDS and not _computes(event)


def _sort(event: Event) -> Wait:
    """The sort of a wait for an event; the compute of the waiting device is never on the chain."""
    if _transfers(event):
        return "transfers"
    if event.kind == "Data" or event.lane.startswith("io"):
        return "data"
    return "peers" if _computes(event) else "other"
