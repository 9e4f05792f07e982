"""Sums of columns that are made by the kernel that writes the matrix.

Gradients of biases are sums over the rows of matrices. Where such a matrix is the gradient of a
GELU, or pieces side by side (the gradients of queries, keys and values), the kernels of `gpu_sums`
write it and its sums in one pass; that of gradients of attention has made them already. Sums are of
the same numbers as before, in another order. Each kernel leaves a few sums per column; what adds
these up is small, and one call for all of a step is quicker than one for each.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from purine.compile.rewrites.aligned import LOW
from purine.compile.rewrites.attention import attention_of
from purine.compile.rewrites.recorded import Add, adder, is_call, note, value_of

__all__ = ["added_up", "sums_on_the_way", "totals_at_once"]

aten = torch.ops.aten

_ALIGNED, _LONG, _MANY = 8, 1024, 8
"""Columns are multiples of `_ALIGNED`, rows at least `_LONG`, pieces at most `_MANY`."""
_AT_ONCE = 128
"""Matrices that one call adds up: a kernel takes so many pointers and some more."""
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_FREE = {*_VIEWS, aten.select.int, aten.slice.Tensor, aten._to_copy.default}
"""What may wait until somebody reads it."""


def sums_on_the_way(module: GraphModule) -> None:
    """Matrices in low precision whose columns are summed up, each with its sums by one kernel."""
    sums: dict[Node, list[Node]] = {}
    for node in module.graph.find_nodes(op="call_function", target=aten.sum.dim_IntList):
        if _is_of_columns(node):
            sums.setdefault(node.args[0], []).append(node)
    for matrix, nodes in sums.items():
        made = attention_of(matrix) or _pulled(module, matrix) or _joined(module, matrix)
        if made is not None:
            for node in nodes:
                add, value = adder(module, node), value_of(node)
                found = add(aten.view.default, added_up(add, made, value.dtype), list(value.shape))
                found.meta["val"] = value
                node.replace_all_uses_with(found)
                module.graph.erase_node(node)


def added_up(add: Add, made: Node, dtype: torch.dtype) -> Node:
    """What adds up the partial sums that a call of a kernel of ours has made."""
    from purine.kernels import sums as gpu_sums  # noqa: F401  (makes the op known; needs Triton)

    parts = add(operator.getitem, made, 1)
    parts.meta["val"] = made.meta["val"][1]
    return add(torch.ops.purine.totals.default, [parts], dtype)


def totals_at_once(module: GraphModule) -> None:
    """Partial sums of one shape added up by one call, where nobody reads a total before the last.

    The order of everything else stays, so no write comes before a read that it came behind.
    """
    from torch._inductor.pattern_matcher import stable_topological_sort

    order = {node: place for place, node in enumerate(module.graph.nodes)}
    alike: dict[tuple[object, ...], list[Node]] = {}
    for node in order:
        if str(node.target) == "purine.totals.default":  # which is known only where it is used
            (parts,), dtype = node.args
            value = value_of(parts)
            alike.setdefault((dtype, value.device, tuple(value.shape)), []).append(node)
    for (dtype, *_), nodes in alike.items():
        last = order[nodes[-1]]
        late = [node for node in nodes if all(order[user] > last for user in _readers(node))]
        add = adder(module, nodes[-1])
        for first in range(0, len(late), _AT_ONCE):
            some = late[first : first + _AT_ONCE]
            every = add(torch.ops.purine.totals.default, [node.args[0][0] for node in some], dtype)
            for place, node in enumerate(some):
                node.replace_all_uses_with(add(aten.slice.Tensor, every, 0, place, place + 1))
                module.graph.erase_node(node)
    stable_topological_sort(module.graph)


def _readers(node: Node) -> Iterator[Node]:
    """Those who read a result, itself or views and casts of it."""
    for user in node.users:
        if user.target in _FREE:
            yield from _readers(user)
        else:
            yield user


def _is_of_columns(node: Node) -> bool:
    """Whether a sum is one over the rows of a matrix that is for our kernels."""
    value, axes = value_of(node.args[0]), node.args[1]
    if value.dim() != 2 or axes not in ([0], [-2]) or not value.is_contiguous():
        return False
    exact = value_of(node).dtype not in (*LOW, torch.float32)
    rows, columns = value.shape
    return value.dtype in LOW and not exact and rows >= _LONG and columns % _ALIGNED == 0


def _pulled(module: GraphModule, matrix: Node) -> Node | None:
    """The call of our kernel that makes, in its place, a matrix that is the gradient of a GELU."""
    pulled = matrix
    while pulled.target in _VIEWS:
        pulled = pulled.all_input_nodes[0]
    if not is_call(pulled, aten.gelu_backward.default):
        return None
    value = value_of(pulled)
    sources = [value_of(source) for source in pulled.args]
    form = (value.dtype, value.shape)
    if any((item.dtype, item.shape) != form or not item.is_contiguous() for item in sources):
        return None
    from purine.kernels import sums as gpu_sums  # noqa: F401  (makes the op known; needs Triton)

    add = adder(module, pulled)
    views = [add(aten.view.default, source, list(value_of(matrix).shape)) for source in pulled.args]
    how = pulled.kwargs.get("approximate", "none")
    made = add(torch.ops.purine.gelu_gradient.default, *views, how)
    given = [value_of(source).view(value_of(matrix).shape) for source in pulled.args]
    note(made, *given, how)
    result = add(operator.getitem, made, 0)
    result.meta["val"] = value_of(matrix)
    if matrix is not pulled:
        result = add(aten.view.default, result, list(value.shape))
        result.meta["val"] = value
    pulled.replace_all_uses_with(result)
    module.graph.erase_node(pulled)
    return made


def _joined(module: GraphModule, matrix: Node) -> Node | None:
    """The call of our kernel that makes, in its place, a matrix of pieces side by side."""
    way = [matrix]
    while way[-1].target in (*_VIEWS, aten.clone.default):
        way.append(way[-1].all_input_nodes[0])
    if is_call(way[-1], aten.permute.default):
        way.append(way[-1].all_input_nodes[0])
    whole = way[-1]
    if not is_call(whole, aten.cat.default) or any(len(node.users) != 1 for node in way[1:]):
        return None
    dims = value_of(whole).dim()
    permuted = len(way) > 1 and is_call(way[-2], aten.permute.default)
    order = [axis % dims for axis in way[-2].args[1]] if permuted else list(range(dims))
    pieces = _pieces(whole, order, value_of(matrix))
    if pieces is None:
        return None
    from purine.kernels import sums as gpu_sums  # noqa: F401  (makes the op known; needs Triton)

    add = adder(module, matrix)
    if permuted:
        nodes = [add(aten.permute.default, piece, order) for piece in whole.args[0]]
    else:
        nodes = list(whole.args[0])
    nodes = [
        add(aten.view.default, node, list(piece.shape))
        for node, piece in zip(nodes, pieces, strict=True)
    ]
    made = add(torch.ops.purine.joined.default, nodes)
    note(made, pieces)
    result = add(operator.getitem, made, 0)
    result.meta["val"] = value_of(matrix)
    matrix.replace_all_uses_with(result)
    return made


def _pieces(whole: Node, order: Sequence[int], matrix: Tensor) -> list[Tensor] | None:
    """The matrices side by side that a concatenation makes, its axes in another order, if any.

    They are if what is in front of the axis in question makes the rows. None is copied for it.
    """
    value = value_of(whole)
    axis = order.index(whole.args[1] % value.dim() if len(whole.args) > 1 else 0)
    rows = math.prod(value.shape[place] for place in order[:axis])
    pieces = [value_of(piece) for piece in whole.args[0]]
    if rows != matrix.shape[0] or not 2 <= len(pieces) <= _MANY:
        return None
    found = []
    for piece in pieces:
        if piece.dtype != matrix.dtype or piece.dim() != value.dim():
            return None
        try:
            found.append(piece.permute(order).view(rows, piece.numel() // rows))
        except (RuntimeError, ValueError):  # the second is that of fake tensors
            return None
    near = all(piece.stride(1) == 1 and piece.shape[1] % _ALIGNED == 0 for piece in found)
    return found if near else None
