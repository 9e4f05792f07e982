"""The graph: a frozen bipartite graph of blobs and ops, with states and control edges.

A graph is a value. It holds no tensors and nothing of an execution. Two graphs of the same nodes
are equal and have the same digest, whatever the order in which they were built.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from purine.arguments import checked
from purine.graph.nodes import NOTHING, Attribute, Blob, Location, Op, State

__all__ = ["Graph", "to_text"]


@dataclass(frozen=True)
class Graph:
    """Blobs and ops by name, states by the name of the blob they are read from.

    `control` holds pairs (before, after) of op names. `outputs` are the blobs that a run returns.
    `Builder` makes a graph, `verify` checks one.
    """

    blobs: Mapping[str, Blob] = field(default_factory=dict)
    ops: Mapping[str, Op] = field(default_factory=dict)
    states: Mapping[str, State] = field(default_factory=dict)
    control: frozenset[tuple[str, str]] = frozenset()
    outputs: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.digest)

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    @cached_property
    def producers(self) -> Mapping[str, Op]:
        """The op that writes each blob; blobs that no op writes are missing."""
        return {name: op for op in self.ops.values() for name in op.results}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Op, ...]]:
        """The ops that read each blob, in graph order, each once."""
        readers: dict[str, list[Op]] = {name: [] for name in self.blobs}
        for op in self.ops.values():
            for name in dict.fromkeys(op.inputs):
                readers.setdefault(name, []).append(op)
        return {name: tuple(ops) for name, ops in readers.items()}

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Blobs that no op writes and that are no states: the caller has to feed them."""
        known = {*self.producers, *self.states}
        return tuple(name for name in self.blobs if name not in known)

    @cached_property
    def sinks(self) -> tuple[str, ...]:
        """Blobs that no op reads and that are neither a state nor the next value of one."""
        used = {name for state in self.states.values() for name in (state.read, state.next)}
        return tuple(name for name in self.blobs if not self.consumers[name] and name not in used)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Op names in a topological order, stable in graph order; without those behind a cycle."""
        after = self.successors
        waiting = dict.fromkeys(self.ops, 0)
        for targets in after.values():
            for target in targets:
                waiting[target] += 1
        ready = [name for name, count in waiting.items() if count == 0]
        order: list[str] = []
        for name in ready:  # grows while it is walked
            order.append(name)
            for target in after[name]:
                waiting[target] -= 1
                if waiting[target] == 0:
                    ready.append(target)
        return tuple(order)

    @cached_property
    def in_order(self) -> tuple[Op, ...]:
        """The ops in that order."""
        return tuple(self.ops[name] for name in self.order)

    def leading_to(self, blobs: Iterable[str], *, stop: str | None = None) -> list[Op]:
        """The ops that some blobs depend on, in order, as far as ops of the kind `stop`."""
        wanted, ops = set(blobs), []
        for op in reversed(self.in_order):
            if op.kind != stop and not wanted.isdisjoint(op.outputs):
                wanted.update(op.inputs)
                ops.append(op)
        return ops[::-1]

    def behind(self, ops: Iterable[str]) -> set[str]:
        """These ops, and all that wait for them in the same iteration."""
        behind = set(ops)
        for name in self.order:
            if name in behind:
                behind.update(self.successors[name])
        return behind

    @cached_property
    def successors(self) -> Mapping[str, tuple[str, ...]]:
        """For each op the ops that wait for it in the same iteration, each once."""
        after: dict[str, dict[str, None]] = {name: {} for name in self.ops}
        for op in self.ops.values():
            for blob in op.outputs:
                for consumer in self.consumers.get(blob, ()):
                    after[op.name][consumer.name] = None
        for before, later in sorted(self.control):
            if before in after and later in self.ops:
                after[before][later] = None
        return {name: tuple(targets) for name, targets in after.items()}

    def only(self, blobs: Collection[str], ops: Mapping[str, Op]) -> Graph:
        """The graph of these ops, with what it has of these blobs and their states."""
        return Graph(
            {name: blob for name, blob in self.blobs.items() if name in blobs},
            ops,
            {name: state for name, state in self.states.items() if name in blobs},
            frozenset(edge for edge in self.control if ops.keys() >= set(edge)),
            tuple(name for name in self.outputs if name in blobs),
        )

    @cached_property
    def digest(self) -> str:
        """A hash of everything that equality compares, the same on every machine."""
        nodes = (self.blobs, self.ops, self.states)
        lists = [[_plain(members[name]) for name in sorted(members)] for members in nodes]
        parts = [*lists, sorted(self.control), self.outputs]
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@checked
def to_text(graph: Graph) -> str:
    """The graph as text: its ops, then its inputs, states, control edges and outputs.

    Equal graphs have equal texts. A text cannot be read back; YAML can.

    >>> from purine.graph.builder import Builder
    >>> b = Builder()
    >>> b.outputs = [b.blob("y", (2, 3))]
    >>> _ = b.op("relu1", "Relu", [b.blob("x", (2, 3))], ["y"], {"slope": 0.1}, lane="io")
    >>> print(to_text(b.graph()))
    y = relu1: Relu(x, slope=0.1) lane io    # float32 2x3
    input x: float32 2x3
    output y
    """
    return str(graph)


def _lines(graph: Graph) -> Iterator[str]:
    for name in dict.fromkeys((*graph.order, *graph.ops)):  # ops on a cycle come last
        yield _op_line(graph, graph.ops[name])
    for name in graph.inputs:
        blob = graph.blobs[name]
        yield f"input {name}: {_type_text(blob)}{_at(blob.location)}"
    for state in graph.states.values():
        yield _state_line(graph, state)
    for before, after in sorted(graph.control):
        yield f"control {before} -> {after}"
    for name in graph.outputs:
        yield f"output {name}"


def _op_line(graph: Graph, op: Op) -> str:
    arguments = ", ".join((*op.inputs, *_settings(op.attributes)))
    lane = "" if op.lane == "compute" else f" lane {op.lane}"
    if op.every != 1:
        lane += f" in {op.phase} of {op.every}"
    if op.worker:
        lane += f" worker {op.worker}"
    call = f"{op.name}: {op.kind}({arguments}){_at(op.location)}{lane}"
    if not op.outputs:
        return call
    results = ", ".join(name or "_" for name in op.outputs)
    types = ", ".join(_result_type(graph, op, name) for name in op.outputs)
    return f"{results} = {call}    # {types}"


def _result_type(graph: Graph, op: Op, name: str) -> str:
    if name == NOTHING:
        return "_"
    blob = graph.blobs.get(name)
    if blob is None or blob.location == op.location:
        return _type_text(blob)
    return f"{_type_text(blob)} @ {blob.location}"


def _state_line(graph: Graph, state: State) -> str:
    settings = ", ".join(_settings(state.filler.attributes))
    notes = ["trainable"] if state.trainable else []
    notes.append(f"{state.filler.kind}({settings})" if settings else state.filler.kind)
    if state.lr_mult != 1.0:
        notes.append(f"lr_mult={state.lr_mult}")
    if state.decay_mult != 1.0:
        notes.append(f"decay_mult={state.decay_mult}")
    if state.shared:
        notes.append(f"shared as {state.shared}")
    if state.staleness is None:
        notes.append("any staleness")
    elif state.staleness:
        notes.append(f"staleness {state.staleness}")
    blob = graph.blobs.get(state.read)
    location = "" if blob is None else _at(blob.location)
    pair = f"state {state.read} -> {state.next}"
    return f"{pair} ({', '.join(notes)}){location}    # {_type_text(blob)}"


def _settings(attributes: Mapping[str, Attribute]) -> list[str]:
    return [f"{key}={value!r}" for key, value in attributes.items()]


def _at(location: Location) -> str:
    return "" if location == Location() else f" @ {location}"


def _type_text(blob: Blob | None) -> str:
    return "?" if blob is None else blob.type_text


_ADDED = frozenset({"every", "layout", "phase", "shared", "staleness", "worker"})
"""Fields that left digests as they were, when they were added."""


def _plain(node: Blob | Op | State) -> list[object]:
    """The fields of a node that make up its digest: those added later, only where they are set."""
    plain = []
    for name, one in node.__dataclass_fields__.items():
        value = getattr(node, name)
        if one.compare and not (name in _ADDED and value == one.default):
            plain.append(_plain_value(value))
    return plain


def _plain_value(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "__dataclass_fields__"):
        return [_plain_value(getattr(value, name)) for name in value.__dataclass_fields__]
    return value
