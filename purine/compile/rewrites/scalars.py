"""Scalars of a step are computed once, by a function of their own."""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from purine.compile.rewrites._nodes import is_mutable
from purine.compile.rewrites._recorded import Recorded

__all__ = ["hoist_scalars"]


def hoist_scalars(recorded: Recorded) -> int:
    """Move the calls that compute scalars from scalars alone into `recorded.scalars`.

    Learning rates and powers of the iteration would be computed again for every element; a kernel
    of their own computes them once per step.
    """
    hoisted: dict[Node, Node] = {}
    known: dict[tuple[object, ...], Node] = {}
    scalars = Graph()
    for node in recorded.graph.nodes:
        if node.op == "placeholder":
            copied = scalars.placeholder(node.name)
            if _is_scalar(node):
                hoisted[node] = copied
        elif _is_hoistable(node, hoisted):
            args, kwargs = map_arg((node.args, node.kwargs), hoisted.__getitem__)
            key = (node.target, repr(args), repr(kwargs))
            if key not in known:
                known[key] = scalars.call_function(node.target, args, kwargs)
            hoisted[node] = known[key]
    arguments: dict[Node, Node] = {}
    last = recorded.placeholders[-1]
    for node, copied in hoisted.items():
        if node.op == "placeholder" or all(user in hoisted for user in node.users):
            continue
        if copied not in arguments:
            with recorded.graph.inserting_after(last):
                last = arguments[copied] = recorded.graph.placeholder(f"scalar_{len(arguments)}")
            last.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(
            arguments[copied], delete_user_cb=lambda user: user not in hoisted
        )
    calls = [node for node in hoisted if node.op != "placeholder"]
    for node in reversed(calls):
        recorded.graph.erase_node(node)
    if arguments:
        scalars.output(tuple(arguments))
        recorded.scalars = GraphModule(recorded.module, scalars)
    return len(calls)


def _is_scalar(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dim() == 0


def _is_hoistable(node: Node, hoisted: Container[Node]) -> bool:
    """Whether a call is a pure function of scalars that are known, and returns a scalar."""
    return (
        node.op == "call_function"
        and _is_scalar(node)
        and bool(node.all_input_nodes)
        and all(source in hoisted for source in node.all_input_nodes)
        and isinstance(node.target, OpOverload)
        and not is_mutable(node)
        and torch.Tag.nondeterministic_seeded not in node.target.tags
    )
