"""Gradients of attention in one matrix, as the layer in front needs them.

Where one layer computes queries, keys and values together, a step concatenates their three
gradients. The kernels of `purine.kernels.attention` write them side by side, with the partial sums
that make up the gradient of the layer's bias (see `sums.py`).
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from purine.compile.rewrites._nodes import LOW, VIEWS, has_value, ints_of, is_call, value_of
from purine.compile.rewrites._recorded import Recorded, adder, own_op, replace, set_result

__all__ = ["join_attention_gradients"]

aten = torch.ops.aten

_CUDNN = aten._scaled_dot_product_cudnn_attention_backward.default
_FLASH = aten._scaled_dot_product_flash_attention_backward.default
_HEAD_SIZES = (16, 32, 64)
"""The head sizes of our kernels."""
_SHORT, _LONG = 64, 1024
"""A shorter sequence does not fill a program. For a longer one, computing the scores twice is
slower than adding up gradients in memory."""
_GRID, _OFFSET = 2**16, 2**31
"""Limits of the number of heads of all samples, and of offsets inside a sample."""


def join_attention_gradients(recorded: Recorded) -> int:
    """Compute attention gradients that are concatenated at once, by a kernel of our own.

    The gradients of queries, keys and values would be concatenated by a copy; our kernel writes
    them side by side, with their column sums, and is deterministic.
    """
    count = 0
    for node in (*recorded.calls(_CUDNN), *recorded.calls(_FLASH)):
        joined = _joined(node)
        if joined is not None and _fits(node):
            _replace(node, joined)
            count += 1
    return count


def _joined(node: Node) -> Node | None:
    """Where the three gradients are first contiguous in memory, if nobody else reads them."""
    results = {user.args[1]: user for user in node.users if is_call(user, operator.getitem)}
    if set(results) != {0, 1, 2} or len(node.users) != 3:
        return None
    pieces = [results[position] for position in range(3)]
    whole = _only_user(pieces[0])
    permuted = _only_user(whole)
    joined = _only_user(permuted)
    fits = (
        is_call(whole, aten.cat.default)
        and whole.args == (pieces, 1)
        and all(_only_user(piece) is whole for piece in pieces)
        and is_call(permuted, aten.permute.default)
        and [axis % 4 for axis in ints_of(permuted.args[1])] == [0, 2, 1, 3]
        and has_value(joined)
        and joined.target in (aten.clone.default, *VIEWS)
        and value_of(joined).is_contiguous()
    )
    return joined if fits else None


def _only_user(node: Node | None) -> Node | None:
    return next(iter(node.users)) if node is not None and len(node.users) == 1 else None


def _options(node: Node) -> tuple[object, bool, bool]:
    """The dropout of an attention, whether it is causal, and whether nothing else changes it."""
    cudnn = node.target is _CUDNN
    dropout, causal = node.args[13:15] if cudnn else node.args[10:12]
    plain = all(item is None for item in (node.args[8:11] if cudnn else node.args[6:8]))
    return dropout, bool(causal), plain


def _fits(node: Node) -> bool:
    """Whether our kernels can compute an attention; results of other rewrites have no value."""
    if not all(map(has_value, node.args[:6])):
        return False
    values = [value_of(item) for item in node.args[:5]]
    dropout, _, plain = _options(node)
    first = values[1]
    return (
        plain
        and dropout == 0.0
        and first.dim() == 4
        and first.dtype in LOW
        and _SHORT <= first.shape[2] <= _LONG
        and first.shape[0] * first.shape[1] < _GRID
        and first.shape[3] in _HEAD_SIZES
        and all(value.shape == first.shape and value.dtype == first.dtype for value in values)
        and all(value.stride(3) == 1 for value in values)
        and all(value.stride(1) * value.shape[1] < _OFFSET for value in values)
        and all(value.stride(2) * value.shape[2] < _OFFSET for value in values)
    )


def _replace(node: Node, joined: Node) -> None:
    _, causal, _ = _options(node)
    scale = node.kwargs.get("scale")
    if scale is None:
        scale = value_of(node.args[1]).shape[3] ** -0.5
    add = adder(node)
    call = add(own_op("attention", "attention_gradient"), *node.args[:6], causal, scale)
    set_result(call, *map(value_of, node.args[:6]), causal, scale)
    (permuted,) = joined.all_input_nodes
    (concatenated,) = permuted.all_input_nodes
    whole = add(operator.getitem, call, 0)
    replace(joined, add(aten.view.default, whole, list(value_of(joined).shape)))
    for old in (permuted, concatenated, *node.users, node):
        node.graph.erase_node(old)
