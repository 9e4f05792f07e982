"""Traces: what ran where and when, by the node names of the graph, and what that says about a run.

A trace holds the events of a run with the edges between its ops, so it explains itself without the
graph. Its file is trace-event JSON, which Perfetto and Chrome show as a timeline, and which reads
back to an equal trace: times are whole nanoseconds and survive the format's microseconds.

What a trace says of a run is said of what comes after its warm-up: the first iterations, in which
kernels are compiled, are unlike all others.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from purine.errors import ConfigError, RunError
from purine.files import put_in_place
from purine.graph import Graph
from purine.ops.fused import FUSED
from purine.runtime.compiled import WARM_UP
from purine.runtime.packing import PACK
from purine.runtime.tables import as_table, as_time, natural

__all__ = [
    "FETCH",
    "Edge",
    "Event",
    "KindTime",
    "LaneTime",
    "PathStep",
    "Summary",
    "Trace",
    "Window",
    "causes",
    "edges_of",
    "summary",
    "window",
]

Edge: TypeAlias = tuple[str, str, int]
"""Producer op, consumer op, and the iterations between them: 0, or 1 through a state."""

FETCH = "Fetch"
"""The kind of an event that is no op: an output on its way from a GPU to the host."""

VERSION = 1
"""The version of what `Trace.save` adds to the trace-event format."""

_WARM_UP, _FUSED_WARM_UP = 1, WARM_UP + 1
"""Iterations of warm-up: buffers are made and algorithms chosen in the first; fused ops are
compiled in their first call and, on a GPU, captured behind their own warm-up."""

_Json: TypeAlias = dict[str, object]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Event:
    """One execution of an op; `start` and `end` are nanoseconds of one clock."""

    op: str
    kind: str
    iteration: int
    location: str
    lane: str
    start: int
    end: int


@dataclass(frozen=True)
class Trace:
    """The events of a run, sorted by start, and the edges between its ops.

    >>> late = Event("b", "Relu", 0, "host a, cpu:0", "compute", 20, 30)
    >>> soon = Event("a", "Conv", 0, "host a, cpu:0", "compute", 0, 20)
    >>> [event.op for event in Trace((late, soon), (("a", "b", 0),)).events]
    ['a', 'b']
    """

    events: tuple[Event, ...] = ()
    edges: tuple[Edge, ...] = ()

    def __post_init__(self) -> None:
        assert all(event.start <= event.end for event in self.events)
        ordered = tuple(sorted(self.events, key=lambda event: (event.start, event.end)))
        object.__setattr__(self, "events", ordered)

    def __add__(self, other: Trace) -> Trace:
        """Both traces as one: of a run that was recorded in two parts."""
        return Trace(self.events + other.events, tuple(dict.fromkeys(self.edges + other.edges)))

    @property
    def iterations(self) -> tuple[int, ...]:
        """The iterations that were recorded, in order."""
        return tuple(sorted({event.iteration for event in self.events}))

    @property
    def warm_up(self) -> int:
        """How many of the first iterations are left out of what the trace says of a run.

        Where ops are fused it is three, else one, and always fewer than there are.

        >>> calls = (Event("a", "Fused", i, "host a, cpu:0", "compute", i, i) for i in range(8))
        >>> Trace(tuple(calls)).warm_up
        3
        """
        return max(0, min(_needed(self), len(self.iterations) - 1))

    def times(self) -> dict[str, float]:
        """Seconds of each op: the median over the iterations behind warm-up in which it ran.

        An op that ran in none of these counts with warm-up. What `pipeline` cuts a step by, if it
        is told. Filters that a run packs and outputs that it fetches are no op's.
        """
        settled = self.iterations[self.warm_up :]
        every: dict[str, list[int]] = defaultdict(list)
        counted: dict[str, list[int]] = defaultdict(list)
        for event in self.events:
            if event.kind in (PACK, FETCH):
                continue
            every[event.op].append(event.end - event.start)
            if event.iteration >= settled[0]:
                counted[event.op].append(event.end - event.start)
        return {op: statistics.median(counted.get(op, spent)) / 1e9 for op, spent in every.items()}

    def save(self, path: Path) -> None:
        """Write trace-event JSON: a process for each location, a thread for each lane.

        Arrows show the edges that the order within a lane does not show already.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            put_in_place(path, _to_json(self))
        except OSError as error:
            raise RunError(
                "cannot save the trace",
                where=str(path),
                expected="a file that can be written",
                found=str(error),
                remedy="free space there, or choose another file",
            ) from error

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read what `save` wrote."""
        try:
            return _from_json(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise _unreadable(path, "cannot read the trace", str(error)) from error
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _unreadable(path, "the file is not JSON", str(error)) from error
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            found = "JSON of another form"
            found += f", without {error}" if isinstance(error, KeyError) else f": {error}"
            raise _unreadable(path, "the file is not a trace of purine", found) from error


def edges_of(graph: Graph) -> tuple[Edge, ...]:
    """The edges between the ops of a graph: by data, by control, and by states (distance 1).

    >>> from purine.graph import Builder
    >>> b = Builder()
    >>> w, g, n = b.state(b.blob("w", (1,)), "n"), b.blob("g", (1,)), b.blob("n", (1,))
    >>> _ = b.op("gradient", "Grad", [w], [g])
    >>> _ = b.op("update", "Sgd", [w, g], [n])
    >>> edges_of(b.graph())
    (('gradient', 'update', 0), ('update', 'gradient', 1), ('update', 'update', 1))
    """
    found: dict[Edge, None] = {}
    for before, targets in graph.successors.items():
        for after in targets:
            found[before, after, 0] = None
    for state in graph.states.values():
        if state.next == state.read or state.next not in graph.producers:
            continue
        for reader in graph.consumers[state.read]:
            found[graph.producers[state.next].name, reader.name, 1] = None
    return tuple(found)


@dataclass(frozen=True, slots=True)
class KindTime:
    """The time of all events of one kind; `share` is of the time of all events counted."""

    kind: str
    count: int
    total: int
    share: float

    @property
    def mean(self) -> float:
        """Nanoseconds for one event."""
        return self.total / self.count


@dataclass(frozen=True, slots=True)
class LaneTime:
    """How long a lane was busy within `span`, the time from the end of warm-up to the end."""

    location: str
    lane: str
    busy: int
    span: int

    @property
    def fraction(self) -> float:
        """The part of the span in which the lane was busy, 0 to 1."""
        return self.busy / self.span if self.span else 0.0


@dataclass(frozen=True, slots=True)
class PathStep:
    """An event on the critical path and the nanoseconds for which nothing it needed was running."""

    event: Event
    waited: int


@dataclass(frozen=True)
class Summary:
    """What a trace says: time by kind, busy lanes, iterations, and the critical path.

    The first `warm_up` iterations, which took `warm_up_time` ns, are left out: `span` is the time
    from their end to that of the trace. `unsettled` more would be, if there were enough of others.
    `iteration_time` is the mean between the ends of iterations in ns, so that overlap of iterations
    counts; for a single iteration it is the span. `kinds` have all of the events of the iterations
    that count. Lanes, and the path to the last event, have what lies within the span.
    """

    warm_up: int
    warm_up_time: int
    unsettled: int
    span: int
    iterations: int
    iteration_time: float
    kinds: tuple[KindTime, ...]
    lanes: tuple[LaneTime, ...]
    path: tuple[PathStep, ...]
    path_kinds: tuple[KindTime, ...]

    @property
    def waited(self) -> int:
        """Nanoseconds on the critical path during which it stood still."""
        return sum(step.waited for step in self.path)

    def text(self, *, top: int = 10) -> str:
        """A report in plain text, with all rows but the first `top` of a table in one."""
        running = sum(row.total for row in self.path_kinds)
        waits = sorted((step for step in self.path if step.waited), key=lambda step: -step.waited)
        sections = [
            f"iterations: {self.iterations}, {as_time(self.iteration_time)} each, "
            f"{as_time(self.span)} in all" + self._left_out(),
            "time by kind\n" + _kind_table(self.kinds, top),
            "lanes\n" + _lane_table(self.lanes, top),
            f"critical path: {len(self.path)} events, {as_time(running)} running, "
            f"{as_time(self.waited)} waiting\n" + _kind_table(self.path_kinds, top),
        ]
        if waits:
            sections.append("longest waits on it\n" + _wait_table(waits[:top]))
        return "\n\n".join(sections) + "\n"

    def _left_out(self) -> str:
        """Lines that say what of the warm-up is not counted, and what is for want of iterations."""
        found = ""
        if self.warm_up:
            first = f"{self.warm_up} iterations" if self.warm_up > 1 else "iteration"
            found += f"\nwithout the first {first}: warm-up, {as_time(self.warm_up_time)}"
        if self.unsettled:
            fewest = self.warm_up + self.unsettled + 1
            found += f"\nwith warm-up in it: record {fewest} iterations or more"
        return found


def summary(trace: Trace) -> Summary:
    """Count and add up the events behind the warm-up of a trace, and find its critical path.

    >>> a = Event("a", "Conv", 0, "host a, cpu:0", "compute", 0, 20)
    >>> b = Event("b", "Relu", 0, "host a, cpu:1", "compute", 25, 30)
    >>> found = summary(Trace((a, b), (("a", "b", 0),)))
    >>> [(step.event.op, step.waited) for step in found.path]
    [('a', 0), ('b', 5)]
    """
    events, iterations, skip = trace.events, trace.iterations, trace.warm_up
    if not events:
        return Summary(0, 0, 0, 0, 0, 0.0, (), (), (), ())
    first, begin, end = window(trace, skip)
    span = end - begin
    turns = iterations[-1] - iterations[skip - 1] if skip else 1
    path = _critical_path(trace, begin)
    return Summary(
        warm_up=skip,
        warm_up_time=begin - events[0].start,
        unsettled=_needed(trace) - skip,
        span=span,
        iterations=len(iterations) - skip,
        iteration_time=span / turns,
        kinds=_by_kind(event for event in events if event.iteration >= first),
        lanes=tuple(
            LaneTime(location, lane, _busy([events[index] for index in queue], begin), span)
            for (location, lane), queue in _lanes(events).items()
        ),
        path=path,
        path_kinds=_by_kind(_from(begin, step.event) for step in path),
    )


class Window(NamedTuple):
    """A part of a trace: the first iteration that counts, and when what counts begins and ends."""

    first: int
    begin: int
    end: int


def window(trace: Trace, skip: int) -> Window:
    """From the end of the first `skip` iterations to the end of the trace.

    Iterations overlap, so some of what counts may run before it, but none of what is skipped in it.

    >>> calls = [Event("a", "K", i, "host a, cpu:0", "io", 5 * i, 5 * i + 9) for i in range(3)]
    >>> window(Trace(tuple(calls)), 1)
    Window(first=1, begin=9, end=19)
    """
    events, iterations = trace.events, trace.iterations
    if not 0 <= skip < len(iterations):
        raise ConfigError(
            f"{skip} iterations are to be left out of a trace of {len(iterations)}",
            expected=f"0 to {len(iterations) - 1}" if iterations else "a trace with events",
            found=str(skip),
            remedy="leave out fewer, or record more iterations",
        )
    first = iterations[skip]
    skipped = (event.end for event in events if event.iteration < first)
    begin = max(skipped, default=events[0].start)
    return Window(first, begin, max(event.end for event in events))


def _needed(trace: Trace) -> int:
    """The iterations of warm-up, were there more than enough of others."""
    fused = any(event.kind == FUSED for event in trace.events)
    return _FUSED_WARM_UP if fused else _WARM_UP


def _from(begin: int, event: Event) -> Event:
    """What of an event lies behind `begin`."""
    return event if event.start >= begin else replace(event, start=min(begin, event.end))


def _lanes(events: Sequence[Event]) -> dict[tuple[str, str], list[int]]:
    """The indices of the events of each lane, in order; lanes in the order people count."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, event in enumerate(events):
        found[event.location, event.lane].append(index)
    return dict(sorted(found.items(), key=lambda item: [natural(name) for name in item[0]]))


