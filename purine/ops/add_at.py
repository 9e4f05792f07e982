"""Sums at given places on GPUs, in an order that is the same from run to run.

Gradients of embeddings, and of much else that picks values by index, add up what was picked several
times. ATen's kernels for `index_add` and `scatter_add`, and those that a compiler makes for all of
these, add in the order in which blocks come, so the last bits differ each time. Sums of whole rows
are made by a kernel of our own (`gpu_rows.py`), others by the one of ATen's that sorts first,
`index_put_`. They are ops of our own that a compiler leaves alone.

For a compiler they make new tensors. Only where `rows_in_place` finds that nobody else wants what
rows are added to is it written over: a table of embeddings need not be copied.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from purine.ops.aten import KERNELS, name_of

__all__ = ["add_rows", "added_at", "added_rows", "rows_in_place"]

aten = torch.ops.aten

_SUMMED = (torch.float32, torch.float16, torch.bfloat16)
"""What our kernel adds up, in float32."""
_FRESH = (
    aten.mm.default,
    aten.addmm.default,
    aten.new_zeros.default,
    aten.zeros.default,
    aten.full.default,
)
"""Calls whose results are memory of their own, whatever a compiler makes of them."""


@torch.library.custom_op("purine::add_rows", mutates_args=("total",))
def add_rows(total: Tensor, index: Tensor, rows: Tensor) -> None:
    """Add rows to those of a tensor that `index` names, in place."""
    own = total.dtype in _SUMMED and rows.dtype == total.dtype and total.is_contiguous()
    if own and total.is_cuda and _has_triton():
        from purine.ops.gpu_rows import sum_rows

        sum_rows(total, index, rows)
    else:
        aten.index_put_.default(total, [index], rows, accumulate=True)


@torch.library.custom_op("purine::added_rows", mutates_args=())
def added_rows(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """As `add_rows`, with the sums in a tensor of their own."""
    total = x.clone()
    add_rows(total, index, rows)
    return total


@torch.library.custom_op("purine::added_at", mutates_args=())
def added_at(x: Tensor, index: Sequence[Tensor | None], values: Tensor) -> Tensor:
    """A copy of a tensor with values added where `index` says, as in `x[index] += values`."""
    return aten.index_put_.default(x.clone(), index, values, accumulate=True)


@add_rows.register_fake
def _(total: Tensor, index: Tensor, rows: Tensor) -> None:
    return None


@added_rows.register_fake
def _(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    aten.index_add.default(x, 0, index, rows)  # which says what is wrong
    return x.clone()


@added_at.register_fake
def _(x: Tensor, index: Sequence[Tensor | None], values: Tensor) -> Tensor:
    aten.index_put.default(x, index, values, True)
    return x.clone()


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def rows_in_place(module: GraphModule) -> None:
    """Write sums of rows over what they are added to, in a recorded function, where that is free.

    Not over whatever may share memory: a compiler that takes a copy for needless goes wrong then.
    """
    for node in module.graph.find_nodes(op="call_function", target=added_rows._opoverload):
        total, index, rows = node.args
        if _is_fresh(total) and list(total.users) == [node] and total is not rows:
            with module.graph.inserting_before(node):
                module.graph.call_function(add_rows._opoverload, (total, index, rows))
            node.replace_all_uses_with(total)
            module.graph.erase_node(node)


def _is_fresh(node: Node) -> bool:
    if node.target is aten._to_copy.default:
        source = node.args[0]
        return isinstance(source, Node) and source.meta["val"].dtype != node.meta["val"].dtype
    return node.target in _FRESH


def _on_gpus(overload: Any) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Let a function be what runs an overload on GPUs.

    Not where a gradient is recorded, which is known of the overload, nor where only shapes are
    asked for.
    """

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @wraps(function)
        def kernel(*args: Any, **kwargs: Any) -> Tensor:
            tensors = [value for value in args if isinstance(value, Tensor)]
            if any(value.requires_grad or value.is_meta or not value.dim() for value in tensors):
                return overload(*args, **kwargs)
            return function(*args, **kwargs)

        KERNELS[name_of(overload), "cuda"] = kernel
        return kernel

    return register


@_on_gpus(aten.index_add.default)
def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    values = source if alpha == 1 else alpha * source
    if dim % x.dim() == 0:
        return added_rows(x, index, values)
    return added_at(x, [*[None] * (dim % x.dim()), index], values)


@_on_gpus(aten.index_add_.default)
def _index_add_over(
    x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    values = source if alpha == 1 else alpha * source
    if dim % x.dim() == 0:
        add_rows(x, index, values)
        return x
    place = [*[None] * (dim % x.dim()), index]
    return aten.index_put_.default(x, place, values, accumulate=True)


@_on_gpus(aten.index_put.default)
def _index_put(
    x: Tensor, index: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    if not accumulate:
        return aten.index_put.default(x, index, values)
    return added_at(x, index, values)


@_on_gpus(aten.scatter_add.default)
def _scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    if any(size > there for size, there in zip(index.shape, source.shape, strict=False)):
        return aten.scatter_add.default(x, dim, index, source)  # which says what is wrong
    along = [torch.arange(size, device=x.device) for size in index.shape]
    places = list(torch.meshgrid(*along, indexing="ij"))
    places[dim] = index
    return added_at(x, places, source[tuple(map(slice, index.shape))])


@_on_gpus(aten.embedding_dense_backward.default)
def _embedding_gradient(
    rows: Tensor, index: Tensor, count: int, padding: int, by_frequency: bool
) -> Tensor:
    if by_frequency:
        return aten.embedding_dense_backward.default(rows, index, count, padding, by_frequency)
    if padding >= 0:
        rows = rows.masked_fill((index == padding).unsqueeze(-1), 0)
    table = rows.new_zeros(count, rows.shape[-1])
    return added_rows(table, index.reshape(-1), rows.reshape(-1, rows.shape[-1]))
