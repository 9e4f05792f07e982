"""One trace of all hosts: their events on the clock of the first, with the transfers between them.

An op of another host that has the name of one of an earlier host gets the name of its host in
front: `host1/lr`. Every host computes the learning rate for itself.

An arrival records when the receiver took a value. In the trace of all hosts it is the transfer as a
whole: from the start of the put at the sender to the end of the arrival. A put alone would not do,
since it may return when the bytes are in a buffer of the sender. Transfers overlap, so they have
lanes of their own, `outbound:host1` at the sender and `inbound:host0` at the receiver.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from purine.graph.names import copied_from
from purine.trace.clocks import clock_of, offset_at
from purine.trace.events import ARRIVAL, POST, PUT, Edge, Event, Read
from purine.trace.file import from_json, to_json
from purine.trace.trace import Trace
from purine.transports.clock import Reading
from purine.transports.world import World

__all__ = ["gather", "merged", "shifted"]


def gather(world: World, trace: Trace, readings: Sequence[Reading]) -> Trace | None:
    """The traces of all hosts as one, on the first host; None on the others.

    All hosts call it, each with its own trace and the readings of its clock, the oldest first.
    """
    own = shifted(trace, readings)
    clocks = (clock_of(world.host, readings),)
    texts = world.collect(to_json(own.events, own.edges, clocks, own.reads, arrows=False))
    parts = [Trace(*from_json(json.loads(text))) for text in texts]
    return merged(parts) if world.first else None


def shifted(trace: Trace, readings: Sequence[Reading]) -> Trace:
    """A trace on the clock of the first host. An event keeps its duration."""
    events = []
    for event in trace.events:
        offset = offset_at(readings, event.start)
        events.append(replace(event, start=event.start + offset, end=event.end + offset))
    return replace(trace, events=tuple(events))


def merged(parts: Sequence[Trace]) -> Trace:
    """The traces of several hosts, whose times are of one clock, as one.

    >>> put = Event("put/x@b", "Put", 0, "host a, cpu:0", "outbound", 10, 14)
    >>> arrival = Event("x@b", "Arrival", 0, "host b, cpu:0", "inbound", 18, 19)
    >>> both = merged([Trace((put,)), Trace((arrival,))])
    >>> [(event.op, event.lane, event.start, event.end) for event in both.events]
    [('put/x@b', 'outbound:b', 10, 14), ('x@b', 'inbound:a', 10, 19)]
    >>> both.edges
    (('put/x@b', 'x@b', 0),)
    """
    taken: set[str] = set()
    events: list[Event] = []
    edges: dict[Edge, None] = {}
    reads: list[Read] = []
    for part in parts:
        kinds = {event.op: event.kind for event in part.events}
        name_of = {
            event.op: f"{event.host}/{event.op}" for event in part.events if event.op in taken
        }
        taken |= kinds.keys()
        for event in part.events:
            events.append(replace(event, op=name_of.get(event.op, event.op)))
        for push, made, taker, its in part.reads:
            reads.append((name_of.get(push, push), made, name_of.get(taker, taker), its))
        for before, after, distance in part.edges:
            # The way from a put to an arrival leads through another host, which is there now.
            if kinds.get(before) not in (PUT, POST) or kinds.get(after) != ARRIVAL:
                edges[name_of.get(before, before), name_of.get(after, after), distance] = None
    for event in events:
        for sender in taken.intersection(_senders(event)):
            edges[sender, event.op, 0] = None
    clocks = tuple(clock for part in parts for clock in part.clocks)
    return Trace(tuple(_with_transfers(events)), tuple(edges), clocks, tuple(reads))


def _senders(event: Event) -> tuple[str, ...]:
    """The op that may have put the value of an arrival to its host alone, or to several."""
    if event.kind != ARRIVAL:
        return ()
    return f"put/{event.op}", f"post/{copied_from(event.op)}"


def _with_transfers(events: Sequence[Event]) -> Iterator[Event]:
    """The events, with arrivals that begin with their puts."""
    puts = {(e.op, e.iteration): e for e in events if e.kind in (PUT, POST)}
    target_of = {f"put/{event.op}": event.host for event in events if event.kind == ARRIVAL}
    for event in events:
        if event.kind == PUT and event.op in target_of:
            yield replace(event, lane=f"outbound:{target_of[event.op]}")
            continue
        known = (puts.get((name, event.iteration)) for name in _senders(event))
        put = next(filter(None, known), None)
        if put is None:
            yield event
            continue
        # Where it ended before its put began, by clocks that are not exact, it keeps its time.
        start = put.start if put.start <= event.end else event.start
        yield replace(event, lane=f"inbound:{put.host}", start=start)
