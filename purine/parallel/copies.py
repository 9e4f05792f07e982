"""Copies where a graph crosses from one location to another.

Schemes of parallelism put nodes at locations and leave ops that read from elsewhere; this transform
makes the graph a good one again. A blob goes to each location at most once. Between devices that
share memory a copy is an alias, which costs nothing at run time.
"""

from __future__ import annotations

from dataclasses import replace

from purine.graph import Attribute, Builder, Graph, Location
from purine.parallel.devices import shares_memory

__all__ = ["add_copy", "copy_name", "insert_copies", "without_copies"]


def insert_copies(graph: Graph) -> Graph:
    """The graph with a `Copy` before every op that reads a blob of another location.

    >>> from purine.graph import Builder
    >>> b = Builder()
    >>> x, y = b.blob("x", (2,)), b.blob("y", (2,), location=Location(device="cpu:1"))
    >>> _ = b.op("relu", "Relu", [x], [y], location=Location(device="cpu:1"))
    >>> print(*insert_copies(b.graph()).ops)
    relu x@cpu:1
    """
    builder = Builder(graph)
    for op in graph.ops.values():
        if op.kind == "Copy":
            continue
        inputs = tuple(_at(builder, name, op.location) for name in op.inputs)
        if inputs != op.inputs:
            builder.ops[op.name] = replace(op, inputs=inputs)
    for name, state in graph.states.items():
        following = _at(builder, state.next, graph.blobs[name].location)
        if following != state.next:
            builder.states[name] = replace(state, next=following)
    return builder.graph()


def without_copies(graph: Graph) -> Graph:
    """The graph as it was before `insert_copies`, for a scheme that puts its nodes elsewhere.

    Copies that the host asks for stay.
    """
    origin: dict[str, str] = {}
    for name in graph.order:
        op = graph.ops[name]
        if op.kind == "Copy" and op.outputs[0] not in graph.outputs:
            origin[op.outputs[0]] = origin.get(op.inputs[0], op.inputs[0])
    if not origin:
        return graph
    builder = Builder(graph)
    for name in origin:
        del builder.blobs[name], builder.ops[graph.producers[name].name]
    for name, op in builder.ops.items():
        builder.ops[name] = replace(op, inputs=tuple(origin.get(n, n) for n in op.inputs))
    for name, state in graph.states.items():
        builder.states[name] = replace(state, next=origin.get(state.next, state.next))
    builder.control = {edge for edge in graph.control if builder.ops.keys() >= set(edge)}
    return builder.graph()


def copy_name(builder: Builder, blob: str, location: Location) -> str:
    """The name of the copy of a blob at a location."""
    source = builder.blobs[blob].location
    base = blob.rpartition("@")[0] or blob
    place = location.device
    if location.host != source.host:
        place = f"{location.host}/{place}"
    taken = builder.blobs.get(f"{base}@{place}")
    # A copy that was moved together with its step still has the name of its old location.
    return f"{base if taken is None or taken.location == location else blob}@{place}"


def add_copy(builder: Builder, blob: str, location: Location) -> str:
    """Add a copy of a blob at another location and return its name."""
    source = builder.blobs[blob]
    name = copy_name(builder, blob, location)
    alias = shares_memory(source.location, location)
    settings: dict[str, Attribute] = {"alias": True} if alias else {}
    builder.add(replace(source, name=name, location=location))
    builder.op(name, "Copy", [blob], [name], settings, location=location, lane="inbound")
    return name


def _at(builder: Builder, blob: str, location: Location) -> str:
    source = builder.blobs.get(blob)
    if source is None or source.location == location:
        return blob
    name = copy_name(builder, blob, location)
    return name if name in builder.blobs else add_copy(builder, blob, location)
