"""What the rules of graphs are made of: their type, and the errors that they yield."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

from purine.errors import GraphError
from purine.graph.graph import Graph
from purine.graph.nodes import Blob, Op, State

__all__ = ["Kinds", "Rule", "uses", "wrong"]


class Kinds(Protocol):
    """Checks that depend on the kind of an op; implemented by `purine.registry`."""

    def problems(
        self, op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob | None]
    ) -> Iterator[GraphError]:
        """The mistakes of `op`; an output without a blob is None."""
        ...


Rule: TypeAlias = Callable[[Graph, Kinds | None], Iterator[GraphError]]
"""Yields the mistakes of one sort; kinds are not checked without `Kinds`."""


def uses(op: Op) -> list[tuple[str, str]]:
    """The blobs that an op reads and writes, with the verb of each."""
    return [(name, "reads") for name in op.inputs] + [(name, "writes") for name in op.results]


def wrong(
    node: Blob | Op | State | None,
    what: str,
    expected: str,
    found: str,
    remedy: str,
    *,
    blob: str | Blob | None = None,
) -> GraphError:
    """The error of a node; `blob` is the one that it is about, where that is not the node."""
    if isinstance(node, State):
        blob = blob or node.read
    elif isinstance(node, Blob):
        blob = node
    op = node if isinstance(node, Op) else None
    where = None if node is None else node.where
    return GraphError(what, expected, found, remedy, where=where, op=op, blob=blob)
