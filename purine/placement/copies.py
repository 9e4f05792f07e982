"""Copies where a graph crosses from one location to another.

Schemes of parallelism leave ops that read from other locations; `insert_copies` adds the copies. A
blob goes to each location at most once. Between devices that share memory a copy is an alias.
"""

from __future__ import annotations

from dataclasses import replace

from purine.analysis.infer import size_in_bytes
from purine.arguments import checked
from purine.graph import COLLECTIVES, NOTHING, Attribute, Builder, Graph, Location, Op, Origin
from purine.graph.names import copied_from, copy_of, origin_of
from purine.placement.devices import is_cpu, shares_memory

__all__ = ["add_copy", "bytes_moved", "insert_copies", "without_copies"]


@checked
def insert_copies(graph: Graph) -> Graph:
    """The graph with a `Copy` before every op that reads a blob of another location.

    Collectives read where their inputs are, and need none.
    Copies that are there already serve where they fit, so a second call changes nothing.

    >>> from purine.graph import Builder
    >>> b = Builder()
    >>> x, y = b.blob("x", (2,)), b.blob("y", (2,), location=Location(device="cpu:1"))
    >>> _ = b.op("relu", "Relu", [x], [y], location=Location(device="cpu:1"))
    >>> print(*insert_copies(b.graph()).ops)
    relu x@cpu:1
    """
    graph = _read_on_host(graph)
    copies = _Copies(graph)
    builder = copies.builder
    for op in graph.ops.values():
        if op.kind == "Copy":
            ends = (graph.blobs[n].location for n in (*op.inputs, *op.outputs))
            settings = _settings(*ends, board=bool(op.attributes.get("board")))
            if settings != op.attributes:
                builder.ops[op.name] = replace(op, attributes=settings)
        elif op.kind not in COLLECTIVES:
            inputs = tuple(copies.at(name, op.location) for name in op.inputs)
            if inputs != op.inputs:
                builder.ops[op.name] = replace(op, inputs=inputs)
    for name, state in graph.states.items():
        following = copies.at(state.next, graph.blobs[name].location)
        if following != state.next:
            builder.states[name] = replace(state, next=following)
    return builder.graph()


def _read_on_host(graph: Graph) -> Graph:
    """What reads data for a GPU put on the first CPU device, with the clock it reads by.

    Samples go to the GPU as they are stored, and what prepares them runs there.
    """
    builder = Builder(graph)
    read: set[str] = set()
    for name in graph.order:
        op = graph.ops[name]
        if op.lane != "io" or is_cpu(op.location):
            continue
        if read.isdisjoint(op.inputs):
            host = replace(op.location, device="cpu:0")
            builder.ops[name] = replace(op, location=host)
            for blob in (*op.outputs, *(item for item in op.inputs if item in graph.states)):
                if blob != NOTHING:
                    builder.blobs[blob] = replace(builder.blobs[blob], location=host)
        else:
            builder.ops[name] = replace(op, lane="compute")
        if op.kind == "Data" or not read.isdisjoint(op.inputs):
            read.update(op.outputs)
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


@checked
def bytes_moved(graph: Graph) -> int:
    """The bytes that go from one location to another in each iteration.

    Aliases count as what they would move between devices that share no memory.

    >>> import purine as pu
    >>> step = pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=16)), lr=0.1)
    >>> bytes_moved(step), bytes_moved(pu.parallel.replicate(step, "cpu:0-1")) > 0
    (0, True)
    """
    total = 0
    for op in graph.ops.values():
        if op.kind == "Copy" or op.kind in COLLECTIVES:
            target = graph.blobs[op.outputs[0]].location
            read = (graph.blobs[name] for name in op.inputs)
            total += sum(size_in_bytes(blob) for blob in read if blob.location != target)
    return total


def add_copy(
    builder: Builder,
    blob: str,
    location: Location,
    source: str | None = None,
    maker: Op | None = None,
    *,
    board: bool = False,
) -> str:
    """Add a copy of a blob at a location, read from `source`, which may be a copy itself.

    `maker` is the op that makes the blob, where it is known. With `board` it goes through memory
    that hosts share.
    """
    original, source = builder.blobs[blob], source or blob
    device = location.device
    if location.host != original.location.host:
        device = f"{location.host}/{device}"
    base = copied_from(blob)
    taken = builder.blobs.get(copy_of(base, device))
    # A copy that was moved together with its step still has the name of its old location.
    own = taken is None or taken.location == location
    name = builder.fresh(copy_of(base if own else blob, device))
    builder.add(replace(original, name=name, location=location))
    settings = _settings(builder.blobs[source].location, location, board=board)
    origin = replace(Origin(blob) if maker is None else origin_of(maker), of=blob, role="copy")
    copy = Op(name, "Copy", (source,), (name,), settings, location, "inbound", origin=origin)
    if maker is not None:  # the copy is made when, and for the worker for which, the blob is
        copy = replace(copy, every=maker.every, phase=maker.phase, worker=maker.worker)
    builder.add(copy)
    return name


class _Copies:
    """The copies of a graph by what they are copies of and where they are."""

    def __init__(self, graph: Graph) -> None:
        self.builder = Builder(graph)
        self.producers, self.consumers = graph.producers, graph.consumers
        ops = graph.ops.values()
        self.origins = {op.outputs[0]: op.inputs[0] for op in ops if op.kind == "Copy"}
        self.copies: dict[tuple[str, Location], str] = {}
        self.near: dict[tuple[str, str], str] = {}
        """By blob and host the first copy that the host has."""
        for name in list(self.origins):
            self._note(name, graph.blobs[name].location)

    def at(self, blob: str, location: Location) -> str:
        """The blob itself where it is there, else its copy."""
        source = self.builder.blobs.get(blob)
        if source is None or source.location == location:
            return blob
        origin = self._origin(blob)
        if self.builder.blobs[origin].location == location:
            return origin
        if (origin, location) not in self.copies:
            self._add(origin, location)
        return self.copies[origin, location]

    def _add(self, blob: str, location: Location) -> None:
        maker, source = self.producers.get(blob), blob
        if self.builder.blobs[blob].location.host != location.host:  # it goes to a host once
            source = self.near.get((blob, location.host), blob)
        name = add_copy(self.builder, blob, location, source, maker)
        if maker is None and self.consumers[blob]:  # a state is that of one worker
            worker = self.consumers[blob][0].worker
            self.builder.ops[name] = replace(self.builder.ops[name], worker=worker)
        self.origins[name] = self.builder.ops[name].inputs[0]
        self._note(name, location)

    def _note(self, name: str, location: Location) -> None:
        origin = self._origin(name)
        self.copies.setdefault((origin, location), name)
        self.near.setdefault((origin, location.host), name)

    def _origin(self, name: str) -> str:
        while name in self.origins:
            name = self.origins[name]
        return name


def _settings(source: Location, target: Location, *, board: bool = False) -> dict[str, Attribute]:
    if shares_memory(source, target):
        return {"alias": True}
    return {"board": True} if board else {}
