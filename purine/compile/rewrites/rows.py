"""Sums of rows are added where they are read, and no table of gradients is written.

Sums of rows are made apart from what they are added to (`purine.kinds.add_at`). Adding is a plain
op, which a compiler fuses into whatever reads the result.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from purine.kinds.add_at import row_sums

__all__ = ["rows_where_read"]

aten = torch.ops.aten

_LATER = (aten.add.Tensor, aten._to_copy.default)
"""What is done to sums of rows where they are read."""
_TAKING = (
    aten._to_copy.default,
    aten.sum.default,
    aten.sum.dim_IntList,
    aten.linalg_vector_norm.default,
)
"""Calls that read a tensor number by number, pointwise ones aside."""


def rows_where_read(module: GraphModule) -> None:
    """Let each reader of a recorded function add sums of rows by itself, and make no table of them.

    A compiler would keep in memory what is read twice, as an update reads its gradient. Left alone
    is what somebody needs in memory anyway, or reads behind a call that writes over anything.
    """
    early: set[Node] = set()
    chain: list[Node] = []
    for node in module.graph.nodes:
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            break
        early.add(node)
        grows = node.target in _LATER and any(item in chain for item in node.all_input_nodes)
        if grows or _is_rows(node):
            chain.append(node)
    for node in reversed(chain):
        readers = list(node.users)
        if all(reader in early and _takes_in(reader) for reader in readers):
            for reader in readers[1:]:
                with module.graph.inserting_before(reader):
                    again = module.graph.node_copy(node)
                reader.replace_input_with(node, again)
                early.add(again)


def _is_rows(node: Node) -> bool:
    """Whether a node has what `row_sums` found for each place."""
    if node.target is not aten._unsafe_index.Tensor:
        return False
    sums = node.args[0]
    return isinstance(sums, Node) and _maker(sums) is row_sums._opoverload


def _takes_in(node: Node) -> bool:
    """Whether a compiler makes what a call reads a part of its kernel."""
    if not isinstance(node.target, OpOverload):
        return False
    lists = node.target._schema.name.startswith("aten::_foreach_")
    return lists or torch.Tag.pointwise in node.target.tags or node.target in _TAKING


def _maker(node: Node) -> Any:
    """What made a node that is one of several results."""
    source = node.args[0] if node.target is operator.getitem else None
    return source.target if isinstance(source, Node) else None
