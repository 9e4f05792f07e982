"""Recorded functions (graphs of ATen calls) in rewriting."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument, Target

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

    def sort(self) -> None:
        """Put nodes behind those that they read; otherwise they keep their order."""
        # Slow to import.
        from torch._inductor.pattern_matcher import stable_topological_sort

        stable_topological_sort(self.graph)


def adder(before: Node) -> Add:
    """A function that adds calls in front of a node."""

    def add(target: Callable[..., object], *args: Argument, **kwargs: Argument) -> Node:
        with before.graph.inserting_before(before):
            return before.graph.call_function(target, args, kwargs)

    return add


def own_op(module: str, name: str) -> OpOverload:
    """An op of a module of `purine.kernels`, whose import registers it and needs Triton."""
    importlib.import_module(f"purine.kernels.{module}")
    op: OpOverload = getattr(torch.ops.purine, name).default
    return op


def replace(node: Node, result: Node) -> None:
    """Replace a node by another, which gets its fake value, and erase it."""
    if "val" in node.meta:
        result.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)


def set_result(node: Node, *values: object) -> None:
    """Set the fake result of a call, from the fake values of its arguments."""
    mode = detect_fake_mode(values)
    assert mode is not None
    assert callable(node.target)
    with mode:
        node.meta["val"] = node.target(*values)
