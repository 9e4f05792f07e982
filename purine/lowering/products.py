"""Lowering pass `products`: write gradients of large parameters to memory that is reused.

The gradient of an inner product is a matrix product as large as the parameter. New memory for it in
each iteration takes longer than sending it to the owner, because the system clears every page. So
in a run on several hosts the memory is kept, and reused when no tensor holds it any more.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from purine.analysis.infer import size_in_bytes
from purine.graph import Builder, Graph
from purine.lowering.lowered import Lowered
from purine.lowering.shares import PRODUCT
from purine.placement.devices import is_cpu
from purine.registry.kind import Kernel

__all__ = ["with_kept_products"]

_LARGE = 8 << 20
"""Bytes of a product from which it pays to keep its memory."""


def with_kept_products(graph: Graph) -> Lowered:
    """The graph with large matrix products in memory that is reused between iterations."""
    builder, kernels = Builder(graph), dict[str, Kernel]()
    for op in graph.ops.values():
        if op.kind != "aten.mm" or not is_cpu(op.location):
            continue
        if size_in_bytes(graph.blobs[op.outputs[0]]) >= _LARGE:
            builder.ops[op.name] = replace(op, kind=PRODUCT)
            kernels[op.name] = _Product().compute
    return Lowered(builder.graph() if kernels else graph, kernels)


class _Product:
    """Computes a matrix product into memory of an earlier iteration, if nothing holds it.

    Iterations overlap, so there may be several pieces of memory.
    """

    def __init__(self) -> None:
        self.kept: list[torch.UntypedStorage] = []

    def compute(self, one: Tensor, other: Tensor) -> Tensor:
        shape = one.shape[0], other.shape[1]
        # Memory is free where the list alone holds it.
        uses = torch._C._storage_Use_Count
        storage = next((kept for kept in self.kept if uses(kept._cdata) == 1), None)
        if storage is None:
            storage = torch.empty(math.prod(shape), dtype=one.dtype).untyped_storage()
            self.kept.append(storage)
        out = torch.empty(0, dtype=one.dtype).set_(storage, 0, shape, (shape[1], 1))
        return torch.mm(one, other, out=out)
