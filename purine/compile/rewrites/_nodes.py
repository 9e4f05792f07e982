"""Typed access to the nodes of recorded functions: what they call, read and return."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node

from purine.analysis.tracing import leading_to

aten = torch.ops.aten

LOW = (torch.bfloat16, torch.float16)
"""The dtypes of low precision."""

VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


def is_call(node: object, target: object) -> TypeGuard[Node]:
    """Whether an object is a call of a target."""
    return isinstance(node, Node) and node.op == "call_function" and node.target is target


def is_result(node: object, position: int) -> TypeGuard[Node]:
    """Whether an object is the result at a position of a call with several results."""
    return is_call(node, operator.getitem) and bool(node.args[1] == position)


def is_mutable(node: Node) -> bool:
    """Whether a call writes into its arguments."""
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def node_of(argument: object) -> Node:
    """An argument that is the result of a node."""
    assert isinstance(argument, Node), argument
    return argument


def nodes_of(argument: object) -> list[Node]:
    """An argument that is a list of results of nodes."""
    assert isinstance(argument, Sequence), argument
    return [node_of(item) for item in argument]


def node_arg(node: Node, position: int) -> Node:
    """The node whose result is the argument of a call at a position."""
    return node_of(node.args[position])


def ints_of(argument: object) -> list[int]:
    """An argument that is a list of integers."""
    assert isinstance(argument, Sequence), argument
    return [int(item) for item in argument]


def uses(node: object, other: Node) -> bool:
    """Whether the result of a node is computed from that of another."""
    return isinstance(node, Node) and other in leading_to([node])


def without_views(node: Node) -> Node:
    """The node that a node is a view of, or itself."""
    while node.target in VIEWS:
        node = node.all_input_nodes[0]
    return node


def has_value(node: object) -> TypeGuard[Node]:
    """Whether the shape of a node's result is known; nodes that rewrites add may have none."""
    return isinstance(node, Node) and "val" in node.meta


def value_of(node: object) -> Tensor:
    """The fake tensor that is the result of a node: its shape, dtype, strides and device."""
    value = node_of(node).meta["val"]
    assert isinstance(value, Tensor)
    return value
