"""Writes in place that autograd does not see: through `detach`, or inside `no_grad`.

PyTorch changes the value and leaves the gradient as if nothing had been written. A functional
program cannot: there the gradient follows the new value, or ends. So a module is refused if it
changes a value that has a gradient in this way and reads it afterwards.
"""

from __future__ import annotations

from operator import getitem

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from purine.analysis.tracing import written_by
from purine.importers.torch.lines import refusal

__all__ = ["refuse_hidden_writes"]

_REGION = torch.ops.higher_order.wrap_with_set_grad_enabled
_DETACHING = frozenset({torch.ops.aten.detach.default, torch.ops.aten.detach_.default})


def refuse_hidden_writes(exported: ExportedProgram) -> None:
    """Refuse a program, as it was traced, that hides a write from autograd and reads the value."""
    values = _Values(exported)
    for index, write, base in values.writes:
        if base.op == "placeholder":
            continue  # writes to parameters and buffers are refused elsewhere
        if base in values.differentiable and any(
            values.base_of(source) is base and user.target not in _DETACHING
            for user in values.nodes[index + 1 :]
            for source in user.all_input_nodes
        ):
            what = "a value is changed in place where autograd does not see it, and is read again"
            expected = "writes in place that take part in the gradient, or values without one"
            found = f"{write.target} through detach() or .data, or inside no_grad()"
            remedy = "write x = x + (f(x) - x).detach(), which has the value f(x) and the gradient "
            remedy += "of x, or move the write out of no_grad()"
            raise refusal(what, expected, found, remedy, node=write)


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

    def base_of(self, node: Node) -> Node:
        return self.bases.get(node, node)

    def _add(self, index: int, node: Node) -> None:
        for written in written_by(node):
            if (hidden := self.detached.get(self.base_of(written))) is not None:
                self.writes.append((index, node, hidden))
        source = _viewed(node)
        if source is not None:
            base = self.base_of(source)
            if node.target in _DETACHING:
                self.detached[node] = self.detached.get(base, base)
                return
            self.bases[node] = base
        if any(self.base_of(source) in self.differentiable for source in node.all_input_nodes):
            self.differentiable |= {node, *map(self.base_of, written_by(node))}

    def _add_region(self, index: int, node: Node, root: torch.nn.Module) -> None:
        """A `no_grad` region: its writes are hidden, and it may return what it was given."""
        submodule, *arguments = node.args[1:]
        assert isinstance(submodule, Node)
        inner = list(getattr(root, str(submodule.target)).graph.nodes)
        placeholders = (one for one in inner if one.op == "placeholder")
        pairs = zip(placeholders, arguments, strict=True)
        outer = {one: given for one, given in pairs if isinstance(given, Node)}
        for one in inner:
            for written in written_by(one):
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


def _viewed(node: Node) -> Node | None:
    """The tensor whose memory the result of a node may share."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or all(result.alias_info is None for result in schema.returns):
        return None
    for index, argument in enumerate(schema.arguments):
        named = node.kwargs.get(argument.name)
        given = node.args[index] if index < len(node.args) else named
        if argument.alias_info is not None and isinstance(given, Node):
            return given
    return None
