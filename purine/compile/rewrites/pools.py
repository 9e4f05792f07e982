"""Maximum pooling with kernels of our own, which store the position of a maximum in one byte."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Node

from purine.compile.rewrites._nodes import LOW, ints_of, is_call, node_arg, value_of
from purine.compile.rewrites._recorded import Recorded, adder, own_op, replace

__all__ = ["replace_max_pools"]

aten = torch.ops.aten

_LEAST_CHANNELS = 8
"""With fewer channels our kernels are slower."""


def replace_max_pools(recorded: Recorded) -> int:
    """Replace max pools in low precision and channels-last, if only gradients read the indices.

    ATen stores 64-bit positions of maxima; our channels-last kernels store bytes.
    """
    return sum(map(_replace, recorded.calls(aten.max_pool2d_with_indices.default)))


def _replace(node: Node) -> bool:
    """Replace a max pool and its gradients; False if our kernels cannot compute them."""
    x, value = node_arg(node, 0), value_of(node.args[0])
    options = dict(zip(("strides", "pads", "dilation"), node.args[2:], strict=False))
    kernel, pads = _pair(node.args[1]), _pair(options.get("pads", 0))
    windows = (kernel, _pair(options.get("strides") or kernel), pads)
    indices = [user for user in node.users if user.args[1] == 1]
    gradients = [user for item in indices for user in item.users]
    pull = aten.max_pool2d_with_indices_backward.default
    result: Tensor = node.meta["val"][0]
    fits = (
        value.dim() == 4
        and value.stride(1) == 1
        and result.is_contiguous(memory_format=torch.channels_last)
        and value.shape[1] >= _LEAST_CHANNELS
        and value.dtype in LOW
        and _pair(options.get("dilation", 1)) == [1, 1]
        and kernel[0] * kernel[1] < 255
        and all(is_call(user, pull) for user in gradients)
    )
    if fits:
        own, own_pull = own_op("pool", "max_pool"), own_op("pool", "max_pool_gradient")
        pooled = adder(node)(own, x, *windows, list(result.shape[2:]))
        for gradient in gradients:
            given = (gradient.args[0], gradient.args[-1], *windows, list(value.shape[2:]))
            replace(gradient, adder(gradient)(own_pull, *given))
        replace(node, pooled)
    return fits


def _pair(argument: object) -> list[int]:
    if isinstance(argument, int):
        return [argument, argument]
    values = ints_of(argument)
    return [values[0], values[-1]]
