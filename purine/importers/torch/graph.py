"""From an exported program to a graph of ATen kinds.

One node becomes one op, named after the module it is in and at the user's line it comes from.
What needs more than that is in `_SPECIAL`: batch norm carries its statistics on as states, random
numbers are drawn by our kinds, and views become reshapes, since strides are the run's business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from purine.errors import GraphError
from purine.graph import NOTHING, Attribute, Builder, Graph
from purine.importers.torch.batch import Batch
from purine.importers.torch.export import LOSS, MODULE, Program, is_overload, source_of
from purine.importers.torch.layers import LAYERS
from purine.importers.torch.random import DRAWS, REMEDY
from purine.importers.torch.rules import Pulled, cotangent_of, leading_to, pulled_of, rule_nodes
from purine.kinds.custom_gradient import add_custom_gradient
from purine.optimize.prune import evaluation, prune
from purine.registry import aten
from purine.registry.clock import ITERATION, SEED, add_clock

__all__ = ["Translation", "add_state", "translate"]


def add_state(builder: Builder, name: str, value: Tensor, *, trainable: bool = False) -> None:
    """Add a state of the form of a value, which it is to be given when a run starts."""
    builder.blob(name, value.shape, aten.dtype_name(value.dtype))
    builder.state(name, trainable=trainable)


def translate(
    program: Program,
    batch: Batch,
    base: Graph,
    *,
    names: Mapping[str, str],
    constants: dict[str, Tensor],
    test: bool,
) -> Graph:
    """The graph of a program. `base` holds the states that `names` gives for torch's names.

    `constants` are tensors that tracing found; it grows. A `test` graph of a program that was
    traced in training has the test forms of its kinds.
    """
    made = Translation(program, batch, base, names, constants, test).graph()
    if not test:
        return prune(made)
    asked = [*made.outputs, *program.outputs]
    kept = evaluation(made, asked) if program.training else prune(made, asked, states=())
    return replace(kept, outputs=made.outputs)


class Translation:
    """A program on its way to a graph: the blobs that stand for its nodes so far."""

    def __init__(
        self,
        program: Program,
        batch: Batch,
        base: Graph,
        names: Mapping[str, str],
        constants: dict[str, Tensor],
        test: bool,
    ) -> None:
        self.program = program
        self.batch = batch
        self.names = names
        self.constants = constants
        self.test = test
        self.builder = Builder(base)
        self.blobs: dict[Node, str] = {}
        self.wanted: dict[Node, str] = {}
        self.results: list[tuple[str, Node]] = []
        self.conditions: list[Node] = []
        self.carried: list[tuple[str, Node]] = []
        self.late = dict.fromkeys(rule_nodes(program.nodes))
        self.reserved = frozenset((*program.reported, *program.outputs, *batch.names))

    def graph(self) -> Graph:
        self._read_results()
        self._add_inputs()
        for node in self.program.nodes:
            pulled = pulled_of(node)
            if pulled is not None:
                self._add_rule(node, pulled)
            elif _is_call(node) and node not in self.late:
                self._add_node(node)
        self._keep_conditions()
        for name, node in self.results:
            if name == LOSS:
                self.builder.blob(LOSS, (), self.dtype_of(node))
                self.builder.op(LOSS, "ScalarLoss", [self.blobs[node]], [LOSS])
            elif self.blobs[node] != name:
                self._clone(node, name)
        for name, node in self.carried:
            self._carry(name, node)
        self.builder.outputs = list(self.program.reported)
        return self.builder.graph()

    def _read_results(self) -> None:
        """Note which nodes are results, under which names, and which carry a state on."""
        (values,) = self.program.nodes[-1].args
        assert isinstance(values, tuple | list)
        names = iter((*self.program.reported, *self.program.outputs))
        conditions = len(self.program.expected)
        for spec, node in zip(
            self.program.exported.graph_signature.output_specs, values, strict=True
        ):
            sort = spec.kind.name
            if sort == "USER_OUTPUT":
                name = next(names, None)
                if name is None:
                    self.conditions.append(node)
                    continue
                self.results.append((name, node))
                if name != LOSS and not conditions:
                    self.wanted.setdefault(node, name)
            elif sort == "BUFFER_MUTATION":
                self.carried.append((self.names[spec.target], node))
            elif sort == "PARAMETER_MUTATION" and self.program.switched:
                continue
            elif sort != "USER_INPUT_MUTATION":
                name = str(spec.target).removeprefix(MODULE)
                raise GraphError(
                    f"{name!r} is changed by the module's own forward",
                    where=source_of(node) or next(filter(None, map(source_of, node.users)), None),
                    blob=name,
                    expected="parameters that only a solver changes",
                    found=sort.lower().replace("_", " "),
                    remedy="turn off the setting that asks for it, make it a buffer, or write "
                    "forward without changing it; if the change is one between modes, call the "
                    "module once as module.train() before it is imported",
                )

    def _keep_conditions(self) -> None:
        """Let results that are numbers be none where a condition that was expected does not hold.

        Gradients of the loss are none either.
        """
        if not self.conditions:
            return
        places = dict.fromkeys(self.program.expected)
        told = "; ".join(f"{where}: {code}" for where, code in places)
        conditions = list(dict.fromkeys(self.blobs[node] for node in self.conditions))
        for node in dict.fromkeys(node for _, node in self.results):
            if node.meta["val"].is_floating_point():
                name = self.builder.fresh(f"{self.blobs[node]}/expected")
                self.builder.blob(name, node.meta["val"].shape, self.dtype_of(node))
                inputs = [self.blobs[node], *conditions]
                settings: dict[str, Attribute] = {"expected": told}
                self.builder.op(name, "Expect", inputs, [name], settings)
                self.blobs[node] = name

    def _add_inputs(self) -> None:
        builder = self.builder
        add_clock(builder)
        fields = [
            builder.blob(name, value.shape, aten.dtype_name(value.dtype))
            for name, value in zip(self.batch.names, self.batch.values, strict=True)
        ]
        settings: dict[str, Attribute] = {"source": "test", "shuffle": False} if self.test else {}
        builder.op("data", "Data", [SEED, ITERATION], fields, settings, lane="io")
        rest = iter(fields)
        nodes = [node for node in self.program.nodes if node.op == "placeholder"]
        specs = self.program.exported.graph_signature.input_specs
        for spec, node in zip(specs, nodes, strict=True):
            if spec.kind.name == "USER_INPUT":
                self.blobs[node] = next(rest)
            elif spec.kind.name in ("PARAMETER", "BUFFER"):
                self.blobs[node] = self.names[spec.target]
            else:
                self.blobs[node] = self._constant(spec.target, node)

    def _constant(self, target: str, node: Node) -> str:
        value = self.program.exported.constants[target]
        if not isinstance(value, Tensor):
            raise GraphError(
                f"the module uses a {type(value).__name__} of its own",
                where=next(map(source_of, node.users), None),
                expected="parameters, buffers, tensors and plain numbers",
                found=f"a {type(value).__name__} that operations are given",
                remedy="leave out generator=: random numbers are drawn by the seed of a run",
            )
        value = value.detach()
        first = name = target.removeprefix(MODULE)
        number = 0
        while name in self.constants and not _same(self.constants[name], value):
            number += 1
            name = f"{first}.{number}"
        self.constants[name] = value
        if name not in self.builder.states:
            add_state(self.builder, name, value)
        return name

    def _add_node(self, node: Node) -> None:
        overload: Any = node.target
        self._refuse_numbers(node)
        self._refuse_sizes(node)
        if not is_overload(node):
            raise self.refused(node, str(overload), "an ATen operator")
        kind = aten.name_of(overload)
        special = _SPECIAL.get(kind)
        if special is not None and special(self, node):
            return
        if aten.kind_of(kind) is None:
            raise self.refused(node, kind, "an ATen operator")
        if torch.Tag.nondeterministic_seeded in overload.tags and kind not in _DROPLESS:
            raise self.refused(node, kind, "a distribution that we can draw from", REMEDY)
        values: list[Node] = []
        inputs, attributes = aten.attributes_of(
            overload, node.args, node.kwargs, lambda value: _number(value, values)
        )
        if kind in ("aten.view", "aten._unsafe_view"):
            kind, attributes = "aten.reshape", {"shape": attributes["size"]}
        results = node.meta.get("val")
        if isinstance(results, Tensor):
            outputs: list[Node | None] = [node]
        elif isinstance(results, tuple | list):
            outputs = self.results_of(node, len(results))
        else:
            return  # an assertion about its inputs
        self.emit(node, kind, [self.blobs[values[place]] for place in inputs], outputs, attributes)

    def _add_rule(self, node: Node, pulled: Pulled) -> None:
        """Add the op that gives results the gradients of the user's own rule."""
        results = self.results_of(node, len(pulled.results))
        if self.test or not any(results):
            for result, value in zip(results, pulled.results, strict=True):
                if result is not None:
                    self.blobs[result] = self.blobs[value]
            return
        name = self._fresh_name(node, _word(pulled.name))
        rule, saved = self._rule(pulled)
        pairs = []
        for value, result in zip(pulled.results, results, strict=True):
            output = NOTHING
            if result is not None:
                shape, dtype = value.meta["val"].shape, self.dtype_of(value)
                own = self.builder.fresh(f"{name}/value")
                output = self.builder.blob(self.wanted.get(result, own), shape, dtype)
                self.blobs[result] = output
            pairs.append((self.blobs[value], output))
        sources = [self.blobs[source] for source in pulled.sources]
        add_custom_gradient(self.builder, name, pairs, rule, sources, saved, where=source_of(node))

    def _rule(self, pulled: Pulled) -> tuple[Graph, list[str]]:
        """A rule as a graph of its own, and the blobs that it reads besides cotangents."""
        outer, before = self.builder, leading_to(pulled.gradients)
        self.builder = Builder(outer.graph())  # for the names that are taken
        cotangents = [self.builder.fresh(f"cotangent{k}") for k in range(len(pulled.results))]
        for node in self.late:
            place = cotangent_of(node)
            if place is not None and node in before:
                self.blobs[node] = cotangents[place]
            elif node in before and _is_call(node):
                self._add_node(node)
        made, self.builder = self.builder, outer
        members = [op for name, op in made.ops.items() if name not in outer.ops]
        produced = {blob for op in members for blob in op.outputs}
        outputs = [self.blobs[node] for node in pulled.gradients]
        read = dict.fromkeys((*(name for op in members for name in op.inputs), *outputs))
        saved = [name for name in read if name not in produced and name not in cotangents]
        renamed = {name: f"saved{place}" for place, name in enumerate(saved)}
        body = Builder()
        for name, value in zip(cotangents, pulled.results, strict=True):
            body.blob(name, None, self.dtype_of(value))
        for name in (*saved, *(blob for blob in made.blobs if blob in produced)):
            body.blob(renamed.get(name, name), None, made.blobs[name].dtype)
        for op in members:
            inputs = tuple(renamed.get(name, name) for name in op.inputs)
            body.add(replace(op, inputs=inputs))
        body.outputs = [renamed.get(name, name) for name in outputs]
        return body.graph(), saved

    def _refuse_numbers(self, node: Node) -> None:
        """Refuse a node that computes with a number that was read from a tensor."""
        numbers = [source for source in node.all_input_nodes if _is_number(source)]
        if not numbers or node.meta.get("val") is None:  # an assertion has no value
            return
        raise GraphError(
            "the module or its loss computes with a number that it reads from a tensor",
            where=source_of(numbers[0]),
            expected="a forward and a loss that do not depend on the values of tensors",
            found=".item(), or float() or int() of a tensor",
            remedy="replace .item() by tensors: write x.mean(), not x.mean().item()",
        )

    def _refuse_sizes(self, node: Node) -> None:
        """Refuse a node whose results have as many elements as values say."""
        results = node.meta.get("val")
        for value in results if isinstance(results, tuple | list) else (results,):
            if isinstance(value, Tensor) and any(map(_is_symbol, value.shape)):
                name = self.name_of(node)
                shape = ", ".join("?" if _is_symbol(size) else str(size) for size in value.shape)
                raise GraphError(
                    f"the size of what operation {name!r} gives depends on the values of tensors",
                    where=source_of(node),
                    op=name,
                    expected="sizes that follow from the shapes of the batch alone",
                    found=f"size [{shape}]",
                    remedy="keep all elements and let those that are not wanted count for nothing: "
                    "torch.where(mask, x, 0) in place of x[mask], nonzero or unique",
                )

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
        for place, result in enumerate(outputs):
            if result is None:
                blobs.append(NOTHING)
                continue
            own = name if len(outputs) == 1 else self.builder.fresh(f"{name}/{place}")
            blob = self.blobs[result] = self.wanted.get(result, own)
            value = result.meta["val"]
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
        """Add an op that the program does not have, on behalf of a node, of whose dtype it is."""
        name = self.builder.fresh(f"{self.name_of(node)}/{label}")
        self.builder.blob(name, shape, dtype or self.dtype_of(node))
        self.builder.op(name, kind, inputs, [name], attributes, where=source_of(node))
        return name

    def name_of(self, node: Node) -> str:
        """A name that is free: the path of the node's module, then what it does there."""
        overload: Any = node.target
        return self._fresh_name(node, aten.name_of(overload).split(".")[1].strip("_"))

    def _fresh_name(self, node: Node, short: str) -> str:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = stack[-1][0].partition("@")[0] if stack else ""
        path = path.removeprefix(MODULE.rstrip(".")).removeprefix(".")
        name = f"{path}/{short}" if path else short
        return self.builder.fresh(f"{name}/op" if name in self.reserved else name)

    def results_of(self, node: Node, count: int) -> list[Node | None]:
        """The nodes that take the results of a node of several, None where nobody does."""
        taken = {user.args[1]: user for user in node.users if user.target is getitem}
        for again in [user for user in node.users if user.target is getitem]:
            assert taken[again.args[1]] is again, "a result is taken once"
        return [taken.get(place) for place in range(count)]

    def argument(self, node: Node, name: str) -> Any:
        """An argument of a node's call, by the name in its schema."""
        overload: Any = node.target
        for place, argument in enumerate(overload._schema.arguments):
            if argument.name == name:
                default = argument.default_value if argument.has_default_value() else None
                given = node.args[place] if place < len(node.args) else default
                return node.kwargs.get(name, given)
        raise AssertionError(f"{overload} has no argument {name}")

    def dtype_of(self, node: Node) -> str:
        value = node.meta["val"]
        value = value[0] if isinstance(value, tuple | list) else value
        return aten.dtype_name(value.dtype)

    def _clone(self, node: Node, name: str) -> None:
        value = node.meta["val"]
        self.builder.blob(name, value.shape, self.dtype_of(node))
        op = self.builder.fresh(f"{name}/clone")
        self.builder.op(op, "aten.clone", [self.blobs[node]], [name])

    def _carry(self, state: str, node: Node) -> None:
        """Let the next iteration read the value of a node; a blob carries one state at most."""
        following = self.blobs[node]
        taken = {other.next for other in self.builder.states.values()}
        made = {blob for op in self.builder.ops.values() for blob in op.outputs}
        if following == state:
            return
        if following in taken or following not in made:
            following = self.builder.fresh(f"{state}/next")
            self._clone(node, following)
        self.builder.states[state] = replace(self.builder.states[state], next=following)

    def refused(
        self,
        node: Node,
        found: str,
        expected: str,
        remedy: str = "write this part of the module with other operations",
    ) -> GraphError:
        """The error that a node cannot become an op."""
        name = self.name_of(node) if is_overload(node) else node.name
        return GraphError(
            f"operation {name!r} of the module cannot become an op",
            where=source_of(node),
            op=name,
            expected=expected,
            found=found,
            remedy=remedy,
        )


