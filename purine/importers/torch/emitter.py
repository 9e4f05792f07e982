"""Adding ops to a graph on behalf of the nodes of an exported program.

Ops are named after the module that their node is in, and keep the line of user code it comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import getitem

from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node

from purine.errors import GraphError
from purine.graph import NOTHING, Attribute, Builder, Graph
from purine.importers.torch.batch import MODULE
from purine.importers.torch.lines import source_of
from purine.registry import aten

__all__ = ["Emitter", "kind_name", "value_of"]


def value_of(node: Node) -> Tensor:
    """The fake tensor that a node computes."""
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return value


def kind_name(node: Node) -> str:
    """The name of the ATen kind of a node that calls an operator."""
    assert isinstance(node.target, OpOverload)
    return aten.name_of(node.target)


class Emitter:
    """A graph that grows, and the blobs that hold the values of nodes so far.

    `wanted` are the names that the values of some nodes are to have. `reserved` are names that ops
    must leave to results and fields.
    """

    def __init__(self, base: Graph, reserved: Iterable[str]) -> None:
        self.builder = Builder(base)
        self.blobs: dict[Node, str] = {}
        self.wanted: dict[Node, str] = {}
        self.reserved = frozenset(reserved)

    def emit(
        self,
        node: Node,
        kind: str,
        inputs: Sequence[str],
        outputs: Sequence[Node | None],
        attributes: Mapping[str, Attribute] | None = None,
    ) -> None:
        """Add an op for a node; its results are the values of the nodes in `outputs`."""
        name = self.name_of(node)
        blobs = []
        for index, result in enumerate(outputs):
            if result is None:
                blobs.append(NOTHING)
                continue
            own = name if len(outputs) == 1 else self.builder.fresh(f"{name}/{index}")
            blob = self.blobs[result] = self.wanted.get(result, own)
            value = value_of(result)
            self.builder.blob(blob, value.shape, aten.dtype_name(value.dtype))
            blobs.append(blob)
        self.builder.op(name, kind, inputs, blobs, attributes, where=source_of(node))

    def extra(
        self,
        node: Node,
        label: str,
        kind: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Attribute],
        shape: Sequence[int],
        dtype: str | None = None,
    ) -> str:
        """Add an op that the program does not have; its dtype is the node's by default."""
        name = self.builder.fresh(f"{self.name_of(node)}/{label}")
        self.builder.blob(name, shape, dtype or self.dtype_of(node))
        self.builder.op(name, kind, inputs, [name], attributes, where=source_of(node))
        return name

    def name_of(self, node: Node) -> str:
        """A free name: the path of the node's module, then the name of its operator."""
        return self.fresh_name(node, kind_name(node).split(".")[1].strip("_"))

    def fresh_name(self, node: Node, short: str) -> str:
        """A free name: the path of the node's module, then `short`."""
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = str(stack[-1][0]).partition("@")[0] if stack else ""
        path = path.removeprefix(MODULE.rstrip(".")).removeprefix(".")
        name = f"{path}/{short}" if path else short
        return self.builder.fresh(f"{name}/op" if name in self.reserved else name)

    def results_of(self, node: Node, count: int) -> list[Node | None]:
        """The nodes that take the results of a node with several, None where nobody does."""
        takers = [user for user in node.users if user.target is getitem]
        taken = {user.args[1]: user for user in takers}
        assert len(taken) == len(takers), "a result is taken once"
        return [taken.get(index) for index in range(count)]

    def argument(self, node: Node, name: str) -> object:
        """An argument of a node's call, by its name in the schema."""
        assert isinstance(node.target, OpOverload)
        for index, argument in enumerate(node.target._schema.arguments):
            if argument.name == name:
                if index < len(node.args):
                    return node.kwargs.get(name, node.args[index])
                default = argument.default_value if argument.has_default_value() else None
                return node.kwargs.get(name, default)
        raise AssertionError(f"{node.target} has no argument {name}")

    def number(self, node: Node, name: str) -> float:
        """An argument of a node's call that is a number."""
        value = self.argument(node, name)
        assert isinstance(value, int | float)
        return value

    def tensor(self, node: Node, name: str) -> Node:
        """An argument of a node's call that is a tensor."""
        value = self.argument(node, name)
        assert isinstance(value, Node)
        return value

    def dtype_of(self, node: Node) -> str:
        value = node.meta["val"]
        value = value[0] if isinstance(value, tuple | list) else value
        return aten.dtype_name(value.dtype)

    def refused(
        self,
        node: Node,
        found: str,
        expected: str,
        remedy: str = "write this part of the module with other operations",
    ) -> GraphError:
        """The error that a node cannot become an op."""
        name = self.name_of(node) if isinstance(node.target, OpOverload) else node.name
        what = f"operation {name!r} of the module cannot become an op"
        return GraphError(
            what, where=source_of(node), op=name, expected=expected, found=found, remedy=remedy
        )
