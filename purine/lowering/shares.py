"""Large parameters, whose gradients are averaged and applied in shares by all devices.

One owner for each parameter leaves the others idle where a parameter is larger than all the rest.
Devices that share memory need not choose: each takes a share of the elements, adds up the gradients
of all replicas and updates weight and slots in place, piece by piece, so that the mean stays in the
cache and never becomes a buffer. What is computed for an element does not change, so the bits do
not, and the state is one tensor as before.

A share may write over the weight only when nobody reads it any more. Reader counts decide that
while a graph runs; here it has to hold for all shares at once, so all other readers come first, by
control edges. Nothing waits for an update within its iteration, so these close no cycle.

Gradients that are matrix products are made in memory that is kept from iteration to iteration. The
C library gives buffers of this size back to the system, which clears their pages each time, while
the lanes of a process wait for each other. A step has these gradients together with most of its
activations, so keeping them hardly raises its peak.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from purine.analysis.infer import families, size_in_bytes
from purine.graph import Builder, Graph, Location, Op
from purine.kinds.average import is_flat
from purine.lowering.prepared import Prepared
from purine.registry.facts import Role
from purine.registry.kind import Kernel, Kind, PerOp, Results, register
from purine.registry.lookup import lookup

__all__ = ["PRODUCT", "SHARE", "SHARED", "in_shares"]

PRODUCT = "KeptProduct"
"""The kind of a matrix product whose memory is used again."""
SHARE = "UpdateShare"
"""The kind of an op that averages and applies a share of a parameter's gradients."""
SHARED = "UpdateShared"
"""The kind of the op behind all shares, which carries the states on."""

register(Kind(PRODUCT, None, ("one", "other")))
register(Kind(SHARE, None, (), variadic=True))
register(
    Kind(
        SHARED,
        None,
        (),
        variadic=True,
        per_op=PerOp(overwrites=lambda op: tuple(range(len(op.inputs)))),
    )
)

_LARGE = 8 << 20
"""Bytes of a parameter from which shares pay."""
_GRAIN = 1 << 15
"""Shares are multiples of this many elements, so that vectors of a kernel never straddle two."""
_PIECE = 1 << 18
"""Elements that are averaged and applied at a time: these stay in the cache."""


def in_shares(graph: Graph, *, large: int = _LARGE) -> Prepared:
    """The graph with the updates of parameters of `large` bytes divided among the replicas."""
    pairs = [
        (op, graph.producers[op.inputs[1]])
        for op in graph.ops.values()
        if lookup(op).facts.role is Role.ELEMENTWISE_UPDATE and op.inputs[1] in graph.producers
    ]
    pairs = [(update, mean) for update, mean in pairs if _divisible(graph, update, mean, large)]
    if not pairs:
        return Prepared(graph)
    family = families(graph)
    builder = Builder(graph)
    kernels: dict[str, Kernel] = {}
    for update, mean in pairs:
        written = {family[update.inputs[place]] for place in lookup(update).overwrites(update)}
        if not any(
            _lives_on(graph, update.inputs[k], family) for k in lookup(update).overwrites(update)
        ):
            readers = [
                op.name
                for op in graph.ops.values()
                if op is not update and not written.isdisjoint(family[name] for name in op.inputs)
            ]
            _divide(graph, builder, kernels, update, mean, readers)
    return Prepared(builder.graph(), kernels)


def _divisible(graph: Graph, update: Op, mean: Op, large: int) -> bool:
    """Whether nobody else wants the mean, and memory and sizes allow to divide it."""
    gradient = update.inputs[1]
    places = _places(graph, mean)
    return (
        mean.kind == "Average"
        and mean.outputs == (gradient,)
        and _is_for(graph, gradient, update)
        and graph.successors[mean.name] == (update.name,)
        and not graph.successors[update.name]
        and size_in_bytes(graph.blobs[update.inputs[0]]) >= large
        and len(places) > 1
        and all(place.device.startswith("cpu") for place in places)
        and len({place.host for place in places}) == 1
    )


def _places(graph: Graph, mean: Op) -> list[Location]:
    made = [graph.producers[name] for name in mean.inputs if name in graph.producers]
    return list(dict.fromkeys(op.location for op in made))


def _is_for(graph: Graph, name: str, reader: Op) -> bool:
    """Whether a blob is read once, by this op, and is gone then."""
    return (
        [op.name for op in graph.consumers[name]] == [reader.name]
        and reader.inputs.count(name) == 1
        and name not in graph.outputs
        and all(state.next != name for state in graph.states.values())
    )


