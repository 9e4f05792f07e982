"""Lowering pass `shares`: all devices average and apply a part of each large gradient.

If devices share memory, a parameter need not have one owner that the others wait for: each device
takes a share of the elements, adds the gradients of all replicas and updates weight and optimizer
state in place, in pieces whose mean stays in the cache. The bits of an element stay the same.

Control edges make all other readers of the weight run before the shares, which overwrite it. No op
waits for an update within its iteration, so these edges form no cycle.

Gradients that are matrix products are written to buffers that are reused in later iterations: the
system would clear the pages of new ones on each allocation.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

import torch
from torch import Tensor

from purine.analysis.infer import families, size_in_bytes
from purine.graph import Builder, Graph, Location, Op
from purine.kinds.average import is_flat
from purine.lowering.lowered import Lowered
from purine.registry.facts import Role
from purine.registry.kind import Kernel, Kind, PerOp, Results, register
from purine.registry.lookup import lookup

__all__ = ["PRODUCT", "SHARE", "SHARED", "in_shares"]

PRODUCT = "KeptProduct"
"""The kind of a matrix product whose buffer is kept between iterations."""
SHARE = "UpdateShare"
"""The kind of an op that averages and applies a share of a parameter's gradients."""
SHARED = "UpdateShared"
"""The kind of the op behind all shares, whose outputs are the next values of the states."""

register(Kind(PRODUCT, None, ("one", "other")))
register(Kind(SHARE, None, (), variadic=True))
_ALL = PerOp(overwrites=lambda op: tuple(range(len(op.inputs))))
register(Kind(SHARED, None, (), variadic=True, per_op=_ALL))

_LARGE = 8 << 20
"""Bytes of a parameter from which shares pay."""
_GRAIN = 1 << 15
"""Shares are multiples of this many elements: no vector of a kernel straddles two shares."""
_PIECE = 1 << 18
"""Elements that are averaged and applied at a time; they stay in the cache."""


def in_shares(graph: Graph, *, large: int | None = None) -> Lowered:
    """The graph with the updates of parameters of `large` bytes divided among the replicas."""
    large = _LARGE if large is None else large
    pairs = [
        (op, graph.producers[op.inputs[1]])
        for op in graph.ops.values()
        if lookup(op).facts.role is Role.ELEMENTWISE_UPDATE and op.inputs[1] in graph.producers
    ]
    pairs = [(update, mean) for update, mean in pairs if _divisible(graph, update, mean, large)]
    if not pairs:
        return Lowered(graph)
    family = families(graph)
    builder = Builder(graph)
    kernels: dict[str, Kernel] = {}
    for update, mean in pairs:
        names = [update.inputs[position] for position in lookup(update).overwrites(update)]
        written = {family[name] for name in names}
        if not any(_lives_on(graph, name, family) for name in names):
            readers = {
                op.name
                for op in graph.ops.values()
                if op is not update and not written.isdisjoint(family[name] for name in op.inputs)
            }
            kernels |= _divide(graph, builder, update, mean, readers)
    return Lowered(builder.graph() if kernels else graph, kernels)


def _divisible(graph: Graph, update: Op, mean: Op, large: int) -> bool:
    """Whether the update is the mean's only reader, and sizes and memory allow dividing both."""
    gradient = update.inputs[1]
    locations = _locations(graph, mean)
    state = graph.states.get(update.inputs[0])
    return (
        mean.kind == "Average"
        and update.every == 1
        and not (state is not None and state.versioned)
        and mean.outputs == (gradient,)
        and _only_reader(graph, gradient, update)
        and graph.successors[mean.name] == (update.name,)
        and not graph.successors[update.name]
        and size_in_bytes(graph.blobs[update.inputs[0]]) >= large
        and len(locations) > 1
        and all(location.device.startswith("cpu") for location in locations)
        and len({location.host for location in locations}) == 1
    )


def _locations(graph: Graph, mean: Op) -> list[Location]:
    """The locations of the replicas whose gradients are averaged."""
    producers = [graph.producers[name] for name in mean.inputs if name in graph.producers]
    return list(dict.fromkeys(op.location for op in producers))


