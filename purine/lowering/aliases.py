"""Lowering pass `aliases`: remove the copies between devices that share memory.

A step has these copies because they show which values cross between devices. They move no bytes, so
dispatching them would only cost time. After this pass ops may read blobs of other locations.
"""

from __future__ import annotations

from dataclasses import replace

from purine.graph import Builder, Graph
from purine.lowering.lowered import Lowered

__all__ = ["without_aliases"]


def without_aliases(graph: Graph) -> Lowered:
    """The graph with every alias copy replaced by its source.

    Copies that write the next value of a state or an output of the graph stay, as copies. The other
    ops run in the same order as before, even if only a copy stood between them.
    """
    kept = set(graph.outputs) | {state.next for state in graph.states.values()}
    copies = {
        op.outputs[0]: op
        for op in graph.ops.values()
        if op.kind == "Copy" and op.attributes.get("alias") and op.outputs[0] not in kept
    }
    if not copies:
        return Lowered(graph)

    def origin(name: str) -> str:
        while name in copies:
            name = copies[name].inputs[0]
        return name

    builder = Builder(graph)
    for name, op in copies.items():
        del builder.blobs[name], builder.ops[op.name]
    for op in list(builder.ops.values()):
        if not copies.keys().isdisjoint(op.inputs):
            builder.ops[op.name] = replace(op, inputs=tuple(map(origin, op.inputs)))
    builder.control = _order(graph, builder, {op.name for op in copies.values()})
    return Lowered(builder.graph())


def _order(graph: Graph, builder: Builder, removed: set[str]) -> set[tuple[str, str]]:
    """Control edges that keep the order of the remaining ops.

    An op before a copy, by data or by control, runs before all ops after it, whether or not the two
    still share a blob.
    """
    after: dict[str, set[str]] = {}
    """For each removed copy, the first remaining ops behind it."""
    for name in reversed(graph.order):
        if name in removed:
            after[name] = set()
            for following in graph.successors[name]:
                after[name] |= after[following] if following in removed else {following}
    producer = {blob: op.name for op in builder.ops.values() for blob in op.results}
    by_data = {(producer.get(blob), op.name) for op in builder.ops.values() for blob in op.inputs}
    edges = {edge for edge in graph.control if removed.isdisjoint(edge)}
    for name in builder.ops:
        for copy in removed.intersection(graph.successors[name]):
            edges |= {(name, later) for later in after[copy] if (name, later) not in by_data}
    return edges
