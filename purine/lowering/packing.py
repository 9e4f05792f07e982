"""Lowering pass `packing`: reorder filters once for all convolutions that read them.

The micro-batches of a step read the same filters. A `PackFilters` op writes them in the layout of
the library's kernels, and the convolutions of one device read its output. It waits only for the
filters, so it runs while a pipeline stage waits for its first micro-batch.

The gain depends on the number of micro-batches: none on one core with four, and 4.5 % of a step of
GoogLeNet in a 1F1B pipeline of two cores with eight.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from purine.graph import Builder, Graph, Location, Op
from purine.graph.nodes import floats
from purine.kinds.packed_filters import can_pack, pack
from purine.lowering.lowered import Lowered
from purine.registry.kind import Kernel, Kind, register

__all__ = ["PACK", "with_packed_filters"]

PACK = "PackFilters"
"""The kind of an op that packs filters."""

register(Kind(PACK, None, ("filters",)))

_LEAST = 3
"""Readers from which packing pays: it takes as long as it saves for two."""


def with_packed_filters(graph: Graph) -> Lowered:
    """The graph with packed filters where several convolutions of a device read them."""
    readers: dict[tuple[Location, str, str, object], list[Op]] = {}
    for op in graph.ops.values():
        packable = can_pack(op, graph.blobs)
        # The library takes a bias for contiguous without a look. A state is; a view may not be.
        plain = op.kind != "aten.convolution" or graph.states.keys() >= set(op.inputs[2:])
        if packable is not None and plain:
            name, layout = packable
            form = graph.blobs[op.inputs[0]].shape, tuple(sorted(op.attributes.items()))
            readers.setdefault((op.location, name, layout, form), []).append(op)
    builder = Builder(graph)
    kernels: dict[str, Kernel] = {}
    for (location, name, layout, _), ops in readers.items():
        if len(ops) < _LEAST:
            continue
        packed = builder.fresh(f"{name}/{layout}")
        first = ops[0]
        builder.add(replace(graph.blobs[name], name=packed, location=location, layout=layout))
        # Lanes that float do not wait for each other.
        lane = "compute" if floats(first.lane) else first.lane
        builder.add(Op(packed, PACK, (name,), (packed,), location=location, lane=lane))
        kernels[packed] = partial(pack, first, graph.blobs)
        for op in ops:
            inputs = tuple(packed if read == name else read for read in op.inputs)
            builder.ops[op.name] = replace(op, inputs=inputs)
    return Lowered(builder.graph() if kernels else graph, kernels)