def _only_reader(graph: Graph, name: str, reader: Op) -> bool:
    """Whether a blob is read once, by this op, and is not needed afterwards."""
    return (
        [op.name for op in graph.consumers[name]] == [reader.name]
        and reader.inputs.count(name) == 1
        and name not in graph.outputs
        and all(state.next != name for state in graph.states.values())
    )


def _lives_on(graph: Graph, name: str, family: Mapping[str, str]) -> bool:
    """Whether the old value of a state is needed after its readers of this iteration."""
    views = {other for other in graph.blobs if family[other] == family[name]}
    if name not in graph.states or not views.isdisjoint(graph.outputs):
        return True
    following = graph.states[name].next
    return following in graph.outputs or any(
        state.next in views or (state.next == following and state.read != name)
        for state in graph.states.values()
    )


def _divide(
    graph: Graph, builder: Builder, update: Op, mean: Op, readers: Set[str]
) -> dict[str, Kernel]:
    """Replace a mean and an update by shares and an op after them; returns their kernels."""
    before = {name for name, later in builder.control if later in (mean.name, update.name)}
    builder.control = {edge for edge in builder.control if edge[1] not in (mean.name, update.name)}
    del builder.ops[mean.name], builder.ops[update.name], builder.blobs[update.inputs[1]]
    inputs = (update.inputs[0], *update.inputs[2:], *mean.inputs)
    kernels: dict[str, Kernel] = {}
    for number, (location, start, stop) in enumerate(_bounds(graph, update, mean)):
        if start == stop:
            continue
        name = f"{update.name}/share{number}"
        share = Op(name, SHARE, inputs, (), {}, location, mean.lane, mean.where, mean.origin)
        builder.ops[name] = share
        kernels[name] = _share(update, mean, start, stop)
        builder.control |= {(reader, name) for reader in readers | before}
        builder.control.add((name, update.name))
    products = []
    for name in mean.inputs:
        op = graph.producers.get(name)
        if op is not None and op.kind == "aten.mm" and _only_reader(graph, name, mean):
            products.append(_Product())
            builder.ops[op.name] = replace(op, kind=PRODUCT)
            kernels[op.name] = products[-1].compute
    written = tuple(update.inputs[position] for position in lookup(update).overwrites(update))
    builder.ops[update.name] = replace(update, kind=SHARED, inputs=written, attributes={})
    kernels[update.name] = _carry(products)
    return kernels


def _bounds(graph: Graph, update: Op, mean: Op) -> Iterator[tuple[Location, int, int]]:
    """The location of each share, its first element, and the end of its range."""
    locations = _locations(graph, mean)
    length = math.prod(graph.blobs[update.inputs[0]].shape or ())
    grains = -(-length // _GRAIN)
    starts = [grains * k // len(locations) * _GRAIN for k in range(len(locations))]
    return zip(locations, starts, [*starts[1:], length], strict=True)


class _Product:
    """Computes a matrix product into a buffer that an earlier iteration no longer needs, if any.

    Iterations overlap, so there may be several buffers.
    """

    def __init__(self) -> None:
        self.lent: deque[Tensor] = deque()
        self.free: deque[Tensor] = deque()

    def compute(self, one: Tensor, other: Tensor) -> Tensor:
        out = self.free.popleft() if self.free else None
        product = torch.mm(one, other, out=out)
        self.lent.append(product)
        return product

    def take_back(self) -> None:
        self.free.append(self.lent.popleft())


def _carry(products: Sequence[_Product]) -> Kernel:
    """A kernel that returns the tensors that the shares have overwritten."""

    def kernel(*written: Tensor) -> Results:
        for product in products:
            product.take_back()
        return written[0] if len(written) == 1 else written

    return kernel


def _share(update: Op, mean: Op, start: int, stop: int) -> Kernel:
    """A kernel that averages and applies the elements from `start` to `stop`, in memory order.

    If the tensors have different strides, a range of memory holds different elements in each. Then
    the share that starts at 0 does all elements, and the others nothing.
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
            pieces = [
                torch.as_strided(t, [size], [1], t.storage_offset() + begin) if cut else t
                for t, cut in zip(tensors, long, strict=True)
            ]
            once(pieces)
        return ()

    return kernel
