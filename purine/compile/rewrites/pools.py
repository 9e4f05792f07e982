"""Maximum pooling with kernels of our own, which store the position of a maximum in one byte."""

from __future__ import annotations

import torch
from torch.fx import Node

from purine.compile.rewrites._recorded import (
    LOW,
    Recorded,
    adder,
    ints_of,
    is_call,
    node_arg,
    replace,
    value_of,
)

__all__ = ["replace_max_pools"]

aten = torch.ops.aten

_LEAST_CHANNELS = 8
"""With fewer channels our kernels are slower."""


def replace_max_pools(recorded: Recorded) -> int:
    """Replace max pools in low precision and channels-last, if only gradients read the indices."""
    pools = [_Pool.of(node) for node in recorded.calls(aten.max_pool2d_with_indices.default)]
    matches = [pool for pool in pools if pool is not None]
    for pool in matches:
        pool.replace()
    return len(matches)


class _Pool:
    """A max pool with the calls that compute its gradients."""

    def __init__(self, node: Node, gradients: list[Node]) -> None:
        options = dict(zip(("strides", "pads", "dilation"), node.args[2:], strict=False))
        self.node, self.x, self.gradients = node, node_arg(node, 0), gradients
        self.kernel, self.pads = _pair(node.args[1]), _pair(options.get("pads", 0))
        self.strides = _pair(options.get("strides") or self.kernel)
        self.dilated = _pair(options.get("dilation", 1)) != [1, 1]

    @classmethod
    def of(cls, node: Node) -> _Pool | None:
        """The pool that a node computes; None if our kernels cannot."""
        indices = [user for user in node.users if user.args[1] == 1]
        gradients = [user for item in indices for user in item.users]
        pool = cls(node, gradients)
        value = value_of(pool.x)
        fits = (
            value.dim() == 4
            and value.stride(1) == 1
            and node.meta["val"][0].is_contiguous(memory_format=torch.channels_last)
            and value.shape[1] >= _LEAST_CHANNELS
            and value.dtype in LOW
            and not pool.dilated
            and pool.kernel[0] * pool.kernel[1] < 255
            and all(
                is_call(user, aten.max_pool2d_with_indices_backward.default) for user in gradients
            )
        )
        return pool if fits else None

    def replace(self) -> None:
        # Registers the ops; needs Triton.
        from purine.kernels import pool  # noqa: F401

        own = torch.ops.purine
        sizes = list(self.node.meta["val"][0].shape[2:])
        windows = (self.kernel, self.strides, self.pads)
        result = adder(self.node)(own.max_pool.default, self.x, *windows, sizes)
        for node in self.gradients:
            gradient, indices, image = node.args[0], node.args[-1], list(value_of(self.x).shape[2:])
            add = adder(node)
            replace(node, add(own.max_pool_gradient.default, gradient, indices, *windows, image))
        replace(self.node, result)


def _pair(argument: object) -> list[int]:
    if isinstance(argument, int):
        return [argument, argument]
    values = ints_of(argument)
    return [values[0], values[-1]]