def _by_kind(events: Iterable[Event]) -> tuple[KindTime, ...]:
    """Times by kind, the longest first."""
    counts: dict[str, int] = defaultdict(int)
    totals: dict[str, int] = defaultdict(int)
    for event in events:
        counts[event.kind] += 1
        totals[event.kind] += event.end - event.start
    everything = sum(totals.values())
    rows = (
        KindTime(kind, counts[kind], total, total / everything if everything else 0.0)
        for kind, total in totals.items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.total, row.kind)))


def _busy(queue: Sequence[Event], begin: int) -> int:
    """The time from `begin` on that events sorted by start cover; overlaps count once."""
    busy, covered = 0, begin
    for event in queue:
        busy += max(0, event.end - max(event.start, covered))
        covered = max(covered, event.end)
    return busy


def causes(trace: Trace) -> list[int | None]:
    """For each event, by their numbers in the trace, the one that it had to wait for.

    That is the latest to end of its producers and of the event before it on its lane, or None for
    an event that waited for none. Causes have smaller numbers, whatever the clocks said.

    >>> a = Event("a", "Conv", 0, "host a, cpu:0", "compute", 0, 20)
    >>> b = Event("b", "Relu", 0, "host a, cpu:1", "compute", 25, 30)
    >>> causes(Trace((a, b), (("a", "b", 0),)))
    [None, 0]
    """
    events = trace.events
    at = {(event.op, event.iteration): index for index, event in enumerate(events)}
    producers: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for producer, consumer, distance in trace.edges:
        producers[consumer].append((producer, distance))
    neighbour = {
        later: sooner
        for queue in _lanes(events).values()
        for sooner, later in pairwise(queue)
        if events[sooner].end <= events[later].start
    }
    found: list[int | None] = []
    for here, event in enumerate(events):
        needed = [at.get((op, event.iteration - gap)) for op, gap in producers[event.op]]
        before = [index for index in needed if index is not None and index < here]
        if here in neighbour:
            before.append(neighbour[here])
        # The first of equals: a producer rather than the neighbour in the lane.
        found.append(max(before, key=lambda index: events[index].end, default=None))
    return found