def _batch_norm(t: Translation, node: Node) -> bool:
    """Batch norm as our kinds, which autodiff has a rule for."""
    x = t.argument(node, "input")
    channels = x.meta["val"].shape[1]
    training = aten.name_of(node.target) == "aten._native_batch_norm_legit_functional"
    if training and not t.argument(node, "training"):
        training = False
    inputs = [t.blobs[x]]
    for name, value in (("weight", 1.0), ("bias", 0.0)):
        given = t.argument(node, name)
        settings: dict[str, Attribute] = {
            "size": (channels,),
            "fill_value": value,
            "dtype": t.dtype_of(node),
        }
        inputs.append(
            t.extra(node, name, "aten.full", [], settings, (channels,))
            if given is None
            else t.blobs[given]
        )
    inputs += [t.blobs[t.argument(node, name)] for name in ("running_mean", "running_var")]
    rates = {"momentum": t.argument(node, "momentum"), "eps": t.argument(node, "eps")}
    results = t.results_of(node, 5 if training else len(node.meta["val"]))
    if any(result is not None and result.users for result in results[1:3]):
        return False
    if training:
        t.emit(node, "BatchNorm", inputs, [results[0], *results[3:]], rates)
        return True
    t.emit(node, "BatchNormTest", inputs, results[:1], rates)
    for result, name in zip(results[3:], ("running_mean", "running_var"), strict=False):
        if result is not None:
            t.blobs[result] = t.blobs[t.argument(node, name)]
    return True


