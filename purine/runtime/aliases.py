"""Copies between devices that share memory, taken out of what is run.

The graph keeps them, since they say what crosses from where to where; the dispatcher would only
lose time on them. After this, ops may read blobs of other locations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from purine.graph import Builder, Graph, Op

__all__ = ["without_aliases"]


def without_aliases(graph: Graph) -> Graph:
    """The graph with every alias copy replaced by what it is a copy of.

    Copies that carry a state on or that the host asks for stay, as copies.
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
    gone = {op.name: op for op in copies.values()}
    builder.control = set()
    for before, after in graph.control:
        starts = [before] if before not in gone else _makers(graph, origin(gone[before].outputs[0]))
        ends = [after] if after not in gone else _readers(graph, gone[after].outputs[0], gone)
        builder.control |= {(start, end) for start in starts for end in ends if start != end}
    return builder.graph()


def _makers(graph: Graph, blob: str) -> list[str]:
    return [graph.producers[blob].name] if blob in graph.producers else []


def _readers(graph: Graph, blob: str, gone: Mapping[str, Op]) -> list[str]:
    found: list[str] = []
    for op in graph.consumers[blob]:
        found += _readers(graph, op.outputs[0], gone) if op.name in gone else [op.name]
    return found