def _critical_path(trace: Trace, begin: int) -> tuple[PathStep, ...]:
    """Walk back from the event that ended last, each time to what it waited for, until `begin`."""
    events = trace.events
    before = causes(trace)
    path: list[PathStep] = []
    here: int | None = max(range(len(events)), key=lambda index: (events[index].end, index))
    while here is not None:
        cause = before[here]
        ready = begin if cause is None else max(begin, events[cause].end)
        path.append(PathStep(events[here], max(0, events[here].start - ready)))
        here = cause if ready > begin else None
    return tuple(reversed(path))


def _to_json(trace: Trace) -> str:
    """Trace-event JSON with one event a line; times count from the start of the trace."""
    origin = trace.events[0].start if trace.events else 0
    other = {"purine": "trace", "version": VERSION, "origin": origin, "edges": trace.edges}
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in _rows(trace, origin))
    return (
        f'{{"displayTimeUnit": "ms",\n"otherData": {json.dumps(other, ensure_ascii=False)},\n'
        f'"traceEvents": [\n{rows}\n]}}\n'
    )


def _rows(trace: Trace, origin: int) -> Iterator[_Json]:
    """Metadata, then slices, then arrows: an arrow must come behind the slices it joins."""
    pids: dict[str, int] = {}
    place: dict[int, tuple[int, int]] = {}
    tid = 0  # unique over all processes, because some readers go by it alone
    for (location, lane), queue in _lanes(trace.events).items():
        if location not in pids:
            pids[location] = len(pids) + 1
            yield _metadata("process_name", pids[location], 0, location)
        for track in _tracks(trace.events, queue):
            tid += 1
            yield _metadata("thread_name", pids[location], tid, lane)
            place.update((index, (pids[location], tid)) for index in track)
    for index, event in enumerate(trace.events):
        pid, tid = place[index]
        yield {
            "ph": "X",
            "name": event.op,
            "cat": event.kind,
            "pid": pid,
            "tid": tid,
            "ts": _micros(event.start - origin),
            "dur": _micros(event.end - event.start),
            "args": {"op": event.op, "kind": event.kind, "iteration": event.iteration},
        }
    for number, (start, end, time) in enumerate(_arrows(trace), start=1):
        for phase, index, moment in (("s", start, time), ("f", end, trace.events[end].start)):
            pid, tid = place[index]
            row: _Json = {"ph": phase, "name": "edge", "cat": "edge", "id": number}
            row |= {"pid": pid, "tid": tid, "ts": _micros(moment - origin)}
            yield row | ({"bp": "e"} if phase == "f" else {})


