"""Column sums computed by the kernel that writes the matrix.

The gradient of a bias is the sum of the rows of a matrix. Where the matrix is the gradient of a
GELU, or a concatenation (the gradients of queries, keys and values), the kernels of
`purine.kernels.sums` write it and its sums in one pass; the kernel for gradients of attention has
computed them already. Each kernel leaves a few partial sums per column.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.fx import Node

from purine.compile.rewrites._nodes import (
    LOW,
    VIEWS,
    ints_of,
    is_call,
    is_result,
    node_arg,
    nodes_of,
    value_of,
    without_views,
)
from purine.compile.rewrites._recorded import Add, Recorded, adder, own_op, replace, set_result

__all__ = ["batch_totals", "fuse_bias_sums", "totals_of"]

aten = torch.ops.aten

_ALIGNED, _MANY_ROWS, _MOST_PIECES = 8, 1024, 8
"""Columns: multiples of `_ALIGNED`. Rows: at least `_MANY_ROWS`. Pieces: at most `_MOST_PIECES`."""
_MOST_TOTALS = 128
"""Matrices that one call adds up: each is a pointer among the arguments of the kernel."""
_DEFERRABLE = {*VIEWS, aten.select.int, aten.slice.Tensor, aten._to_copy.default}
"""Calls that can be moved behind others, to where their results are read."""


def fuse_bias_sums(recorded: Recorded) -> int:
    """Compute matrices in low precision whose rows are summed together with these sums.

    Gradients of biases would read a matrix again; the kernel that writes it adds up its columns.
    """
    sums: dict[Node, list[Node]] = {}
    for node in recorded.calls(aten.sum.dim_IntList):
        if _is_of_columns(node):
            sums.setdefault(node_arg(node, 0), []).append(node)
    count = 0
    for matrix, nodes in sums.items():
        call = _attention_gradient(matrix) or _gelu_gradient(matrix) or _concatenation(matrix)
        if call is None:
            continue
        for node in nodes:
            add, value = adder(node), value_of(node)
            total = totals_of(add, call, value.dtype)
            replace(node, add(aten.view.default, total, list(value.shape)))
        count += 1
    return count


def totals_of(add: Add, call: Node, dtype: torch.dtype) -> Node:
    """Add up the partial sums that a call of one of our kernels returns."""
    parts = add(operator.getitem, call, 1)
    parts.meta["val"] = call.meta["val"][1]
    return add(own_op("sums", "totals"), [parts], dtype)


def batch_totals(recorded: Recorded) -> int:
    """Add up partial sums of one shape in one call, if no total is read before the last of them.

    All other calls keep their order, so no write moves in front of a read.

    The rewrites before leave partial sums for each matrix; one launch adds up those of a whole
    step.
    """
    order = {node: position for position, node in enumerate(recorded.graph.nodes)}
    groups: dict[tuple[torch.dtype, torch.device, torch.Size], list[Node]] = {}
    for node in order:
        # By name, since the op is registered only where it is used.
        if str(node.target) == "purine.totals.default":
            (parts,), dtype = nodes_of(node.args[0]), node.args[1]
            assert isinstance(dtype, torch.dtype)
            value = value_of(parts)
            groups.setdefault((dtype, value.device, value.shape), []).append(node)
    count = 0
    for (dtype, *_), nodes in groups.items():
        last = order[nodes[-1]]
        late = [node for node in nodes if all(order[user] > last for user in _readers(node))]
        add = adder(nodes[-1])
        for first in range(0, len(late), _MOST_TOTALS):
            batch = late[first : first + _MOST_TOTALS]
            every = [nodes_of(node.args[0])[0] for node in batch]
            totals = add(own_op("sums", "totals"), every, dtype)
            for row, node in enumerate(batch):
                replace(node, add(aten.slice.Tensor, totals, 0, row, row + 1))
            count += len(batch) > 1
    recorded.sort()
    return count


def _readers(node: Node) -> Iterator[Node]:
    """The nodes that read a result, directly or through views and casts of it."""
    for user in node.users:
        if user.target in _DEFERRABLE:
            yield from _readers(user)
        else:
            yield user


def _is_of_columns(node: Node) -> bool:
    """Whether a sum is over the rows of a matrix that our kernels can compute."""
    value, axes = value_of(node.args[0]), node.args[1]
    if value.dim() != 2 or axes not in ([0], [-2]) or not value.is_contiguous():
        return False
    rows, columns = value.shape
    return (
        value.dtype in LOW
        and value_of(node).dtype in (*LOW, torch.float32)
        and rows >= _MANY_ROWS
        and columns % _ALIGNED == 0
    )


def _attention_gradient(matrix: Node) -> Node | None:
    """The call of our kernel whose result a matrix is, if there is one."""
    columns = value_of(matrix).shape[-1]
    matrix = without_views(matrix)
    if not is_result(matrix, 0):
        return None
    call = node_arg(matrix, 0)
    # By name, since the op is registered only where it is used.
    ours = str(call.target) == "purine.attention_gradient.default"
    return call if ours and call.meta["val"][0].shape[1] == columns else None


def _gelu_gradient(matrix: Node) -> Node | None:
    """Replace a matrix that is the gradient of a GELU by a call of our kernel, and return that."""
    node = without_views(matrix)
    if not is_call(node, aten.gelu_backward.default):
        return None
    value, shape = value_of(node), list(value_of(matrix).shape)
    sources = [value_of(source) for source in node.args]
    if any(
        (source.dtype, source.shape) != (value.dtype, value.shape) or not source.is_contiguous()
        for source in sources
    ):
        return None
    add = adder(node)
    views = [add(aten.view.default, source, shape) for source in node.args]
    form = node.kwargs.get("approximate", "none")
    call = add(own_op("sums", "gelu_gradient"), *views, form)
    set_result(call, *(source.view(shape) for source in sources), form)
    result = add(operator.getitem, call, 0)
    result.meta["val"] = value_of(matrix)
    replace(node, result if matrix is node else add(aten.view.default, result, list(value.shape)))
    return call


def _concatenation(matrix: Node) -> Node | None:
    """Replace a matrix that is a concatenation by a call of our kernel, and return that."""
    path = [matrix]
    while path[-1].target in (*VIEWS, aten.clone.default):
        path.append(path[-1].all_input_nodes[0])
    permutation = path[-1] if is_call(path[-1], aten.permute.default) else None
    if permutation is not None:
        path.append(permutation.all_input_nodes[0])
    whole = path[-1]
    if not is_call(whole, aten.cat.default) or any(len(node.users) != 1 for node in path[1:]):
        return None
    dims = value_of(whole).dim()
    axes = range(dims) if permutation is None else ints_of(permutation.args[1])
    order = [axis % dims for axis in axes]
    pieces = _pieces(whole, order, value_of(matrix))
    if pieces is None:
        return None
    add, nodes = adder(matrix), nodes_of(whole.args[0])
    if permutation is not None:
        nodes = [add(aten.permute.default, node, order) for node in nodes]
    nodes = [
        add(aten.view.default, node, list(piece.shape))
        for node, piece in zip(nodes, pieces, strict=True)
    ]
    call = add(own_op("sums", "joined"), nodes)
    set_result(call, pieces)
    replace(matrix, add(operator.getitem, call, 0))
    return call


def _pieces(whole: Node, order: list[int], matrix: Tensor) -> list[Tensor] | None:
    """The pieces of a concatenation, its axes in a given order, as matrices side by side.

    They are that if the axes in front of the concatenated one make up the rows. None if not, or if
    a piece would have to be copied.
    """
    value = value_of(whole)
    axis = whole.args[1] if len(whole.args) > 1 else 0
    assert isinstance(axis, int)
    before = order[: order.index(axis % value.dim())]
    rows = math.prod(value.shape[dim] for dim in before)
    pieces = [value_of(piece) for piece in nodes_of(whole.args[0])]
    if rows != matrix.shape[0] or not 2 <= len(pieces) <= _MOST_PIECES:
        return None
    matrices = []
    for piece in pieces:
        if piece.dtype != matrix.dtype or piece.dim() != value.dim():
            return None
        try:
            matrices.append(piece.permute(order).view(rows, piece.numel() // rows))
        except (RuntimeError, ValueError):  # fake tensors raise a ValueError
            return None
    aligned = all(item.stride(1) == 1 and item.shape[1] % _ALIGNED == 0 for item in matrices)
    return matrices if aligned else None