def _lives_on(graph: Graph, name: str, family: Mapping[str, str]) -> bool:
    """Whether the memory of a state is wanted beyond the readers of this iteration."""
    kin = {other for other in graph.blobs if family[other] == family[name]}
    if name not in graph.states or not kin.isdisjoint(graph.outputs):
        return True
    following = graph.states[name].next
    return following in graph.outputs or any(
        state.next in kin or (state.next == following and state.read != name)
        for state in graph.states.values()
    )


def _divide(
    graph: Graph,
    builder: Builder,
    kernels: dict[str, Kernel],
    update: Op,
    mean: Op,
    readers: Sequence[str],
) -> None:
    """Put shares and what carries the states on in place of a mean and an update."""
    places = _places(graph, mean)
    length = math.prod(graph.blobs[update.inputs[0]].shape or ())
    grains = -(-length // _GRAIN)
    bounds = [grains * k // len(places) * _GRAIN for k in range(len(places))] + [length]
    before = {name for name, later in builder.control if later in (mean.name, update.name)}
    builder.control = {edge for edge in builder.control if edge[1] not in (mean.name, update.name)}
    del builder.ops[mean.name], builder.ops[update.name], builder.blobs[update.inputs[1]]
    given = (update.inputs[0], *update.inputs[2:], *mean.inputs)
    for number, place in enumerate(places):
        start, stop = bounds[number : number + 2]
        if start == stop:
            continue
        name = f"{update.name}/share{number}"
        builder.ops[name] = replace(
            mean, name=name, kind=SHARE, inputs=given, outputs=(), attributes={}, location=place
        )
        kernels[name] = _share(update, mean, start, stop)
        builder.control |= {(reader, name) for reader in {*readers, *before}}
        builder.control.add((name, update.name))
    products = []
    for name in mean.inputs:
        op = graph.producers.get(name)
        if op is not None and op.kind == "aten.mm" and _is_for(graph, name, mean):
            products.append(_Product())
            builder.ops[op.name] = replace(op, kind=PRODUCT)
            kernels[op.name] = products[-1].make
    written = tuple(update.inputs[place] for place in lookup(update).overwrites(update))
    builder.ops[update.name] = replace(update, kind=SHARED, inputs=written, attributes={})
    kernels[update.name] = _carry(products)


class _Product:
    """Makes a matrix product in memory that an earlier iteration is through with, if there is any.

    An iteration may begin before the one ahead of it is over, so there may be several buffers.
    """

    def __init__(self) -> None:
        self.lent: deque[Tensor] = deque()
        self.free: deque[Tensor] = deque()

    def make(self, one: Tensor, other: Tensor) -> Tensor:
        out = self.free.popleft() if self.free else None
        made = torch.mm(one, other, out=out)
        self.lent.append(made)
        return made

    def take_back(self) -> None:
        self.free.append(self.lent.popleft())


def _carry(products: Sequence[_Product]) -> Kernel:
    """Hand on what the shares have written over."""

    def kernel(*written: Tensor) -> Results:
        for product in products:
            product.take_back()
        return written[0] if len(written) == 1 else written

    return kernel


def _share(update: Op, mean: Op, start: int, stop: int) -> Kernel:
    """Average and apply the elements from `start` to `stop`.

    Where the tensors lie in memory in different orders, no stretch of it has the same elements in
    all: then the share that starts at 0 is all.
    """
    apply, average = lookup(update).bind_overwrite(update), lookup(mean).bind_many(mean)
    others = len(update.inputs) - 1

    def once(tensors: Sequence[Tensor]) -> None:
        ((gradient,),) = average(*([part] for part in tensors[others:]))
        apply(tensors[0], gradient, *tensors[1:others])

    def kernel(*tensors: Tensor) -> Results:
        weight = tensors[0]
        long = [tensor.shape == weight.shape for tensor in tensors]
        if not all(is_flat(t, weight) for t, cut in zip(tensors, long, strict=True) if cut):
            if not start:
                once(tensors)
            return ()
        for begin in range(start, stop, _PIECE):
            size = min(_PIECE, stop - begin)
            once(
                [
                    torch.as_strided(t, [size], [1], t.storage_offset() + begin) if cut else t
                    for t, cut in zip(tensors, long, strict=True)
                ]
            )
        return ()

    return kernel