def _metadata(name: str, pid: int, tid: int, value: str) -> _Json:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {"name": value}}


def _tracks(events: Sequence[Event], queue: Sequence[int]) -> list[list[int]]:
    """Split the events of a lane so that none overlap, as slices on a thread must not."""
    tracks: list[list[int]] = []
    for index in queue:
        free = (track for track in tracks if events[track[-1]].end <= events[index].start)
        track = next(free, None)
        if track is None:
            tracks.append([index])
        else:
            track.append(index)
    return tracks


def _arrows(trace: Trace) -> Iterator[tuple[int, int, int]]:
    """Edges to draw: index of the producer's event, of the consumer's, and when it leaves.

    An event with no duration gets no arrow, since an arrow is tied to a slice by a time inside it.
    """
    events = trace.events
    iterations: dict[str, dict[int, int]] = defaultdict(dict)
    for index, event in enumerate(events):
        iterations[event.op][event.iteration] = index
    behind = {pair for queue in _lanes(events).values() for pair in pairwise(queue)}
    for producer, consumer, distance in trace.edges:
        for iteration, start in iterations[producer].items():
            end = iterations[consumer].get(iteration + distance)
            if end is None or (distance == 0 and (start, end) in behind):
                continue
            before, after = events[start], events[end]
            time = min(before.end - 1, after.start)
            if time >= before.start and after.start < after.end:
                yield start, end, time


