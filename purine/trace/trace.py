"""Traces: the events of a run with the edges between its ops.

A trace can be read without the graph. `summary` and `overlap` report on it, `file` is its format.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from purine.arguments import checked
from purine.compile.fused import WARM_UP
from purine.errors import ConfigError, RunError, reason
from purine.files import put_in_place, read_bounded, unreadable
from purine.graph import Graph
from purine.kinds.fused import FUSED
from purine.lowering.packing import PACK
from purine.trace.clocks import HostClock
from purine.trace.events import ARRIVAL, FETCH, POST, PUT, Edge, Event, Read, by_lane
from purine.trace.file import from_json, to_json

__all__ = ["Trace", "causes", "edges_of", "puts_of", "window"]

_BYTES = 1 << 30  # of a file with a trace
_WARM_UP, _FUSED_WARM_UP = 1, WARM_UP + 1
"""Iterations of warm-up. In the first, buffers are allocated and algorithms chosen. Fused ops are
compiled in their first call and, on a GPU, captured after `WARM_UP` calls."""


@dataclass(frozen=True)
class Trace:
    """The events of a run, sorted by start, and the edges between its ops.

    The trace of several hosts has the `clocks` by which their times were brought onto one, and that
    of asynchronous workers has their `reads` of shared states.

    >>> late = Event("b", "Relu", 0, "host a, cpu:0", "compute", 20, 30)
    >>> soon = Event("a", "Conv", 0, "host a, cpu:0", "compute", 0, 20)
    >>> [event.op for event in Trace((late, soon), (("a", "b", 0),)).events]
    ['a', 'b']
    """

    events: tuple[Event, ...] = ()
    edges: tuple[Edge, ...] = ()
    clocks: tuple[HostClock, ...] = ()
    reads: tuple[Read, ...] = ()

    def __post_init__(self) -> None:
        assert all(event.start <= event.end for event in self.events)
        # The transfer that an arrival ends may begin with its put, and follows it.
        order = sorted(self.events, key=lambda e: (e.start, e.kind == ARRIVAL, e.end))
        object.__setattr__(self, "events", tuple(order))

    def __add__(self, other: Trace) -> Trace:
        """Both traces as one, for a run that was recorded in two parts."""
        edges = tuple(dict.fromkeys(self.edges + other.edges))
        clocks, reads = self.clocks + other.clocks, self.reads + other.reads
        return Trace(self.events + other.events, edges, clocks, reads)

    @property
    def iterations(self) -> tuple[int, ...]:
        """The iterations that were recorded, in order."""
        return tuple(sorted({event.iteration for event in self.events}))

    @property
    def warm_up(self) -> int:
        """How many first iterations reports leave out: 3 with fused ops, else 1; never all."""
        return max(0, min(self._needed, len(self.iterations) - 1))

    @property
    def unsettled(self) -> int:
        """How many iterations of warm-up are counted, because the trace has too few others."""
        return self._needed - self.warm_up

    @property
    def _needed(self) -> int:
        fused = any(event.kind == FUSED for event in self.events)
        return _FUSED_WARM_UP if fused else _WARM_UP

    def times(self) -> dict[str, float]:
        """Seconds of each op: the median over the iterations after warm-up in which it ran.

        For an op that ran only in warm-up it is the median of those. `pipeline` can balance stages
        by these times. Packing of filters and fetching of outputs belong to no op.
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

    @checked
    def save(self, path: str | Path) -> None:
        """Write trace-event JSON: a process for each location, a thread for each lane.

        Arrows show the edges between events that are not neighbours on a lane.
        """
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            put_in_place(path, to_json(self.events, self.edges, self.clocks, self.reads))
        except OSError as error:
            what, remedy = "cannot save the trace", "free space there, or choose another file"
            expected = "a file that can be written"
            raise unreadable(RunError, path, str(error), expected, what, remedy) from error

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read a file that `save` wrote."""
        try:
            return cls(*from_json(json.loads(read_bounded(path, _BYTES))))
        except OSError as error:
            raise _unreadable(path, "cannot read the trace", reason(error)) from error
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _unreadable(path, "the file is not JSON", str(error)) from error
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            cause = f", without {error}" if isinstance(error, KeyError) else f": {error}"
            what, form = "the file is not a trace of purine", f"JSON of another form{cause}"
            raise _unreadable(path, what, form) from error


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
    edges: dict[Edge, None] = {}
    for before, targets in graph.successors.items():
        for after in targets:
            edges[before, after, 0] = None
    for state in graph.states.values():
        if state.next == state.read or state.next not in graph.producers:
            continue
        for reader in graph.consumers[state.read]:
            edges[graph.producers[state.next].name, reader.name, 1] = None
    return tuple(edges)


def window(trace: Trace, skip: int | None) -> tuple[int, int, int]:
    """What is left without the first `skip` iterations: the first iteration, begin and end in ns.

    `skip` defaults to the warm-up of the trace. Iterations overlap: events of counted iterations
    may run before the begin, but no event of a skipped iteration runs after it.
    """
    events, iterations = trace.events, trace.iterations
    skip = trace.warm_up if skip is None else skip
    if not 0 <= skip < len(iterations):
        what = f"cannot skip {skip} iterations of a trace of {len(iterations)}"
        expected = f"0 to {len(iterations) - 1}" if iterations else "a trace with events"
        raise ConfigError(what, expected, str(skip), "skip fewer, or record more iterations")
    first = iterations[skip]
    begin = max((event.end for event in events if event.iteration < first), default=events[0].start)
    return first, begin, max(event.end for event in events)


def puts_of(trace: Trace) -> dict[int, int]:
    """For each arrival from another host the index of its put, in a trace that has both."""
    events = trace.events
    putting = {
        (event.op, event.iteration): index
        for index, event in enumerate(events)
        if event.kind in (PUT, POST)
    }
    senders: dict[str, list[str]] = defaultdict(list)
    for producer, consumer, _ in trace.edges if putting else ():
        senders[consumer].append(producer)
    put_of: dict[int, int] = {}
    for index, event in enumerate(events):
        if event.kind == ARRIVAL:
            for sender in senders[event.op]:
                put = putting.get((sender, event.iteration))
                if put is not None and events[put].host != event.host:
                    put_of[index] = put
    return put_of


def causes(trace: Trace) -> list[int | None]:
    """For each event the index of the event that it waited for.

    That is the one that ended last among its producers and the event before it on its lane, or None
    if there is none. A cause has a smaller index, also where clocks disagree. An arrival from
    another host begins with its put, and has the cause of the put.
    """
    events, put_of = trace.events, puts_of(trace)
    index_of = {(event.op, event.iteration): index for index, event in enumerate(events)}
    producers: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for producer, consumer, distance in trace.edges:
        producers[consumer].append((producer, distance))
    pushes: dict[tuple[str, int], list[int | None]] = defaultdict(list)
    for push, made, taker, taken in trace.reads:
        pushes[taker, taken].append(index_of.get((push, made)))
    neighbour = {
        later: sooner
        for queue in by_lane(events).values()
        for sooner, later in pairwise(queue)
        if events[sooner].end <= events[later].start
    }
    cause_of: list[int | None] = []
    for here, event in enumerate(events):
        put = put_of.get(here, here)
        if put < here:
            cause_of.append(cause_of[put])
            continue
        needed = [index_of.get((op, event.iteration - gap)) for op, gap in producers[event.op]]
        needed += pushes.get((event.op, event.iteration), ())
        before = [index for index in needed if index is not None and index < here]
        if here in neighbour:
            before.append(neighbour[here])
        # `max` takes the first of equals: a producer rather than the neighbour on the lane.
        cause_of.append(max(before, key=lambda index: events[index].end, default=None))
    return cause_of


def _unreadable(path: Path, what: str, found: str) -> RunError:
    expected = "a file that `purine train --trace` or Trace.save wrote"
    remedy = "check the path, or record the trace again"
    return unreadable(RunError, path, found, expected, what, remedy)
