"""The role of an op, which gives its colour on the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from purine.graph import Graph
from purine.graph.names import origin_of
from purine.kinds.fused import FUSED
from purine.lowering.packing import PACK
from purine.lowering.segments import SEGMENT
from purine.trace.events import ARRIVAL, FETCH, POST, PUT, Event

__all__ = ["ROLES", "PageRole", "graph_name", "role_of"]

PageRole: TypeAlias = Literal[
    "forward", "backward", "update", "recompute", "communication", "data", "other"
]
ROLES: tuple[PageRole, ...] = (
    "forward",
    "backward",
    "update",
    "recompute",
    "communication",
    "data",
    "other",
)
"""In the order of the legend."""

_OTHER = frozenset((PACK, FUSED, SEGMENT, "Fence"))
"""What is for the machine, or for several things at once."""
_COMMUNICATION = frozenset(
    (PUT, POST, ARRIVAL, FETCH, "Copy", "Average", "Reduce", "HostReduce", "HostBroadcast")
)


def role_of(graph: Graph | None) -> Callable[[Event], PageRole]:
    """The role of events, from the graph if there is one, else from kinds, lanes and names."""

    def role(event: Event) -> PageRole:
        if event.kind in _COMMUNICATION:
            return "communication"
        if event.kind == "Data":
            return "data"
        if event.kind in _OTHER:
            return "other"
        name = event.op if graph is None else graph_name(graph, event)
        if graph is not None and name in graph.ops:
            found = origin_of(graph.ops[name]).role
            if found == "copy" or found == "reduce":
                return "communication"
            return "data" if found == "forward" and event.lane.startswith("io") else found
        parts = name.split("/")
        for word, of_word in _WORDS.items():
            if word in parts:
                return of_word
        if event.lane.startswith(("inbound", "outbound")):
            return "communication"
        return "data" if event.lane.startswith("io") else "forward"

    return role


_WORDS: dict[str, PageRole] = {"update": "update", "again": "recompute", "grad": "backward"}


def graph_name(graph: Graph, event: Event) -> str:
    """The name of an event's op in the graph: a trace of several hosts may add that of the host."""
    if event.op in graph.ops:
        return event.op
    return event.op.removeprefix(f"{event.host}/")
