"""Products of groups of rows with a matrix each, as a layer of experts has them.

Rows are in the order of their groups; `ends` holds where each group ends. How many rows a group has
is data, so the products are one op: on the CPU it cuts the rows by their ends. A GPU is not asked
for them, and multiplies all rows with each matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from purine.graph import Op
from purine.registry.gradient import RULES, Emit, Rule
from purine.registry.kind import kind

__all__ = ["GroupedProduct", "GroupedProductGradient"]


@torch.library.custom_op("purine::grouped_product", mutates_args=())
def grouped_product(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    product = x.new_zeros(x.shape[0], weight.shape[2])
    for group, rows in _groups(ends, x.shape[0]):
        if isinstance(rows, slice):
            torch.mm(x[rows], weight[group], out=product[rows])
        else:
            product = torch.where(rows, x @ weight[group], product)
    return product


@grouped_product.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[2])


@torch.library.custom_op("purine::grouped_product_gradient", mutates_args=())
def grouped_product_gradient(x: Tensor, cotangent: Tensor, ends: Tensor) -> Tensor:
    gradient = x.new_zeros(ends.shape[0], x.shape[1], cotangent.shape[1])
    for group, rows in _groups(ends, x.shape[0]):
        own = cotangent[rows] if isinstance(rows, slice) else cotangent.where(rows, 0)
        torch.mm(x[rows].t() if isinstance(rows, slice) else x.t(), own, out=gradient[group])
    return gradient


@grouped_product_gradient.register_fake
def _(x: Tensor, cotangent: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(ends.shape[0], x.shape[1], cotangent.shape[1])


def _groups(ends: Tensor, rows: int) -> Iterator[tuple[int, slice | Tensor]]:
    """The rows of each group: a slice on the CPU, else whether a row is one of them."""
    if ends.device.type == "cpu":
        start = 0
        for group, end in enumerate(ends.tolist()):
            yield group, slice(start, end)
            start = end
        return
    place = torch.arange(rows, device=ends.device).unsqueeze(1)
    for group in range(ends.shape[0]):
        below = place < ends[group]
        yield group, below if group == 0 else below & (place >= ends[group - 1])


@kind
def GroupedProduct(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Each row of x [N, K] times the matrix of its group, of weight [G, K, M]; else zeros."""
    product: Tensor = grouped_product(x, weight, ends)
    return product


@kind
def GroupedProductGradient(x: Tensor, cotangent: Tensor, ends: Tensor) -> Tensor:
    """The gradient of the weight of a `GroupedProduct`."""
    gradient: Tensor = grouped_product_gradient(x, cotangent, ends)
    return gradient


def _lower(emit: Emit, op: Op) -> tuple[str, ...]:
    emit(op.kind, op.inputs, outputs=op.outputs)
    return op.inputs


def _pull(
    emit: Emit,
    op: Op,
    saved: Sequence[str],
    cotangents: Sequence[str | None],
    wanted: Sequence[bool],
) -> Sequence[str | None]:
    x, weight, ends = saved
    (cotangent,) = cotangents
    assert cotangent is not None
    gradients: list[str | None] = [None, None, None]
    if wanted[0]:
        (turned,) = emit("aten.transpose.int", [weight], {"dim0": 1, "dim1": 2})
        (gradients[0],) = emit("GroupedProduct", [cotangent, turned, ends])
    if wanted[1]:
        (gradients[1],) = emit("GroupedProductGradient", [x, cotangent, ends])
    return gradients


RULES["GroupedProduct"] = Rule(_lower, _pull)
