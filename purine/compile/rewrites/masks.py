"""Gradients of ReLU behind batch norm, without reading the result of the ReLU.

The gradient of ReLU needs the sign of the normalised value, which is computed again from the input
of the norm: the gradient of the norm reads that anyway. So the result of the ReLU is neither stored
nor read for the backward, which saves a fifth of the memory traffic of batch norms.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from purine.compile.rewrites._recorded import (
    Add,
    Recorded,
    adder,
    is_call,
    replace,
    value_of,
    with_value,
)

__all__ = ["recompute_relu_masks"]

aten = torch.ops.aten
_NORM = aten._native_batch_norm_legit_functional.default


def recompute_relu_masks(recorded: Recorded) -> int:
    """Compute the masks of ReLU gradients from the inputs of the batch norms in front."""
    count = 0
    for node in recorded.calls(aten.threshold_backward.default):
        gradient, result, threshold = node.args
        norm = _norm_before(result)
        if norm is None or threshold != 0:
            continue
        add, value = adder(node), value_of(node)
        zero = add(aten.full.default, [], 0.0, dtype=value.dtype, device=value.device)
        masked = add(aten.where.self, _is_blocked(add, norm), zero, gradient)
        replace(node, with_value(masked, value))
        count += 1
    return count


def _norm_before(result: object) -> Node | None:
    """The batch norm (in training mode, with weight and bias) that a ReLU reads."""
    if not is_call(result, aten.relu.default):
        return None
    normed = result.args[0]
    if not is_call(normed, operator.getitem) or normed.args[1] != 0:
        return None
    norm = normed.args[0]
    if not is_call(norm, _NORM) or norm.args[5] is not True:
        return None
    return norm if norm.args[1] is not None and norm.args[2] is not None else None


def _is_blocked(add: Add, norm: Node) -> Node:
    """Where the result of a norm is not above zero, computed in the order that the norm uses."""
    x, weight, bias = norm.args[:3]
    shape = [1, -1, *([1] * (value_of(x).dim() - 2))]

    def broadcast(value: object) -> Node:
        return add(aten.reshape.default, value, shape)

    mean, deviation = (add(operator.getitem, norm, position) for position in (1, 2))
    dtype = torch.promote_types(value_of(x).dtype, torch.float32)
    wide = add(aten._to_copy.default, x, dtype=dtype)
    centred = add(aten.sub.Tensor, wide, broadcast(mean))
    normed = add(aten.mul.Tensor, centred, broadcast(deviation))
    scaled = add(aten.mul.Tensor, normed, broadcast(weight))
    return add(aten.le.Scalar, add(aten.add.Tensor, scaled, broadcast(bias)), 0)
