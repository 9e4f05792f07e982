"""Sums at given places on GPUs, in an order that is the same from run to run.

Gradients of embeddings, and of whatever else picks values by index, add up what was picked several
times. ATen's kernels for this, and those that a compiler makes, add in the order in which blocks
come, so the last bits differ each time. Sums of whole rows are made by a kernel of our own
(`gpu_rows.py`), others by the one of ATen's that sorts first, `index_put_`. Both are ops of our own
that a compiler leaves alone.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from purine.ops.aten import KERNELS

__all__ = ["add_at", "add_rows"]


@torch.library.custom_op("purine::add_at", mutates_args=("total",))
def add_at(total: Tensor, index: Sequence[Tensor | None], values: Tensor) -> None:
    """Add values to a tensor in place, where `index` says, as in `total[index] += values`."""
    torch.ops.aten.index_put_.default(total, index, values, accumulate=True)


@torch.library.custom_op("purine::add_rows", mutates_args=("total",))
def add_rows(total: Tensor, index: Tensor, rows: Tensor) -> None:
    """Add rows to those of a tensor that `index` names, in place. No index is below 0."""
    if total.is_cuda and total.is_contiguous() and _has_triton():
        from purine.ops.gpu_rows import sum_rows

        sum_rows(total, index, rows)
    else:
        torch.ops.aten.index_put_.default(total, [index], rows, accumulate=True)


@add_at.register_fake
def _(total: Tensor, index: Sequence[Tensor | None], values: Tensor) -> None:
    return None


@add_rows.register_fake
def _(total: Tensor, index: Tensor, rows: Tensor) -> None:
    return None


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    return _index_add_over(x.clone(), dim, index, source, alpha=alpha)


def _index_add_over(
    x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    values = source if alpha == 1 else alpha * source
    if dim % x.ndim == 0:
        add_rows(x, index, values)
    else:
        add_at(x, [*[None] * (dim % x.ndim), index], values)
    return x


def _index_put(
    x: Tensor, index: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    total = x.clone()
    if accumulate:
        add_at(total, index, values)
        return total
    return torch.ops.aten.index_put_.default(total, index, values)


def _scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    along = [torch.arange(size, device=x.device) for size in index.shape]
    places = list(torch.meshgrid(*along, indexing="ij"))
    places[dim] = index
    total = x.clone()
    add_at(total, places, source[tuple(map(slice, index.shape))])
    return total


def _embedding_gradient(
    rows: Tensor, index: Tensor, count: int, padding: int, by_frequency: bool
) -> Tensor:
    if by_frequency:
        return torch.ops.aten.embedding_dense_backward.default(
            rows, index, count, padding, by_frequency
        )
    if padding >= 0:
        rows = rows.masked_fill((index == padding).unsqueeze(-1), 0)
    total = rows.new_zeros(count, rows.shape[-1])
    add_rows(total, index, rows)
    return total


KERNELS["aten.index_add", "cuda"] = _index_add
KERNELS["aten.index_add_", "cuda"] = _index_add_over
KERNELS["aten.index_put", "cuda"] = _index_put
KERNELS["aten.scatter_add", "cuda"] = _scatter_add
KERNELS["aten.embedding_dense_backward", "cuda"] = _embedding_gradient
