"""Writes in place that autograd does not see: through `detach`, or inside `no_grad`.

PyTorch changes the value and leaves the gradient as if nothing had been written. A functional
program cannot: there the gradient follows the new value, or ends. So a module is refused if it
changes a value that has a gradient in this way and reads it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import getitem

import torch
from torch._C import Argument
from torch.export import ExportedProgram
from torch.fx import Node

__all__ = ["hidden_write"]

_REGION = torch.ops.higher_order.wrap_with_set_grad_enabled
_DETACHING = frozenset({torch.ops.aten.detach.default, torch.ops.aten.detach_.default})


def hidden_write(exported: ExportedProgram) -> Node | None:
    """The first node that changes a value behind autograd's back, where that is read again.

    `exported` is a program as it was traced, with writes in place.
    """
    return _Values(exported).hidden_write()


class _Values:
    """Which nodes of a program share memory, and which have a gradient."""

    def __init__(self, exported: ExportedProgram) -> None:
        self.bases: dict[Node, Node] = {}
        """By view, the node whose memory it shares with autograd's knowledge."""
        self.detached: dict[Node, Node] = {}
        """By detached node, the node whose memory it shares without autograd's knowledge."""
        self.differentiable: set[Node] = set()
        self.writes: list[tuple[int, Node, Node]] = []
        """Each write that autograd does not see: index, node, and the base of what it changes."""
        self.nodes = list(exported.graph.nodes)
        parameters = set(exported.graph_signature.inputs_to_parameters)
        for index, node in enumerate(self.nodes):
            if node.op == "placeholder" and node.name in parameters:
                self.differentiable.add(node)
            elif node.target is _REGION and node.args[0] is False:
                self._add_region(index, node, exported.graph_module)
            elif node.op == "call_function":
                self._add(index, node)

    def hidden_write(self) -> Node | None:
        for index, write, base in self.writes:
            if base.op == "placeholder":
                continue  # writes to parameters and buffers are refused elsewhere
            if base in self.differentiable and any(
                self.base_of(source) is base and user.target not in _DETACHING
                for user in self.nodes[index + 1 :]
                for source in user.all_input_nodes
            ):
                return write
        return None

    def base_of(self, node: Node) -> Node:
        return self.bases.get(node, node)

    def _add(self, index: int, node: Node) -> None:
        if node.target is getitem:
            assert isinstance(node.args[0], Node)
            self._gradient_of(node, [node.args[0]])
            return
        for written in _written(node):
            hidden = self.detached.get(self.base_of(written))
            if hidden is not None:
                self.writes.append((index, node, hidden))
        source = _viewed(node)
        if source is not None:
            base = self.base_of(source)
            if node.target in _DETACHING:
                self.detached[node] = self.detached.get(base, base)
                return
            self.bases[node] = base
        self._gradient_of(node, node.all_input_nodes)
        for written in _written(node):
            if node in self.differentiable:
                self.differentiable.add(self.base_of(written))

    def _gradient_of(self, node: Node, sources: list[Node]) -> None:
        if any(self.base_of(source) in self.differentiable for source in sources):
            self.differentiable.add(node)

    def _add_region(self, index: int, node: Node, root: torch.nn.Module) -> None:
        """A `no_grad` region: its writes are hidden, and it may return what it was given."""
        submodule, *arguments = node.args[1:]
        assert isinstance(submodule, Node)
        inner = list(getattr(root, str(submodule.target)).graph.nodes)
        placeholders = (one for one in inner if one.op == "placeholder")
        outer = {
            one: given
            for one, given in zip(placeholders, arguments, strict=True)
            if isinstance(given, Node)
        }
        for one in inner:
            if one.op != "call_function":
                continue
            for written in _written(one):
                if written in outer:
                    self.writes.append((index, one, self.base_of(outer[written])))
            source = _viewed(one)
            if source in outer and one.target not in _DETACHING:
                outer[one] = outer[source]
        (results,) = inner[-1].args
        for user in node.users:
            if user.target is getitem:
                given = results[user.args[1]]
                if given in outer:
                    self.bases[user] = self.base_of(outer[given])


def _written(node: Node) -> Iterator[Node]:
    """The tensors that a node writes in place."""
    for argument, value in _arguments(node):
        info = argument.alias_info
        if info is not None and info.is_write and isinstance(value, Node):
            yield value


def _viewed(node: Node) -> Node | None:
    """The tensor whose memory the result of a node may share."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not any(result.alias_info is not None for result in schema.returns):
        return None
    for argument, value in _arguments(node):
        if argument.alias_info is not None and isinstance(value, Node):
            return value
    return None


def _arguments(node: Node) -> Iterator[tuple[Argument, object]]:
    """The arguments of the schema of a node's operator, and what they are given."""
    schema = getattr(node.target, "_schema", None)
    for index, argument in enumerate(() if schema is None else schema.arguments):
        given = node.kwargs.get(argument.name)
        yield argument, node.args[index] if index < len(node.args) else given