def _micros(ns: int) -> float:
    """Microseconds that give back `ns` whether a reader rounds or cuts off (older ones do)."""
    micros = ns / 1000
    return micros if int(micros * 1000) >= ns else math.nextafter(micros, math.inf)


def _from_json(content: Any) -> Trace:
    """Raises one of Python's own errors where the content is not what `_to_json` wrote."""
    other = content["otherData"]
    if (other["purine"], other["version"]) != ("trace", VERSION):
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
            event = Event(
                op=_typed(row["args"]["op"], str),
                kind=_typed(row["args"]["kind"], str),
                iteration=_typed(row["args"]["iteration"], int),
                location=names["process_name", row["pid"]],
                lane=names["thread_name", row["tid"]],
                start=start,
                end=start + duration,
            )
            events.append(event)
    edges = [
        (_typed(producer, str), _typed(consumer, str), _typed(distance, int))
        for producer, consumer, distance in other["edges"]
    ]
    return Trace(tuple(events), tuple(edges))


def _typed(value: object, kind: type[_T]) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value


def _unreadable(path: Path, what: str, found: str) -> RunError:
    return RunError(
        what,
        where=str(path),
        expected="a file that `purine train --trace` or Trace.save wrote",
        found=found,
        remedy="check the path, or record the trace again",
    )


def _kind_table(kinds: Sequence[KindTime], top: int) -> str:
    rows = list(kinds[:top])
    rest = kinds[top:]
    if rest:
        count, total = sum(row.count for row in rest), sum(row.total for row in rest)
        share = sum(row.share for row in rest)
        rows.append(KindTime(f"other ({len(rest)} kinds)", count, total, share))
    cells = [
        (row.kind, str(row.count), as_time(row.total), f"{row.share:.1%}", as_time(row.mean))
        for row in rows
    ]
    return as_table([("kind", "count", "total", "share", "mean"), *cells], left=1)


def _lane_table(lanes: Sequence[LaneTime], top: int) -> str:
    rows = list(lanes[:top])
    rest = lanes[top:]
    if rest:
        busy, span = sum(row.busy for row in rest), sum(row.span for row in rest)
        rows.append(LaneTime(f"other ({len(rest)} lanes)", "", busy, span))
    cells = [
        (row.location, row.lane, as_time(row.busy), as_time(row.span), f"{row.fraction:.1%}")
        for row in rows
    ]
    return as_table([("location", "lane", "busy", "of", "share"), *cells], left=2)


def _wait_table(steps: Sequence[PathStep]) -> str:
    cells = [
        (step.event.op, step.event.location, str(step.event.iteration), as_time(step.waited))
        for step in steps
    ]
    return as_table([("op", "location", "iteration", "waited"), *cells], left=2)
