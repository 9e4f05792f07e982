"""Filters that many convolutions of an iteration read, packed once for all of them.

The micro-batches of a step read the same filters. A `PackFilters` op lays these out as the
library's kernels want them, and the convolutions of one device read what it makes. It waits for
nothing but the filters, so where a device waits for its first micro-batch, it costs nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from purine.graph import Builder, Graph, Location, Op
from purine.kinds.packed_filters import can_pack, pack
from purine.lowering.prepared import Prepared
from purine.registry.kind import Kernel, Kind, register

__all__ = ["PACK", "with_packed_filters"]

PACK = "PackFilters"
"""The kind of an op that lays filters out for convolutions."""

register(Kind(PACK, None, ("filters",)))

_LEAST = 3
"""Readers from which it pays: packing takes as long as it saves for two."""


def with_packed_filters(graph: Graph) -> Prepared:
    """The graph with the filters packed that several convolutions of a device read."""
    readers: dict[tuple[Location, str, str, object], list[Op]] = {}
    for op in graph.ops.values():
        found = can_pack(op, graph.blobs)
        if found is not None and _plain_bias(op, graph):
            name, layout = found
            alike = graph.blobs[op.inputs[0]].shape, tuple(sorted(op.attributes.items()))
            readers.setdefault((op.location, name, layout, alike), []).append(op)
    builder = Builder(graph)
    kernels: dict[str, Kernel] = {}
    for (location, name, layout, _), ops in readers.items():
        if len(ops) < _LEAST:
            continue
        made = builder.fresh(f"{name}/{layout}")
        blob = replace(graph.blobs[name], name=made, location=location, layout=layout)
        first = ops[0]
        builder.add(blob)
        builder.add(Op(made, PACK, (name,), (made,), location=location, lane=first.lane))
        kernels[made] = partial(pack, first, graph.blobs)
        for op in ops:
            inputs = tuple(made if read == name else read for read in op.inputs)
            builder.ops[op.name] = replace(op, inputs=inputs)
    return Prepared(builder.graph() if kernels else graph, kernels)


def _plain_bias(op: Op, graph: Graph) -> bool:
    """Whether the numbers of a bias lie side by side, which the library takes for granted.

    Those of a state do, and those of a view may not.
    """
    return op.kind != "aten.convolution" or graph.states.keys() >= set(op.inputs[2:])
