"""Convolutions that read the same blob, joined into one.

The branches of an inception block begin with 1 x 1 convolutions of the same input. One convolution
with all their filters reads that input once, and gives its gradient without a sum. Parameters keep
their names and values; the filters are concatenated in every iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from purine.analysis.infer import complete
from purine.arguments import checked
from purine.graph import Attribute, Builder, Graph, Op
from purine.registry.facts import Role
from purine.registry.lookup import lookup

__all__ = ["join"]


@checked
def join(net: Graph) -> Graph:
    """The net with one convolution for all those of the same form that read the same blob.

    Use it before `backward`, for GPUs, where few large kernels are faster than many small ones.

    >>> from purine.zoo import googlenet
    >>> net = googlenet(batch=2)
    >>> [sum(op.kind == "Conv" for op in graph.ops.values()) for graph in (net, join(net))]
    [59, 41]
    """
    net = complete(net)
    builder = Builder(net)
    for members in _siblings(net):
        _join(builder, net, members)
    return builder.graph()


def _siblings(net: Graph) -> Iterator[list[Op]]:
    """Convolutions that differ in their filters alone."""
    groups: dict[tuple[object, ...], list[Op]] = {}
    ordered = {name for edge in net.control for name in edge}
    for op in net.in_order:
        if lookup(op).facts.role is not Role.CONVOLUTION or op.attributes.get("groups", 1) != 1:
            continue
        if op.attributes.get("transposed") or any(i not in net.states for i in op.inputs[1:]):
            continue
        if len(net.blobs[op.outputs[0]].shape or ()) != 4 or op.name in ordered:
            continue
        weight = net.blobs[op.inputs[1]]
        key = (
            *(op.kind, repr(sorted(op.attributes.items())), op.location, op.lane),
            *(op.inputs[0], len(op.inputs), weight.dtype, weight.sizes[1:]),
        )
        groups.setdefault(key, []).append(op)
    yield from (members for members in groups.values() if len(members) > 1)


def _join(builder: Builder, net: Graph, members: list[Op]) -> None:
    first = members[0]
    counts = [net.blobs[op.inputs[1]].sizes[0] for op in members]

    def add(
        name: str, kind: str, inputs: Sequence[str], shape: Sequence[int], **settings: Attribute
    ) -> str:
        name = builder.fresh(name)
        builder.blob(name, shape, net.blobs[first.outputs[0]].dtype, first.location)
        builder.op(name, kind, inputs, [name], settings, location=first.location, lane=first.lane)
        return name

    title = f"{first.outputs[0]}/joined"
    inputs = [first.inputs[0]]
    for column in zip(*(op.inputs[1:] for op in members), strict=True):
        role = "weight" if len(inputs) == 1 else "bias"
        shape = (sum(counts), *net.blobs[column[0]].sizes[1:])
        inputs.append(add(f"{title}/{role}", "Concat", column, shape, axis=0))
    for op in members:
        del builder.ops[op.name]
    shape = net.blobs[first.outputs[0]].sizes
    whole = add(title, first.kind, inputs, (shape[0], sum(counts), *shape[2:]), **first.attributes)
    split, outputs = builder.fresh(f"{whole}/parts"), [n for op in members for n in op.outputs]
    settings: dict[str, Attribute] = {"split_sizes": tuple(counts), "dim": 1}
    at, lane = first.location, first.lane
    builder.op(split, "aten.split_with_sizes", [whole], outputs, settings, location=at, lane=lane)
