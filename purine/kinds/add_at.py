"""Deterministic sums by index on GPUs, for the gradients of embeddings and indexing.

The kernels of ATen and of compilers for `index_add` and `scatter_add` add in the order in which
blocks run, so the last bits differ between runs. Here a kernel of our own (`kernels/rows.py`) sums
whole rows, and ATen's `index_put_`, which sorts first, does the rest. Both are custom ops, which a
compiler leaves alone.

Rows are summed before they are added to a table. The addition is a plain op that a compiler fuses
into the update, so no table of zeros is filled or copied.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import cache, wraps

import torch
from torch import Tensor
from torch._ops import OpOverload

from purine.registry.aten import KERNELS, name_of

__all__ = ["added_at", "row_sums"]

aten = torch.ops.aten

_WIDENED = (torch.float32, torch.float16, torch.bfloat16)
"""What is added up in float32, and what our kernel takes."""
_WIDEST = 1 << 20
"""Numbers in a row that our kernel takes: it is launched with tiles of a row along an axis."""
_INDICES = (torch.int32, torch.int64)


@torch.library.custom_op("purine::row_sums", mutates_args=())
def row_sums(index: Tensor, rows: Tensor, height: int) -> tuple[Tensor, Tensor]:
    """The sums of the rows with equal index, and for each of `height` indices which sum it has.

    The last sum, one more than there are rows, is zero: it belongs to indices without rows.
    """
    sums, slots = _results(rows, height)
    slots.fill_(rows.shape[0])
    narrow = rows.shape[1:].numel() <= _WIDEST
    if rows.is_cuda and rows.dtype in _WIDENED and narrow and _has_triton():
        from purine.kernels.rows import sums_of_rows

        sums_of_rows(index, rows, sums, slots)
    else:
        places, order = torch.sort(index, stable=True)
        if len(places):
            inside = (places[0] >= 0) & (places[-1] < height)
            torch._assert_async(inside, "an index of a sum of rows is out of range")
        first = places.diff(prepend=places[:1]).ne(0).cumsum(0)
        slots.index_put_((places,), first.to(slots.dtype))
        sums.zero_().index_put_((first,), rows[order].to(sums.dtype), accumulate=True)
    return sums, slots


@torch.library.custom_op("purine::added_at", mutates_args=())
def added_at(x: Tensor, index: Sequence[Tensor | None], values: Tensor) -> Tensor:
    """A copy of a tensor with values added where `index` says, as in `x[index] += values`."""
    return _call(aten.index_put_.default, x.clone(), index, values, accumulate=True)


@row_sums.register_fake
def _(index: Tensor, rows: Tensor, height: int) -> tuple[Tensor, Tensor]:
    return _results(rows, height)


@added_at.register_fake
def _(x: Tensor, index: Sequence[Tensor | None], values: Tensor) -> Tensor:
    aten.index_put.default(x, index, values, True)  # which says what is wrong
    return x.clone()


def _results(rows: Tensor, height: int) -> tuple[Tensor, Tensor]:
    dtype = torch.float32 if rows.dtype in _WIDENED else rows.dtype
    sums = rows.new_empty((rows.shape[0] + 1, *rows.shape[1:]), dtype=dtype)
    return sums, rows.new_empty(height, dtype=torch.int32)


def _for_each(height: int, index: Tensor, rows: Tensor) -> Tensor:
    """For each of `height` indices the sum of its rows."""
    sums, slots = row_sums(index, rows, height)
    return _call(aten._unsafe_index.Tensor, sums, [slots])


def _fit(x: Tensor, dim: int, index: Tensor, source: Tensor) -> bool:
    """Whether ATen's kernel would take these arguments; otherwise it is called for its error."""
    if not -x.dim() <= dim < x.dim() or index.dtype not in _INDICES or index.dim() != 1:
        return False
    shape = list(x.shape)
    shape[dim] = len(index)
    return list(source.shape) == shape and source.dtype == x.dtype


def _call(operator: Callable[..., Tensor], *args: object, **settings: object) -> Tensor:
    """Call an operator of one result, for which torch has no types."""
    return operator(*args, **settings)


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _on_gpus(overload: OpOverload) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Run a function instead of an overload on GPUs, unless a gradient or a shape is asked for."""

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @wraps(function)
        def kernel(*args: object, **kwargs: object) -> Tensor:
            tensors = [value for value in args if isinstance(value, Tensor)]
            if any(value.requires_grad or value.is_meta or not value.dim() for value in tensors):
                return _call(overload, *args, **kwargs)
            return function(*args, **kwargs)

        KERNELS[name_of(overload), "cuda"] = kernel
        return kernel

    return register


@_on_gpus(aten.index_add.default)
def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    values = source if alpha == 1 else alpha * source
    if not _fit(x, dim, index, values):
        return _call(aten.index_add.default, x, dim, index, source, alpha=alpha)
    if dim % x.dim() == 0:
        return (x + _for_each(len(x), index, values)).to(x.dtype)
    return _call(added_at, x, [*[None] * (dim % x.dim()), index], values)


@_on_gpus(aten.index_add_.default)
def _index_add_(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    values = source if alpha == 1 else alpha * source
    if not _fit(x, dim, index, values):
        return _call(aten.index_add_.default, x, dim, index, source, alpha=alpha)
    if dim % x.dim() == 0:
        return x.add_(_for_each(len(x), index, values))
    indices = [*[None] * (dim % x.dim()), index]
    return _call(aten.index_put_.default, x, indices, values, accumulate=True)


@_on_gpus(aten.index_put.default)
def _index_put(
    x: Tensor, index: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    if not accumulate:
        return _call(aten.index_put.default, x, index, values)
    return _call(added_at, x, index, values)


@_on_gpus(aten.scatter_add.default)
def _scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    if any(size > there for size, there in zip(index.shape, source.shape, strict=False)):
        return _call(aten.scatter_add.default, x, dim, index, source)  # which says what is wrong
    along = [torch.arange(size, device=x.device) for size in index.shape]
    places = list(torch.meshgrid(*along, indexing="ij"))
    places[dim] = index
    return _call(added_at, x, places, source[tuple(map(slice, index.shape))])


@_on_gpus(aten.embedding_dense_backward.default)
def _embedding_gradient(
    rows: Tensor, index: Tensor, count: int, padding: int, by_frequency: bool
) -> Tensor:
    if by_frequency:
        settings = (count, padding, by_frequency)
        return _call(aten.embedding_dense_backward.default, rows, index, *settings)
    if padding >= 0:
        rows = rows.masked_fill((index == padding).unsqueeze(-1), 0)
    flat = rows.flatten(0, index.dim() - 1)
    return _for_each(count, index.reshape(-1), flat).to(rows.dtype)
