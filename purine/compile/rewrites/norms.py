"""Gradients of layer norms with all their sums, by one kernel.

Our kernel computes the gradient through a norm, adds the gradient of the residual branch around the
norm, and sums up the rows for the weight, the bias, and the bias of the layer in front, whose
gradient is the same matrix.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator

import torch
from torch.fx import Node

from purine.compile.rewrites._nodes import LOW, has_value, is_call, node_arg, uses, value_of
from purine.compile.rewrites._recorded import Recorded, adder, own_op, replace, set_result
from purine.compile.rewrites.sums import totals_of

__all__ = ["fuse_norm_gradients"]

aten = torch.ops.aten
_MANY_ROWS, _MOST_COLUMNS = 1024, 8192
"""With fewer rows or more columns the kernel is slower."""


def fuse_norm_gradients(recorded: Recorded) -> int:
    """Compute gradients of layer norms in low precision by our own kernel.

    The gradient of a layer norm would take one pass for each of its sums; our kernel takes one for
    all of them and the residual.
    """
    calls = recorded.calls(aten.native_layer_norm_backward.default)
    gradients = [node for node in calls if _fits(node)]
    for node in gradients:
        _replace(node)
    recorded.sort()
    return len(gradients)


def _fits(node: Node) -> bool:
    gradient, x, _, mean, scale, weight, *_ = node.args
    if not all(map(has_value, (gradient, x, mean, scale, weight))):
        return False
    values = [value_of(item) for item in (gradient, x, weight)]
    sizes = values[2].shape
    rows = values[1].numel() // math.prod(sizes)
    return (
        len(sizes) == 1
        and sizes[0] <= _MOST_COLUMNS
        and rows >= _MANY_ROWS
        and values[0].dtype in LOW
        and len({value.dtype for value in values}) == 1
        and all(value.is_contiguous() for value in values)
        and any(user.args[1] == 0 for user in node.users)
        and len({user.args[1] for user in node.users}) == len(node.users)
    )


def _replace(node: Node) -> None:
    gradient, x, _, mean, scale, *_ = node.args
    results = {user.args[1]: user for user in node.users}
    own = results[0]
    last, residual = _sum_with_residual(own)
    add = adder(last)
    arguments = (gradient, x, mean, scale, _before_cast(node_arg(node, 5)), residual)
    call = add(own_op("norm", "layer_norm_gradient"), *arguments)
    set_result(call, *(None if item is None else value_of(item) for item in arguments))
    result = add(operator.getitem, call, 0)
    totals: dict[torch.dtype, Node] = {}

    def take_sum(old: Node, row: int) -> None:
        value = value_of(old)
        if value.dtype not in totals:
            totals[value.dtype] = totals_of(add, call, value.dtype)
        sums = add(aten.select.int, totals[value.dtype], 1, row)
        replace(old, add(aten.view.default, sums, list(value.shape)))

    for position in (1, 2):
        if position in results:
            take_sum(results[position], position - 1)
    for row_sum in list(_row_sums(last)):
        take_sum(row_sum, 2)
    replace(last, result)
    if last is not own:
        node.graph.erase_node(own)
    node.graph.erase_node(node)


def _before_cast(weight: Node) -> Node:
    """A weight before it is rounded: the kernel rounds it, which saves the cast."""
    source = weight.args[0] if is_call(weight, aten._to_copy.default) else None
    return source if has_value(source) else weight


def _sum_with_residual(own: Node) -> tuple[Node, Node | None]:
    """The sum of a norm's gradient with that of the residual branch, and the latter.

    The gradient itself and None where there is no such sum, or someone else reads the gradient.
    """
    total = next(iter(own.users), None)
    if len(own.users) != 1 or not is_call(total, aten.add.Tensor) or total.kwargs:
        return own, None
    mine, others = value_of(own), [item for item in total.args if item is not own]
    if len(others) != 1 or not has_value(others[0]) or uses(others[0], node_arg(own, 0)):
        return own, None
    theirs = value_of(others[0])
    alike = theirs.shape == mine.shape and theirs.dtype == mine.dtype and theirs.is_contiguous()
    return (total, others[0]) if alike else (own, None)


def _row_sums(node: Node) -> Iterator[Node]:
    columns = value_of(node).shape[-1]
    shape = (value_of(node).numel() // columns, columns)
    for user in node.users:
        view = is_call(user, aten.view.default) and has_value(user)
        if view and value_of(user).shape == shape:
            for total in user.users:
                summed = is_call(total, aten.sum.dim_IntList) and total.args[1] == [0]
                if summed and not total.kwargs:
                    yield total
