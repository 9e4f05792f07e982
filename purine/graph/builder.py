"""The only mutable class in `graph/`: it collects nodes and makes frozen graphs of them.

A transform starts a builder from a graph, changes it and freezes it again. The builder rejects two
nodes of one name; all other rules are checked by `verify`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from purine.arguments import checked, shown
from purine.errors import GraphError
from purine.graph.graph import Graph
from purine.graph.nodes import Attribute, Blob, Filler, Lane, Location, Op, Origin, State

__all__ = ["Builder"]

T = TypeVar("T")
N = TypeVar("N", Blob, Op, State)


class Builder:
    """Collects nodes and freezes them into a `Graph`.

    >>> b = Builder()
    >>> x = b.blob("x", (2, 3))
    >>> y = b.blob("y", (2, 3))
    >>> _ = b.op("relu1", "Relu", [x], [y])
    >>> print(b.graph())
    y = relu1: Relu(x)    # float32 2x3
    input x: float32 2x3
    """

    @checked
    def __init__(self, graph: Graph | None = None) -> None:
        base = graph or Graph()
        self.blobs: dict[str, Blob] = dict(base.blobs)
        self.ops: dict[str, Op] = dict(base.ops)
        self.states: dict[str, State] = dict(base.states)
        self.control: set[tuple[str, str]] = set(base.control)
        self.outputs: list[str] = list(base.outputs)

    def blob(
        self,
        name: str,
        shape: Sequence[int] | None,
        dtype: str = "float32",
        location: Location | None = None,
        where: str | None = None,
        *,
        layout: str = "",
    ) -> str:
        """Add a blob and return its name."""
        size = None if shape is None else _listed(shape)
        self.add(Blob(name, size, dtype, location or Location(), where, layout))
        return name

    def op(
        self,
        name: str,
        kind: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        location: Location | None = None,
        lane: Lane = "compute",
        where: str | None = None,
        origin: Origin | None = None,
        every: int = 1,
        phase: int = 0,
        worker: int = 0,
    ) -> Op:
        """Add an op and return it. Its blobs may be added before or after."""
        reads, writes, location = _listed(inputs), _listed(outputs), location or Location()
        settings, turns = attributes or {}, (every, phase, worker)
        op = Op(name, kind, reads, writes, settings, location, lane, where, origin, *turns)
        self.add(op)
        return op

    def state(
        self,
        read: str,
        next: str | None = None,
        filler: Filler | None = None,
        *,
        trainable: bool = False,
        lr_mult: float = 1.0,
        decay_mult: float = 1.0,
        where: str | None = None,
        origin: Origin | None = None,
        staleness: int | None = 0,
        shared: str = "",
    ) -> str:
        """Make the blob `read` a state and return its name; without `next` it keeps its value."""
        rates, reads = (lr_mult, decay_mult), (staleness, shared)
        filler = filler or Filler()
        self.add(State(read, next or read, filler, trainable, *rates, where, origin, *reads))
        return read

    def add(self, node: Blob | Op | State) -> None:
        """Add a node that exists already, for example in another graph."""
        if isinstance(node, State):
            _put("state of blob", node.read, node, self.states)
        elif isinstance(node, Op):
            _put("op", node.name, node, self.ops)
        elif isinstance(node, Blob):
            _put("blob", node.name, node, self.blobs)
        else:
            raise GraphError(
                f"{shown(node)} is not a node of a graph",
                "a Blob, an Op or a State",
                shown(node),
                "add nodes with blob, op and state",
            )

    def fresh(self, name: str) -> str:
        """`name`, or the first of `name.1`, `name.2`, ... that no op and no blob has."""
        candidate, number = name, 0
        while candidate in self.ops or candidate in self.blobs:
            number += 1
            candidate = f"{name}.{number}"
        return candidate

    def graph(self) -> Graph:
        """A frozen copy of the nodes so far."""
        blobs, ops, states = dict(self.blobs), dict(self.ops), dict(self.states)
        return Graph(blobs, ops, states, frozenset(self.control), tuple(self.outputs))


def _listed(items: Sequence[T]) -> tuple[T, ...]:
    """The items as a tuple; a text is not taken for a list of its letters."""
    if isinstance(items, str) or not isinstance(items, Iterable):
        what, expected = f"{shown(items)} is no list", "a list of names or of sizes"
        raise GraphError(what, expected, shown(items), "put it into brackets")
    return tuple(items)


def _put(what: str, name: str, node: N, nodes: dict[str, N]) -> None:
    """Add a node under its name, which may not be taken."""
    if name not in nodes:
        nodes[name] = node
        return
    first = nodes[name]
    found = f"a second {what} {name!r}" + (f" (first at {first.where})" if first.where else "")
    op, blob = (name, None) if what == "op" else (None, name)
    what, remedy = f"{what} {name!r} is declared twice", "give one of them another name"
    raise GraphError(what, "every name once", found, remedy, where=node.where, op=op, blob=blob)
