"""Folding a graph by the paths of its names, to show a large net.

Names form a hierarchy: `stage1/block2/conv1` is part of `stage1/block2` and of `stage1`. A folded
graph has one op per block and the blobs that pass between blocks. It can be drawn and read, but not
run: its kinds are counts of ops, and blocks may depend on each other.
"""

from __future__ import annotations

from collections.abc import Mapping

from purine.graph.builder import Builder
from purine.graph.graph import Graph
from purine.graph.names import GRADIENT, UPDATE
from purine.graph.nodes import Location

__all__ = ["blocks", "fold"]

_SIDES = (GRADIENT, UPDATE)
"""First parts of names that transforms put before the name of what they were made for."""


def blocks(graph: Graph, depth: int) -> Mapping[str, tuple[str, ...]]:
    """The ops of each block in graph order; the name of a block has `depth` parts.

    A block of one op has the name of the op. `grad/` and `update/` do not count as parts. Ops of
    one path on several devices form a block for each device.

    >>> from purine.zoo import vgg16
    >>> blocks(vgg16(batch=2), 1)["block1"]
    ('block1/conv1', 'block1/relu1', 'block1/conv2', 'block1/relu2', 'block1/pool')
    """
    members: dict[tuple[str, Location], list[str]] = {}
    for name in graph.order:
        parts, location = name.split("/"), graph.ops[name].location
        path = "/".join(parts[: depth + (parts[0] in _SIDES)])
        members.setdefault((path, location), []).append(name)
    first_location = dict(reversed(members))
    named = {}
    for (path, location), ops in members.items():
        name = path if first_location[path] == location else f"{path} at {location}"
        named[ops[0] if len(ops) == 1 else name] = tuple(ops)
    return named


def fold(graph: Graph, depth: int) -> Graph:
    """The graph with one op for each of its `blocks`, and the blobs between them.

    >>> from purine.zoo import vgg16
    >>> folded = fold(vgg16(batch=2), 1)
    >>> folded.ops["block1"].kind, folded.ops["block1"].inputs, folded.ops["block1"].outputs
    ('5 ops', ('data',), ('block1/pool',))
    """
    members = blocks(graph, depth)
    block_of = {name: block for block, ops in members.items() for name in ops}
    kept = _between(graph, members, block_of)
    builder = Builder()
    for block, ops in members.items():
        first = graph.ops[ops[0]]
        if len(ops) == 1:
            builder.add(first)
            continue
        reads = dict.fromkeys(name for op in ops for name in graph.ops[op].inputs)
        writes = dict.fromkeys(name for op in ops for name in graph.ops[op].outputs)
        inputs = [name for name in reads if name in kept and name not in writes]
        outputs = [name for name in writes if name in kept]
        kind = f"{len(ops)} ops"
        builder.op(block, kind, inputs, outputs, location=first.location, lane=first.lane)
    for nodes in (graph.blobs, graph.states):
        for name in filter(kept.__contains__, nodes):
            builder.add(nodes[name])
    builder.outputs = list(graph.outputs)
    edges = ((block_of[before], block_of[after]) for before, after in graph.control)
    builder.control = {(before, after) for before, after in edges if before != after}
    return builder.graph()


def _between(
    graph: Graph, members: Mapping[str, tuple[str, ...]], block_of: Mapping[str, str]
) -> set[str]:
    """The blobs of ops that stay, and those that cross the border of a block or of the graph."""
    kept = set(graph.outputs)
    for ops in members.values():
        if len(ops) == 1:
            op = graph.ops[ops[0]]
            kept.update((*op.inputs, *op.results))
    for name in graph.blobs:
        users = {block_of[op.name] for op in graph.consumers[name]}
        if name in graph.producers:
            users.add(block_of[graph.producers[name].name])
        if len(users) > 1 or name in graph.inputs:
            kept.add(name)
    return kept | {state.next for name, state in graph.states.items() if name in kept}
