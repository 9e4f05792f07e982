"""Layer norms whose gradients make all their sums on the way.

A kernel of our own pulls a gradient back through a norm, adds the gradient that goes around it, and
sums up for the weight, the bias, and the bias of the layer in front, which has the same gradient.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from purine.compile.rewrites.aligned import LOW
from purine.compile.rewrites.recorded import adder, is_call, needs, note, value_of
from purine.compile.rewrites.sums import added_up

__all__ = ["own_norms"]

aten = torch.ops.aten
_MANY, _WIDE = 1024, 8192
"""Rows from which the kernel is worth it, and columns up to which it is."""


def own_norms(module: GraphModule) -> None:
    """Gradients of layer norms in low precision by a kernel that needs Triton."""
    from torch._inductor.pattern_matcher import stable_topological_sort

    for node in module.graph.find_nodes(
        op="call_function", target=aten.native_layer_norm_backward.default
    ):
        if _fits(node):
            _replace(module, node)
    stable_topological_sort(module.graph)


def _fits(node: Node) -> bool:
    gradient, x, shape, mean, scale, weight, *_ = node.args
    if weight is None or not all(map(_is_known, (gradient, x, mean, scale, weight))):
        return False
    values = [value_of(item) for item in (gradient, x, weight)]
    rows = values[1].numel() // math.prod(shape)
    return (
        len(shape) == 1
        and shape[0] <= _WIDE
        and rows >= _MANY
        and values[0].dtype in LOW
        and len({value.dtype for value in values}) == 1
        and all(value.is_contiguous() for value in values)
        and any(user.args[1] == 0 for user in node.users)
        and len({user.args[1] for user in node.users}) == len(node.users)
    )


def _replace(module: GraphModule, node: Node) -> None:
    from purine.kernels import norm as gpu_norm  # noqa: F401  (makes the op known; needs Triton)

    gradient, x, _, mean, scale, weight, *_ = node.args
    taken = {user.args[1]: user for user in node.users}
    pulled = taken[0]
    total = _sum_with_another(pulled)
    last, more = (pulled, None) if total is None else (total, _other(total, pulled))
    add = adder(module, last)
    given = (gradient, x, mean, scale, _exact(weight), more)
    made = add(torch.ops.purine.layer_norm_gradient.default, *given)
    note(made, *(item if item is None else value_of(item) for item in given))
    result = add(operator.getitem, made, 0)
    result.meta["val"] = value_of(last)
    sums: dict[torch.dtype, Node] = {}

    def swap(old: Node, place: int) -> None:
        value = value_of(old)
        if value.dtype not in sums:
            sums[value.dtype] = added_up(add, made, value.dtype)
        found = add(aten.select.int, sums[value.dtype], 1, place)
        found = add(aten.view.default, found, list(value.shape))
        found.meta["val"] = value
        old.replace_all_uses_with(found)
        module.graph.erase_node(old)

    for place in (1, 2):
        if place in taken:
            swap(taken[place], place - 1)
    for row_sum in list(_row_sums(last)):
        swap(row_sum, 2)
    last.replace_all_uses_with(result)
    module.graph.erase_node(last)
    if last is not pulled:
        module.graph.erase_node(pulled)
    module.graph.erase_node(node)


def _exact(weight: Node) -> Node:
    """The weight that was rounded: the kernel does that itself, and saves one for the cast."""
    cast = is_call(weight, aten._to_copy.default) and _is_known(weight.args[0])
    return weight.args[0] if cast else weight


def _sum_with_another(pulled: Node) -> Node | None:
    """The sum of a gradient with the one that goes around the norm, if nobody else reads it."""
    users = list(pulled.users)
    if len(users) != 1 or not is_call(users[0], aten.add.Tensor) or users[0].kwargs:
        return None
    other = _other(users[0], pulled)
    if other is None or not _is_known(other) or needs(other, pulled.args[0]):
        return None
    mine, theirs = value_of(pulled), value_of(other)
    alike = theirs.shape == mine.shape and theirs.dtype == mine.dtype and theirs.is_contiguous()
    return users[0] if alike else None


def _other(total: Node, pulled: Node) -> Node | None:
    others = [item for item in total.args if item is not pulled]
    return others[0] if len(others) == 1 and isinstance(others[0], Node) else None


def _row_sums(node: Node) -> Iterator[Node]:
    """Sums over all rows of what a node makes."""
    columns = value_of(node).shape[-1]
    shape = (value_of(node).numel() // columns, columns)
    for user in node.users:
        view = is_call(user, aten.view.default) and _is_known(user)
        if view and value_of(user).shape == shape:
            for total in user.users:
                summed = is_call(total, aten.sum.dim_IntList) and total.args[1] == [0]
                if summed and not total.kwargs:
                    yield total


def _is_known(node: Node) -> bool:
    """Whether the form of what a node makes is known; it is not where a rewrite has added it."""
    return "val" in node.meta
