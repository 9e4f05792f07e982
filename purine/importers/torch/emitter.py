"""Adding ops to a graph on behalf of the nodes of an exported program.

Ops are named after the module that their node is in, and keep the line of user code it comes from.
`SPECIAL` lists nodes that do not become one op of the same name; random draws are in `random`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import getitem
from typing import TypeAlias

from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node

from purine.errors import GraphError
from purine.graph import NOTHING, Attribute, Builder, Graph
from purine.importers.torch.batch import own_name
from purine.importers.torch.lines import source_of
from purine.registry import aten

__all__ = ["SPECIAL", "Emitter", "Handler", "value_of"]


def value_of(node: Node) -> Tensor:
    """The fake tensor that a node computes."""
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return value


def _kind_name(node: Node) -> str:
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
        *,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> str:
        """Add an op that the program does not have, by default of the node's shape and dtype."""
        name = self.builder.fresh(f"{self.name_of(node)}/{label}")
        shape = value_of(node).shape if shape is None else shape
        self.builder.blob(name, shape, dtype or self.dtype_of(node))
        self.builder.op(name, kind, inputs, [name], attributes, where=source_of(node))
        return name

    def name_of(self, node: Node) -> str:
        return self.fresh_name(node, _kind_name(node).split(".")[1].strip("_"))

    def fresh_name(self, node: Node, short: str) -> str:
        """A free name: the path of the node's module, then `short`."""
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = own_name(str(stack[-1][0]).partition("@")[0]) if stack else ""
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
        arguments = node.target._schema.arguments
        index = [argument.name for argument in arguments].index(name)
        default = arguments[index].default_value if arguments[index].has_default_value() else None
        return node.kwargs.get(name, node.args[index] if index < len(node.args) else default)

    def number(self, node: Node, name: str) -> float:
        value = self.argument(node, name)
        assert isinstance(value, int | float)
        return value

    def tensor(self, node: Node, name: str) -> Node:
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
        return GraphError(what, expected, found, remedy, where=source_of(node), op=name)


Handler: TypeAlias = Callable[[Emitter, Node], bool]
"""Makes ops of a node; False leaves the node to the general rule."""


def _batch_norm(t: Emitter, node: Node) -> bool:
    """Batch norm as our kinds, which autodiff has a rule for."""
    x = t.tensor(node, "input")
    size, dtype = (value_of(x).shape[1],), t.dtype_of(node)
    functional = _kind_name(node) == "aten._native_batch_norm_legit_functional"
    training = functional and bool(t.argument(node, "training"))
    inputs = [t.blobs[x]]
    for name, value in (("weight", 1.0), ("bias", 0.0)):
        given = t.argument(node, name)
        if isinstance(given, Node):
            inputs.append(t.blobs[given])
        else:
            filled: dict[str, Attribute] = {"size": size, "fill_value": value, "dtype": dtype}
            inputs.append(t.extra(node, name, "aten.full", [], filled, shape=size))
    statistics = [t.tensor(node, name) for name in ("running_mean", "running_var")]
    inputs += [t.blobs[statistic] for statistic in statistics]
    rates: dict[str, Attribute] = {name: t.number(node, name) for name in ("momentum", "eps")}
    results = t.results_of(node, 5 if training else len(node.meta["val"]))
    if any(result is not None and result.users for result in results[1:3]):
        return False
    if training:
        t.emit(node, "BatchNorm", inputs, [results[0], *results[3:]], rates)
        return True
    t.emit(node, "BatchNormTest", inputs, results[:1], rates)
    for result, statistic in zip(results[3:], statistics, strict=False):
        if result is not None:
            t.blobs[result] = t.blobs[statistic]
    return True


def _instance_norm(t: Emitter, node: Node) -> bool:
    """Instance norm is one op, unless it changes running statistics in place."""
    if t.argument(node, "running_mean") is not None and t.argument(node, "use_input_stats"):
        expected = "instance norm without running statistics"
        raise t.refused(node, "track_running_stats=True", expected)
    return False


def _copy(t: Emitter, node: Node) -> bool:
    """What `y[...] = x` writes: x in the form of y. The op of that name has no gradient."""
    source, value = t.tensor(node, "src"), value_of(node)
    blob, given = t.blobs[source], value_of(source)
    if given.dtype != value.dtype:
        cast: dict[str, Attribute] = {"dtype": t.dtype_of(node)}
        blob = t.extra(node, "cast", "aten._to_copy", [blob], cast, shape=given.shape)
    if given.shape == value.shape:
        t.blobs[node] = blob
    else:
        t.emit(node, "aten.expand", [blob], [node], {"size": tuple(value.shape)})
    return True


def _one_op(t: Emitter, node: Node, *, kind: str) -> bool:
    t.emit(node, kind, [t.blobs[value] for value in node.all_input_nodes], [node])
    return True


def _pass(t: Emitter, node: Node) -> bool:
    t.blobs[node] = t.blobs[node.all_input_nodes[0]]
    return True


def _ctc_losses(t: Emitter, node: Node) -> bool:
    inputs = [t.blobs[value] for value in node.args[:4] if isinstance(value, Node)]
    settings: dict[str, Attribute] = {
        "blank": int(t.number(node, "blank")),
        "zero_infinity": bool(t.argument(node, "zero_infinity")),
    }
    t.emit(node, "CtcLosses", inputs, [node], settings)
    return True


SPECIAL: Mapping[str, Handler] = {
    "aten._native_batch_norm_legit_functional": _batch_norm,
    "aten._native_batch_norm_legit_no_training": _batch_norm,
    "aten.alias": _pass,
    "aten.copy": _copy,
    "aten.detach": partial(_one_op, kind="StopGradient"),
    "aten.instance_norm": _instance_norm,
    "aten.lift_fresh_copy": _pass,
    "purine.CtcLosses": _ctc_losses,
    "purine.GroupedProduct": partial(_one_op, kind="GroupedProduct"),
    "transformers.grouped_mm_fallback": partial(_one_op, kind="GroupedProduct"),
}
