"""Copies between devices that share memory, taken out of what is run.

The graph keeps them, since they say what crosses from where to where; the dispatcher would only
lose time on them. After this, ops may read blobs of other locations.
"""

from __future__ import annotations

from dataclasses import replace

from purine.graph import NOTHING, Builder, Graph

__all__ = ["without_aliases"]


def without_aliases(graph: Graph) -> Graph:
    """The graph with every alias copy replaced by what it is a copy of.

    Copies that carry a state on or that the host asks for stay, as copies. The ops that stay run
    in the same order as before, even where only a copy stood between them.
    """
    kept = set(graph.outputs) | {state.next for state in graph.states.values()}
    copies = {
        op.outputs[0]: op
        for op in graph.ops.values()
        if op.kind == "Copy" and op.attributes.get("alias") and op.outputs[0] not in kept
    }
    if not copies:
        return graph

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
    return builder.graph()


def _order(graph: Graph, builder: Builder, gone: set[str]) -> set[tuple[str, str]]:
    """Control edges by which the ops that stay wait for each other as they did before.

    What came before a copy, by data or by control, comes before all that came after it, whether or
    not the two still share a blob.
    """
    after: dict[str, set[str]] = {}
    """For each copy the first ops behind it that stay."""
    for name in reversed(graph.order):
        if name in gone:
            after[name] = set()
            for following in graph.successors[name]:
                after[name] |= after[following] if following in gone else {following}
    made = {blob: op.name for op in builder.ops.values() for blob in op.outputs if blob != NOTHING}
    waiting = {(made.get(blob), op.name) for op in builder.ops.values() for blob in op.inputs}
    found = {edge for edge in graph.control if gone.isdisjoint(edge)}
    for name in builder.ops:
        for copy in gone.intersection(graph.successors[name]):
            found |= {(name, later) for later in after[copy] if (name, later) not in waiting}
    return found
