"""Recorded functions (graphs of ATen calls) in rewriting, and typed access to their nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeGuard

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument, Target

LOW = (torch.bfloat16, torch.float16)
"""The dtypes of low precision."""

Add: TypeAlias = Callable[..., Node]
"""Adds a call: its target, then the target's arguments."""

aten = torch.ops.aten


@dataclass(frozen=True)
class CachedCast:
    """A copy of a weight in low precision, padded with zeros if there are `pads`."""

    argument: int
    """The position of the weight among the function's arguments."""
    dtype: torch.dtype
    pads: tuple[int, ...] = ()
    """As in `constant_pad_nd`: before and after, the last dimension first."""

    def __call__(self, weight: Tensor) -> Tensor:
        """Compute the copy."""
        copy: Tensor = aten._to_copy.default(weight, dtype=self.dtype)
        return aten.constant_pad_nd.default(copy, list(self.pads)) if self.pads else copy


@dataclass
class Recorded:
    """A recorded function, which rewrites change in place.

    The rewritten function takes more arguments behind its own: the results of `scalars`, then one
    copy of a weight for each of `casts`.
    """

    module: GraphModule
    triton: bool = True
    """Whether rewrites may call kernels that need Triton."""
    scalars: GraphModule | None = None
    """Computes scalars from the function's own arguments."""
    casts: list[CachedCast] = field(default_factory=list)

    @property
    def graph(self) -> Graph:
        return self.module.graph

    @property
    def placeholders(self) -> list[Node]:
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    def calls(self, target: Target) -> list[Node]:
        """All calls of a target, in order."""
        return list(self.graph.find_nodes(op="call_function", target=target))


def adder(before: Node) -> Add:
    """A function that adds calls in front of a node."""

    def add(target: Callable[..., object], *args: Argument, **kwargs: Argument) -> Node:
        with before.graph.inserting_before(before):
            return before.graph.call_function(target, args, kwargs)

    return add


def replace(node: Node, result: Node) -> None:
    """Replace a node by another and erase it."""
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)


def is_call(node: object, target: object) -> TypeGuard[Node]:
    """Whether an object is a call of a target."""
    return isinstance(node, Node) and node.op == "call_function" and node.target is target


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
    seen: set[Node] = set()
    stack = [node] if isinstance(node, Node) else []
    while stack:
        current = stack.pop()
        if current is other:
            return True
        if current not in seen:
            seen.add(current)
            stack += current.all_input_nodes
    return False


def set_result(node: Node, *values: object) -> None:
    """Set the fake result of a call, from the fake values of its arguments."""
    mode = detect_fake_mode(values)
    assert mode is not None
    assert callable(node.target)
    with mode:
        node.meta["val"] = node.target(*values)


def with_value(node: Node, value: Tensor) -> Node:
    """A call, with the fake tensor that is its result."""
    node.meta["val"] = value
    return node


def value_of(node: object) -> Tensor:
    """The fake tensor that is the result of a node: its shape, dtype, strides and device."""
    value = node_of(node).meta["val"]
    assert isinstance(value, Tensor)
    return value