def _instance_norm(t: Translation, node: Node) -> bool:
    """Instance norm is one op, unless it changes running statistics behind our back."""
    if t.argument(node, "running_mean") is not None and t.argument(node, "use_input_stats"):
        expected = "instance norm without running statistics"
        raise t.refused(node, "track_running_stats=True", expected)
    return False


def _copy(t: Translation, node: Node) -> bool:
    """What `y[...] = x` writes: x in the form of y. The op of that name has no gradient."""
    source, value = t.argument(node, "src"), node.meta["val"]
    blob, given = t.blobs[source], source.meta["val"]
    if given.dtype != value.dtype:
        cast: dict[str, Attribute] = {"dtype": t.dtype_of(node)}
        blob = t.extra(node, "cast", "aten._to_copy", [blob], cast, given.shape)
    if given.shape == value.shape:
        t.blobs[node] = blob
    else:
        t.emit(node, "aten.expand", [blob], [node], {"size": tuple(value.shape)})
    return True


def _stop(t: Translation, node: Node) -> bool:
    source = node.args[0]
    assert isinstance(source, Node)
    t.emit(node, "StopGradient", [t.blobs[source]], [node])
    return True


def _pass(t: Translation, node: Node) -> bool:
    source = node.args[0]
    assert isinstance(source, Node)
    t.blobs[node] = t.blobs[source]
    return True


