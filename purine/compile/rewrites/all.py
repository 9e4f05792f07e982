"""What a recorded step is turned into before a compiler sees it, where the compiler does worse.

Each rewrite keeps the numbers up to rounding. They come from measuring steps kernel by kernel:

- `aligned`: rows of scores that wide loads can read, and softmax losses in fewer passes.
- `own_pools`: maximum pooling by kernels of our own.
- `own_norms`: gradients of layer norms with all their sums in one pass.
- `short_gelus`: GELU with fewer instructions.
- `image_convolutions`: convolutions of three channels in a form that is quicker.
- `masks_from_inputs`: rectifiers behind batch norms whose results the backward need not read.
- `own_attention`: gradients of queries, keys and values in one matrix at once.
- `sums_on_the_way`: gradients of biases by the kernels that write what they are sums of.
- `totals_at_once`: what these leave to be added up in one call.
- `rows_where_read`: sums of rows that are added to a table where an update reads it.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch.fx import GraphModule, Node

from purine.compile.rewrites.aligned import LOW, aligned
from purine.compile.rewrites.attention import own_attention
from purine.compile.rewrites.gelu import short_gelus
from purine.compile.rewrites.image_conv import image_convolutions
from purine.compile.rewrites.masks import masks_from_inputs
from purine.compile.rewrites.norms import own_norms
from purine.compile.rewrites.recorded import adder, is_call, value_of
from purine.compile.rewrites.rows import rows_where_read
from purine.compile.rewrites.sums import sums_on_the_way, totals_at_once

__all__ = ["own_pools", "rewritten"]

aten = torch.ops.aten

_ROW = 8
"""Channels from which our pooling kernels are worth it."""


def rewritten(module: GraphModule, *, gpu: bool) -> None:
    """Apply to a recorded function, in place, all rewrites that are for its device."""
    if not gpu:
        return
    triton = importlib.util.find_spec("triton") is not None
    aligned(module, own=triton)
    if triton:
        own_attention(module)
        sums_on_the_way(module)
        own_pools(module)
        own_norms(module)
        totals_at_once(module)
    short_gelus(module)
    masks_from_inputs(module)
    image_convolutions(module)
    rows_where_read(module)
    module.graph.eliminate_dead_code()
    module.recompile()


def own_pools(module: GraphModule) -> None:
    """Maximum pooling of 16-bit numbers with channels side by side.

    If only gradients read where the maxima were.
    """
    for node in module.graph.find_nodes(
        op="call_function", target=aten.max_pool2d_with_indices.default
    ):
        found = _Pool.of(node)
        if found is not None:
            found.replace(module)


class _Pool:
    """A maximum pooling with its gradients."""

    def __init__(self, node: Node, gradients: list[Node]) -> None:
        x = node.args[0]
        assert isinstance(x, Node)
        given = dict(zip(("steps", "pads", "dilation"), node.args[2:], strict=False))
        self.node, self.x, self.gradients = node, x, gradients
        self.kernel, self.pads = _pair(node.args[1]), _pair(given.get("pads", 0))
        self.steps = _pair(given.get("steps") or self.kernel)
        self.dilated = _pair(given.get("dilation", 1)) != [1, 1]

    @classmethod
    def of(cls, node: Node) -> _Pool | None:
        """The pooling of a node, or None if it is not for our kernels."""
        places = [user for user in node.users if user.args[1] == 1]
        gradients = [user for place in places for user in place.users]
        pool = cls(node, gradients)
        value = value_of(pool.x)
        fits = (
            value.dim() == 4
            and value.stride(1) == 1
            and node.meta["val"][0].is_contiguous(memory_format=torch.channels_last)
            and value.shape[1] >= _ROW
            and value.dtype in LOW
            and not pool.dilated
            and pool.kernel[0] * pool.kernel[1] < 255
            and all(
                is_call(user, aten.max_pool2d_with_indices_backward.default) for user in gradients
            )
        )
        return pool if fits else None

    def replace(self, module: GraphModule) -> None:
        from purine.kernels import pool as gpu_pool  # noqa: F401  (makes the ops known; needs Triton)

        own = torch.ops.purine
        add = adder(module, self.node)
        size = list(self.node.meta["val"][0].shape[2:])
        windows = (self.kernel, self.steps, self.pads)
        made = add(own.max_pool.default, self.x, *windows, size)
        for gradient in self.gradients:
            pull = adder(module, gradient)
            place = gradient.args[-1]
            images = list(value_of(self.x).shape[2:])
            pulled = pull(own.max_pool_gradient.default, gradient.args[0], place, *windows, images)
            gradient.replace_all_uses_with(pulled)
            module.graph.erase_node(gradient)
        self.node.replace_all_uses_with(made)
        module.graph.erase_node(self.node)


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else [value[0], value[-1]]
