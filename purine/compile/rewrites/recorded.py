"""Small helps for work on recorded functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeGuard

from torch import Tensor
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node

__all__ = ["Add", "adder", "is_call", "needs", "note", "value_of"]

Add: TypeAlias = Callable[..., Node]
"""What adds a call of a function with arguments."""


def adder(module: GraphModule, before: Node) -> Add:
    """What adds calls in front of a node."""

    def add(target: Any, *args: Any, **kwargs: Any) -> Node:
        with module.graph.inserting_before(before):
            return module.graph.call_function(target, args, kwargs)

    return add


def is_call(node: object, target: object) -> TypeGuard[Node]:
    """Whether something is a call of a function."""
    return isinstance(node, Node) and node.op == "call_function" and node.target is target


def needs(node: Any, other: Node) -> bool:
    """Whether a node is computed from another one."""
    seen: set[Node] = set()
    stack = [node] if isinstance(node, Node) else []
    while stack:
        found = stack.pop()
        if found is other:
            return True
        if found not in seen:
            seen.add(found)
            stack += found.all_input_nodes
    return False


def note(node: Node, *values: Any) -> None:
    """Note what a call of an op makes, by what its arguments are without their contents."""
    mode = detect_fake_mode(values)
    assert mode is not None
    assert callable(node.target)
    with mode:
        node.meta["val"] = node.target(*values)


def value_of(node: Any) -> Tensor:
    """What a recorded node makes, without its contents."""
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return value
