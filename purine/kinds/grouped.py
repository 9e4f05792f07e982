"""Products of groups of rows with a matrix each, for mixtures of experts.

Rows are sorted by group; `ends` has the end of each group. The sizes of groups are data, so the
products are one op. On the CPU it slices the rows; on a GPU, which is not waited for, it multiplies
all rows with each matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from purine.registry.gradient import RULES, Emit, Pull, Rule, lower_unchanged
from purine.registry.kind import kind, opaque


@kind
@opaque(lambda x, weight, ends: x.new_empty(x.shape[0], weight.shape[2]))
def GroupedProduct(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Each row of x [N, K] times the matrix of its group, of weight [G, K, M]; else zeros."""
    product = x.new_zeros(x.shape[0], weight.shape[2])
    for group, rows in _groups(ends, x.shape[0]):
        if isinstance(rows, slice):
            torch.mm(x[rows], weight[group], out=product[rows])
        else:
            product = torch.where(rows, x @ weight[group], product)
    return product


@kind
@opaque(lambda x, cotangent, ends: x.new_empty(ends.shape[0], x.shape[1], cotangent.shape[1]))
def GroupedProductGradient(x: Tensor, cotangent: Tensor, ends: Tensor) -> Tensor:
    """The gradient of the weight of a `GroupedProduct`."""
    gradient = x.new_zeros(ends.shape[0], x.shape[1], cotangent.shape[1])
    for group, rows in _groups(ends, x.shape[0]):
        own = cotangent[rows] if isinstance(rows, slice) else cotangent.where(rows, 0)
        torch.mm(x[rows].t() if isinstance(rows, slice) else x.t(), own, out=gradient[group])
    return gradient


def _groups(ends: Tensor, rows: int) -> Iterator[tuple[int, slice | Tensor]]:
    """The rows of each group: a slice on the CPU, else whether a row is one of them."""
    if ends.device.type == "cpu":
        start = 0
        for group, end in enumerate(ends.tolist()):
            yield group, slice(start, end)
            start = end
        return
    row = torch.arange(rows, device=ends.device).unsqueeze(1)
    for group in range(ends.shape[0]):
        below = row < ends[group]
        yield group, below if group == 0 else below & (row >= ends[group - 1])


def _pull(emit: Emit, pull: Pull) -> Sequence[str | None]:
    x, weight, ends = pull.op.inputs
    gradients: list[str | None] = [None, None, None]
    if pull.wanted[0]:
        (turned,) = emit("aten.transpose.int", [weight], {"dim0": 1, "dim1": 2})
        (gradients[0],) = emit("GroupedProduct", [pull.cotangent, turned, ends])
    if pull.wanted[1]:
        (gradients[1],) = emit("GroupedProductGradient", [x, pull.cotangent, ends])
    return gradients


RULES["GroupedProduct"] = Rule(lower_unchanged, _pull)