_SPECIAL: Mapping[str, Callable[[Translation, Node], bool]] = {
    "aten._native_batch_norm_legit_functional": _batch_norm,
    "aten._native_batch_norm_legit_no_training": _batch_norm,
    "aten.alias": _pass,
    "aten.copy": _copy,
    "aten.detach": _stop,
    "aten.instance_norm": _instance_norm,
    "aten.lift_fresh_copy": _pass,
    **DRAWS,
    **LAYERS,
}
"""How a node becomes ops where it is not simply one; False leaves it to the general way."""

_DROPLESS = frozenset({"aten.scaled_dot_product_attention"})
"""Kinds that could draw random numbers and do not: with dropout they were decomposed."""


def _is_call(node: Node) -> bool:
    return node.op == "call_function" and node.target is not getitem


def _word(text: str) -> str:
    """A part of a name, from what a function of the user is called."""
    return re.sub(r"\W+", "_", text).strip("_")


def _is_number(node: Node) -> bool:
    return _is_symbol(node.meta.get("val"))


def _is_symbol(value: object) -> bool:
    """Whether a number is known only once there are values."""
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _number(value: object, values: list[Node]) -> int | None:
    if not isinstance(value, Node):
        return None
    values.append(value)
    return len(values) - 1


def _same(one: Tensor, other: Tensor) -> bool:
    return bool(one.dtype == other.dtype and torch.equal(one, other))
