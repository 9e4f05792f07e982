"""GELU through a logistic function, which takes half as many instructions as through tanh.

A kernel that reads and writes 16-bit numbers is as quick as memory only if it computes little.
"""

from __future__ import annotations

import math

import torch
from torch.fx import GraphModule

from purine.compile.rewrites.aligned import LOW
from purine.compile.rewrites.recorded import adder, value_of

__all__ = ["short_gelus"]

aten = torch.ops.aten
_SLOPE = 2 * math.sqrt(2 / math.pi)
_CUBE = 0.044715 * _SLOPE


def short_gelus(module: GraphModule) -> None:
    """GELU by tanh in low precision: x over one and the exponential of a cubic of x."""
    for node in module.graph.find_nodes(op="call_function", target=aten.gelu.default):
        value = value_of(node)
        if value.dtype not in LOW or node.kwargs.get("approximate") != "tanh":
            continue
        add = adder(module, node)
        x = add(aten._to_copy.default, node.args[0], dtype=torch.float32)
        square = add(aten.mul.Tensor, x, x)
        slope = add(aten.add.Scalar, add(aten.mul.Scalar, square, _CUBE), _SLOPE)
        share = add(aten.sigmoid.default, add(aten.mul.Tensor, slope, x))
        found = add(aten._to_copy.default, add(aten.mul.Tensor, x, share), dtype=value.dtype)
        found.meta["val"] = value
        node.replace_all_uses_with(found)
        module.graph.erase_node(node)
