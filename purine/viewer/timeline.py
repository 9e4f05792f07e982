"""The timeline of a trace in the form that the page reads: rows of events in packed columns.

Events are sorted by row and start. In a row no two events overlap, so both starts and ends grow:
the page finds the visible events by binary search.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from purine.graph import Graph
from purine.trace.events import Event, by_lane
from purine.trace.gaps import Gaps
from purine.trace.summary import summary
from purine.trace.trace import Trace, causes
from purine.viewer.columns import Json, packed
from purine.viewer.roles import ROLES, graph_name, role_of

__all__ = ["timeline_of"]

_WAITS = ("data", "transfers", "peers", "other")


def timeline_of(trace: Trace, graph: Graph | None = None) -> dict[str, Json]:
    """The timeline of a trace that has events; `graph` gives ops their roles."""
    events = trace.events
    origin = min(event.start for event in events)
    rows, order = _rows(events)
    place = [0] * len(events)
    for at, index in enumerate(order):
        place[index] = at
    ops, op_of = _ops(events, graph)
    before = [-1 if cause is None else place[cause] for cause in causes(trace)]
    numbers = {op: number for number, op in enumerate(_names(ops))}
    edges = [edge for edge in trace.edges if edge[0] in numbers and edge[1] in numbers]
    return {
        "count": len(events),
        "roles": list(ROLES),
        "rows": rows,
        "ops": ops,
        "op": _packed_in(order, op_of),
        "iteration": _packed_in(order, [event.iteration for event in events]),
        "start": _packed_in(order, [event.start - origin for event in events]),
        "duration": _packed_in(order, [event.end - event.start for event in events]),
        "cause": packed([before[index] - at for at, index in enumerate(order)]),
        "path": packed(_critical(trace, place)),
        "waits": _waits(trace, place, origin),
        "edges": {
            "from": packed([numbers[edge[0]] for edge in edges]),
            "to": packed([numbers[edge[1]] for edge in edges]),
            "distance": packed([edge[2] for edge in edges]),
        },
        "reads": _reads(trace, place),
        "warm_up": trace.warm_up,
        "clocks": [[one.host, one.offset, one.drift, one.uncertainty] for one in trace.clocks],
    }


def _packed_in(order: Sequence[int], values: Sequence[int]) -> str:
    return packed(np.asarray(values, dtype=np.int64)[np.asarray(order, dtype=np.int64)])


def _rows(events: Sequence[Event]) -> tuple[Json, list[int]]:
    """The rows, and the indices of the events in their order: row by row, by start."""
    rows: list[Json] = []
    order: list[int] = []
    for (location, lane), queue in by_lane(events).items():
        for number, track in enumerate(_tracks(events, queue)):
            host = events[track[0]].host
            device = location.rpartition(", ")[2]
            row: dict[str, Json] = {"location": location, "host": host, "device": device}
            rows.append(row | {"lane": lane, "track": number, "count": len(track)})
            order += track
    return rows, order


def _tracks(events: Sequence[Event], queue: Sequence[int]) -> list[list[int]]:
    """The events of a lane in the smallest number of rows without overlaps."""
    tracks: list[list[int]] = []
    ends: list[int] = []
    for index in queue:
        event = events[index]
        free = next((k for k, end in enumerate(ends) if end <= event.start), None)
        if free is None:
            free = len(tracks)
            tracks.append([])
            ends.append(0)
        tracks[free].append(index)
        ends[free] = event.end
    return tracks


def _ops(events: Sequence[Event], graph: Graph | None) -> tuple[dict[str, Json], list[int]]:
    """A table of the ops, and for each event the number of its op."""
    number: dict[tuple[str, str], int] = {}
    kinds: dict[str, int] = {}
    names: list[str] = []
    nodes: list[Json] = []
    kind_of: list[int] = []
    roles: list[int] = []
    role = role_of(graph)
    op_of = []
    for event in events:
        key = event.op, event.kind
        if key not in number:
            number[key] = len(names)
            names.append(event.op)
            node = event.op if graph is None else graph_name(graph, event)
            nodes.append(None if node == event.op else node)
            kind_of.append(kinds.setdefault(event.kind, len(kinds)))
            roles.append(ROLES.index(role(event)))
        op_of.append(number[key])
    table: dict[str, Json] = {"names": names, "kinds": list(kinds)}
    table["nodes"] = nodes if any(node is not None for node in nodes) else None
    return table | {"kind": packed(kind_of), "role": packed(roles)}, op_of


def _names(ops: dict[str, Json]) -> list[str]:
    names = ops["names"]
    assert isinstance(names, list)
    return [str(name) for name in names]


def _critical(trace: Trace, place: Sequence[int]) -> list[int]:
    """The critical path after warm-up, as indices of events, the first one first."""
    index_of = {event: index for index, event in enumerate(trace.events)}
    return [place[index_of[step.event]] for step in summary(trace).path]


def _reads(trace: Trace, place: Sequence[int]) -> dict[str, Json]:
    """What workers read of each other, as places of events."""
    index_of = {(event.op, event.iteration): index for index, event in enumerate(trace.events)}
    pairs = [
        (place[index_of[push, made]], place[index_of[taker, taken]])
        for push, made, taker, taken in trace.reads
        if (push, made) in index_of and (taker, taken) in index_of
    ]
    pairs.sort(key=lambda pair: pair[1])
    return {"from": packed([one for one, _ in pairs]), "to": packed([to for _, to in pairs])}


def _waits(trace: Trace, place: Sequence[int], origin: int) -> dict[str, Json]:
    """The waits of each device after warm-up, divided by cause."""
    gaps = Gaps(trace, None)
    devices = list(gaps.pieces)
    pieces = [
        (number, piece)
        for number, location in enumerate(devices)
        for piece in sorted(gaps.pieces[location], key=lambda piece: piece.start)
    ]
    return {
        "sorts": list(_WAITS),
        "locations": devices,
        "device": packed([number for number, _ in pieces]),
        "sort": packed([_WAITS.index(piece.sort) for _, piece in pieces]),
        "start": packed([piece.start - origin for _, piece in pieces]),
        "duration": packed([piece.end - piece.start for _, piece in pieces]),
        "event": packed([-1 if p.event is None else place[p.event] for _, p in pieces]),
    }
