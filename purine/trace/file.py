"""The file of a trace: trace-event JSON, which Perfetto and Chrome show as a timeline.

The file reads back to equal events. Times are whole nanoseconds; the microseconds of the format
keep them exactly.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

from purine.trace.clocks import HostClock
from purine.trace.events import Edge, Event, Read, by_lane

__all__ = ["from_json", "to_json"]

_VERSION = 1
"""The version of our additions to the trace-event format."""

_Json: TypeAlias = dict[str, object]
_T = TypeVar("_T")


def to_json(
    events: Sequence[Event],
    edges: Sequence[Edge],
    clocks: Sequence[HostClock] = (),
    reads: Sequence[Read] = (),
    *,
    arrows: bool = True,
) -> str:
    """Trace-event JSON, one event per line; times are relative to the start of the trace.

    Without `arrows` it reads back as well, but a timeline shows no edges.
    """
    origin = events[0].start if events else 0
    other: _Json = {"purine": "trace", "version": _VERSION, "origin": origin, "edges": edges}
    if clocks:
        other["clocks"] = [asdict(clock) for clock in clocks]
    if reads:
        other["reads"] = reads
    lines = _rows(events, edges if arrows else (), reads if arrows else (), origin)
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in lines)
    return (
        f'{{"displayTimeUnit": "ms",\n"otherData": {json.dumps(other, ensure_ascii=False)},\n'
        f'"traceEvents": [\n{rows}\n]}}\n'
    )


def _rows(
    events: Sequence[Event], edges: Sequence[Edge], reads: Sequence[Read], origin: int
) -> Iterator[_Json]:
    """Metadata, then slices, then arrows: an arrow must follow the slices that it joins."""
    pids: dict[str, int] = {}
    track_of: dict[int, tuple[int, int]] = {}
    tid = 0  # unique over all processes, because some readers ignore the process
    for (location, lane), queue in by_lane(events).items():
        if location not in pids:
            pids[location] = len(pids) + 1
            yield _metadata("process_name", pids[location], 0, location)
        for track in _tracks(events, queue):
            tid += 1
            yield _metadata("thread_name", pids[location], tid, lane)
            track_of.update((index, (pids[location], tid)) for index in track)
    for index, event in enumerate(events):
        pid, tid = track_of[index]
        slice_: _Json = {"ph": "X", "name": event.op, "cat": event.kind, "pid": pid, "tid": tid}
        start, duration = _micros(event.start - origin), _micros(event.end - event.start)
        facts = {"op": event.op, "kind": event.kind, "iteration": event.iteration}
        yield slice_ | {"ts": start, "dur": duration, "args": facts}
    for number, (first, last, time) in enumerate(_arrows(events, edges, reads), start=1):
        for phase, index, moment in (("s", first, time), ("f", last, events[last].start)):
            pid, tid = track_of[index]
            row: _Json = {"ph": phase, "name": "edge", "cat": "edge", "id": number}
            row |= {"pid": pid, "tid": tid, "ts": _micros(moment - origin)}
            yield row | ({"bp": "e"} if phase == "f" else {})


def _metadata(name: str, pid: int, tid: int, value: str) -> _Json:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {"name": value}}


def _tracks(events: Sequence[Event], queue: Sequence[int]) -> list[list[int]]:
    """Split the events of a lane into tracks without overlaps, as the format demands."""
    tracks: list[list[int]] = []
    for index in queue:
        free = (track for track in tracks if events[track[-1]].end <= events[index].start)
        track = next(free, None)
        if track is None:
            tracks.append(track := [])
        track.append(index)
    return tracks


def _arrows(
    events: Sequence[Event], edges: Sequence[Edge], reads: Sequence[Read]
) -> Iterator[tuple[int, int, int]]:
    """The edges to draw: the indices of the producer's and the consumer's event, and the start."""
    for start, end in _joined(events, edges, reads):
        before, after = events[start], events[end]
        time = min(before.end - 1, after.start)
        # Without duration an event gets no arrow, which belongs to the slice around its time.
        if time >= before.start and after.start < after.end:
            yield start, end, time


def _joined(
    events: Sequence[Event], edges: Sequence[Edge], reads: Sequence[Read]
) -> Iterator[tuple[int, int]]:
    """The indices of the events that edges and reads join, but for neighbours on a lane."""
    iterations: dict[str, dict[int, int]] = defaultdict(dict)
    for index, event in enumerate(events):
        iterations[event.op][event.iteration] = index
    behind = {pair for queue in by_lane(events).values() for pair in pairwise(queue)}
    for producer, consumer, distance in edges:
        for iteration, start in iterations[producer].items():
            end = iterations[consumer].get(iteration + distance)
            if end is not None and (distance or (start, end) not in behind):
                yield start, end
    for push, made, taker, taken in reads:
        before, after = iterations[push].get(made), iterations[taker].get(taken)
        if before is not None and after is not None and (before, after) not in behind:
            yield before, after


def _micros(ns: int) -> float:
    """Microseconds from which a reader gets `ns` back, whether it rounds or truncates."""
    micros = ns / 1000
    return micros if int(micros * 1000) >= ns else math.nextafter(micros, math.inf)


def from_json(
    content: Any,
) -> tuple[tuple[Event, ...], tuple[Edge, ...], tuple[HostClock, ...], tuple[Read, ...]]:
    """The events, edges, clocks and reads of a file's content.

    Raises KeyError, TypeError, ValueError or ArithmeticError if `to_json` did not write it.
    """
    other = content["otherData"]
    if (other["purine"], other["version"]) != ("trace", _VERSION):
        raise ValueError(f"otherData says {other['purine']!r}, version {other['version']!r}")
    origin = _typed(other["origin"], int)
    names: dict[tuple[str, int], str] = {}
    events: list[Event] = []
    for row in content["traceEvents"]:
        if row["ph"] == "M":
            of = row["pid"] if row["name"] == "process_name" else row["tid"]
            names[row["name"], of] = _typed(row["args"]["name"], str)
        elif row["ph"] == "X":
            start = origin + round(row["ts"] * 1000)
            duration = round(row["dur"] * 1000)
            if duration < 0:
                raise ValueError(f"an event lasts {duration} ns")
            op, kind = (_typed(row["args"][key], str) for key in ("op", "kind"))
            iteration = _typed(row["args"]["iteration"], int)
            lane = names["process_name", row["pid"]], names["thread_name", row["tid"]]
            events.append(Event(op, kind, iteration, *lane, start, start + duration))
    edges: list[Edge] = []
    for producer, consumer, distance in other["edges"]:
        edges.append((_typed(producer, str), _typed(consumer, str), _typed(distance, int)))
    clocks: list[HostClock] = []
    for row in other.get("clocks", ()):
        numbers = (_typed(row[key], int) for key in ("offset", "drift", "uncertainty"))
        clocks.append(HostClock(_typed(row["host"], str), *numbers))
    reads: list[Read] = []
    for push, made, taker, taken in other.get("reads", ()):
        ends = (_typed(push, str), _typed(made, int)), (_typed(taker, str), _typed(taken, int))
        reads.append((*ends[0], *ends[1]))
    return tuple(events), tuple(edges), tuple(clocks), tuple(reads)


def _typed(value: object, kind: type[_T]) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value
