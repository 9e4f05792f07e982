"""Sums of embedding rows are added by the kernels that read them, without a gradient table.

`purine.kinds.add_at` computes the sums of the rows of a batch, and gathers them into a table. The
compiler fuses the gather only into a single reader, and an update has several.
"""

from __future__ import annotations

import operator

import torch
from torch._ops import OpOverload
from torch.fx import Node

from purine.compile.rewrites._nodes import is_call, is_mutable
from purine.compile.rewrites._recorded import Recorded
from purine.kinds.add_at import row_sums

__all__ = ["duplicate_row_gathers"]

aten = torch.ops.aten

_FOLLOWING = (aten.add.Tensor, aten._to_copy.default)
"""Calls behind a gather that are duplicated with it."""
_FUSIBLE = (
    aten._to_copy.default,
    aten.sum.default,
    aten.sum.dim_IntList,
    aten.linalg_vector_norm.default,
)
"""Calls, besides those tagged as pointwise, into which a compiler fuses what they read."""


def duplicate_row_gathers(recorded: Recorded) -> int:
    """Give each reader of gathered row sums a gather of its own, which is fused into it.

    A gather stays as it is if a reader needs the table in memory, or if a reader comes behind a
    call that writes into its arguments.

    The gradient of an embedding would be stored as a whole table; each reader gathers the rows of
    the batch itself.
    """
    before_writes: set[Node] = set()
    chain: list[Node] = []
    for node in recorded.graph.nodes:
        if is_mutable(node):
            break
        before_writes.add(node)
        follows = node.target in _FOLLOWING and any(item in chain for item in node.all_input_nodes)
        if follows or _is_gather(node):
            chain.append(node)
    count = 0
    for node in reversed(chain):
        readers = list(node.users)
        if all(reader in before_writes and _is_fusible(reader) for reader in readers):
            for reader in readers[1:]:
                with recorded.graph.inserting_before(reader):
                    duplicate = recorded.graph.node_copy(node)
                reader.replace_input_with(node, duplicate)
                before_writes.add(duplicate)
                count += 1
    return count


def _is_gather(node: Node) -> bool:
    sums = node.args[0] if is_call(node, aten._unsafe_index.Tensor) else None
    return is_call(sums, operator.getitem) and is_call(sums.args[0], row_sums._opoverload)


def _is_fusible(node: Node) -> bool:
    """Whether a compiler fuses what a call reads into its kernel."""
    if not isinstance(node.target, OpOverload):
        return False
    lists = node.target._schema.name.startswith("aten::_foreach_")
    return lists or torch.Tag.pointwise in node.target.tags or node.target in _FUSIBLE
