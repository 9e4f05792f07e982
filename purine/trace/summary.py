"""A summary of a trace: time by kind, busy lanes, and the critical path with its waits.

Warm-up is left out: the first iterations, in which kernels are compiled, are unlike all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from purine.trace.events import Event, by_lane, covered
from purine.trace.tables import as_table, as_time
from purine.trace.trace import Trace, causes, window

__all__ = ["KindTime", "LaneTime", "PathStep", "Summary", "summary"]


@dataclass(frozen=True, slots=True)
class KindTime:
    """The time of all events of one kind; `share` is relative to all counted events."""

    kind: str
    count: int
    total: int
    share: float

    @property
    def mean(self) -> float:
        """Nanoseconds per event."""
        return self.total / self.count


@dataclass(frozen=True, slots=True)
class LaneTime:
    """How long a lane was busy within `span`, the time after warm-up."""

    location: str
    lane: str
    busy: int
    span: int

    @property
    def fraction(self) -> float:
        """The share of the span in which the lane was busy, 0 to 1."""
        return self.busy / self.span if self.span else 0.0


@dataclass(frozen=True, slots=True)
class PathStep:
    """An event on the critical path and the nanoseconds for which nothing it needed was running."""

    event: Event
    waited: int


@dataclass(frozen=True)
class Summary:
    """Time by kind, busy lanes, iterations, and the critical path of a trace.

    The first `warm_up` iterations, which took `warm_up_time` ns, are left out: `span` is the time
    from their end to the end of the trace. `unsettled` more are warm-up too, but are counted for
    lack of others. `iteration_time` is the mean time between the ends of iterations in ns, so
    overlapping iterations count once; for a single iteration it is the span. `kinds` covers all
    events of the counted iterations. `lanes` and `path` cover what lies within the span.
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
        """Nanoseconds on the critical path in which none of its events ran."""
        return sum(step.waited for step in self.path)

    def text(self, *, top: int = 10) -> str:
        """A report in plain text; rows of a table after the first `top` are added up in one."""
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
            head = ("op", "location", "iteration", "waited")
            rows = [
                (
                    step.event.op,
                    step.event.location,
                    f"{step.event.iteration}",
                    as_time(step.waited),
                )
                for step in waits[:top]
            ]
            sections.append(f"longest waits on it\n{as_table([head, *rows], left=2)}")
        return "\n\n".join(sections) + "\n"

    def _left_out(self) -> str:
        """Lines about the warm-up that is left out, and about warm-up that is counted."""
        lines = ""
        if self.warm_up:
            first = f"{self.warm_up} iterations" if self.warm_up > 1 else "iteration"
            lines += f"\nwithout the first {first}: warm-up, {as_time(self.warm_up_time)}"
        if self.unsettled:
            fewest = self.warm_up + self.unsettled + 1
            lines += f"\nwith warm-up in it: record {fewest} iterations or more"
        return lines


def summary(trace: Trace) -> Summary:
    """Add up the events after the warm-up of a trace, and find its critical path.

    >>> a = Event("a", "Conv", 0, "host a, cpu:0", "compute", 0, 20)
    >>> b = Event("b", "Relu", 0, "host a, cpu:1", "compute", 25, 30)
    >>> result = summary(Trace((a, b), (("a", "b", 0),)))
    >>> [(step.event.op, step.waited) for step in result.path]
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
        unsettled=trace.unsettled,
        span=span,
        iterations=len(iterations) - skip,
        iteration_time=span / turns,
        kinds=_by_kind(event for event in events if event.iteration >= first),
        lanes=tuple(
            LaneTime(*lane, covered(((events[i].start, events[i].end) for i in queue), begin), span)
            for lane, queue in by_lane(events).items()
        ),
        path=path,
        path_kinds=_by_kind((step.event for step in path), begin),
    )


def _by_kind(events: Iterable[Event], begin: int | None = None) -> tuple[KindTime, ...]:
    """Times by kind, the longest first; of events that start before `begin` the part after it."""
    counts: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for event in events:
        start = event.start if begin is None else max(event.start, begin)
        counts[event.kind] += 1
        totals[event.kind] += max(0, event.end - start)
    every = totals.total() or 1
    rows = (KindTime(kind, counts[kind], time, time / every) for kind, time in totals.items())
    return tuple(sorted(rows, key=lambda row: (-row.total, row.kind)))


def _critical_path(trace: Trace, begin: int) -> tuple[PathStep, ...]:
    """Follow the causes of the event that ended last, back to `begin`."""
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


def _kind_table(kinds: Sequence[KindTime], top: int) -> str:
    rows, rest = list(kinds[:top]), kinds[top:]
    if rest:
        count, total = sum(row.count for row in rest), sum(row.total for row in rest)
        share = sum(row.share for row in rest)
        rows.append(KindTime(f"other ({len(rest)} kinds)", count, total, share))
    cells = [("kind", "count", "total", "share", "mean")]
    for row in rows:
        times = as_time(row.total), f"{row.share:.1%}", as_time(row.mean)
        cells.append((row.kind, str(row.count), *times))
    return as_table(cells, left=1)


def _lane_table(lanes: Sequence[LaneTime], top: int) -> str:
    rows, rest = list(lanes[:top]), lanes[top:]
    if rest:
        busy, span = sum(row.busy for row in rest), sum(row.span for row in rest)
        rows.append(LaneTime(f"other ({len(rest)} lanes)", "", busy, span))
    cells = [
        (row.location, row.lane, as_time(row.busy), as_time(row.span), f"{row.fraction:.1%}")
        for row in rows
    ]
    return as_table([("location", "lane", "busy", "of", "share"), *cells], left=2)
