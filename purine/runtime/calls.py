"""The kernels of collectives between hosts: values as flat memory, and one call for each."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from purine.graph import CHANNELS_LAST, Blob, Graph, Op
from purine.lowering.together import BROADCAST, collective_of
from purine.registry.aten import device_of, dtype_of
from purine.registry.kind import Kernel, Results
from purine.transports.base import shaped
from purine.transports.communicator import Communicator

__all__ = ["kernel_of"]


def kernel_of(graph: Graph, op: Op, communicator: Communicator) -> Kernel:
    """The kernel of an op that is a host's part of a collective."""
    if op.kind == BROADCAST:
        return _broadcast(graph, op, communicator)
    return _reduce(graph, op, communicator)


def _reduce(graph: Graph, op: Op, communicator: Communicator) -> Kernel:
    """All blobs of one dtype are added up in one call."""
    one, weight = collective_of(op), op.attributes["weight"]
    assert one is not None
    assert isinstance(weight, float | int)
    blobs = [graph.blobs[name] for name in op.inputs]
    by_dtype: dict[str, list[int]] = {}
    for position, blob in enumerate(blobs):
        by_dtype.setdefault(blob.dtype, []).append(position)

    def kernel(*values: Tensor) -> Results:
        sums: dict[int, Tensor] = {}
        for positions in by_dtype.values():
            lines = [_line(values[position], blobs[position]) for position in positions]
            total = torch.cat(lines).mul_(weight)
            communicator.reduce(total, one.root)
            parts = torch.split(total, [len(line) for line in lines])
            for position, part in zip(positions, parts, strict=True):
                sums[position] = shaped(part, blobs[position])
        return _results([sums[position] for position in range(len(blobs))] if op.outputs else [])

    return kernel


def _broadcast(graph: Graph, op: Op, communicator: Communicator) -> Kernel:
    one, (blob,) = collective_of(op), [graph.blobs[name] for name in (*op.inputs, *op.outputs)]
    assert one is not None
    size, dtype, device = prod(blob.shape or ()), dtype_of(blob.dtype), device_of(blob.location)

    def kernel(*values: Tensor) -> Results:
        line = _line(values[0], blob) if values else torch.empty(size, dtype=dtype, device=device)
        communicator.broadcast(line, one.root)
        return _results([] if values else [shaped(line, blob)])

    return kernel


def _results(values: Sequence[Tensor]) -> Results:
    return values[0] if len(values) == 1 else tuple(values)


def _line(value: Tensor, blob: Blob) -> Tensor:
    """The elements of a value in the order of its layout, which is the same on all hosts."""
    return (value.movedim(1, -1) if blob.layout == CHANNELS_LAST else value).reshape(-1)
