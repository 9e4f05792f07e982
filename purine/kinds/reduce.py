"""Sums and means over the last dimensions, and the places of the greatest values."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from purine.analysis.shapes import checked_axis
from purine.registry.facts import Facts, Precision
from purine.registry.kind import kind


@kind(facts=Facts(Precision.WIDE))
def Reduction(
    x: Tensor,
    *,
    operation: Literal["sum", "absolute", "square", "mean"] = "sum",
    axis: int = 0,
    coefficient: float = 1.0,
) -> Tensor:
    """The sum over all dimensions from `axis` on, of x, |x| or x squared, or the mean of x."""
    flat = x.flatten(checked_axis(x, axis))
    if operation == "mean":
        reduced = flat.mean(-1)
    elif operation == "sum":
        reduced = flat.sum(-1)
    else:
        reduced = (flat.abs() if operation == "absolute" else flat * flat).sum(-1)
    return reduced if coefficient == 1.0 else reduced * coefficient


@kind(facts=Facts(Precision.WIDE))
def ArgMax(x: Tensor, *, top_k: int = 1, axis: int | None = None, values: bool = False) -> Tensor:
    """The indices of the `top_k` greatest values of each sample, in the dtype of x.

    With an `axis`, the indices along it, or with `values` the values there. Without one the result
    is [N, 1, top_k], or with `values` indices and values, [N, 2, top_k].
    """
    if axis is not None:
        best = x.detach().topk(top_k, axis)
        return best.values if values else best.indices.to(x.dtype)
    best = x.detach().flatten(1).topk(top_k, 1)
    indices = best.indices.to(x.dtype)
    return torch.stack([indices, best.values] if values else [indices], 1)
