"""From an exported program to a graph of ATen kinds.

One node becomes one op, named after the module it is in and at the line of user code it comes from.
The exceptions are in `_SPECIAL`: batch norm has its statistics as states, and random numbers are
drawn by our kinds. Views become reshapes: strides are chosen when a graph runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from operator import getitem

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node

from purine.analysis.tracing import leading_to
from purine.errors import GraphError
from purine.graph import NOTHING, Attribute, Builder, Graph
from purine.importers.torch import rules
from purine.importers.torch.batch import LOSS, Batch, own_name
from purine.importers.torch.emitter import SPECIAL, Emitter, value_of
from purine.importers.torch.export import Program
from purine.importers.torch.lines import refusal, source_of
from purine.importers.torch.random import DRAWS, REMEDY
from purine.importers.torch.rules import Pulled
from purine.kinds.custom_gradient import add_custom_gradient
from purine.optimize.prune import evaluation, prune
from purine.registry import aten
from purine.registry.clock import ITERATION, SEED, add_clock

__all__ = ["Translation", "add_state"]


def add_state(builder: Builder, name: str, value: Tensor, *, trainable: bool = False) -> None:
    """Add a state of the shape and dtype of a value, which a run has to be given."""
    builder.blob(name, value.shape, aten.dtype_name(value.dtype))
    builder.state(name, trainable=trainable)


@dataclass
class Translation:
    """A program that is translated to a graph, node by node.

    `base` holds the states; `names` maps torch's names to theirs. `constants` are the tensors that
    the program holds itself; it grows. The `test` graph of a program that was traced in training
    has the test forms of its kinds.
    """

    program: Program
    batch: Batch
    base: Graph
    names: Mapping[str, str]
    constants: dict[str, Tensor]
    test: bool

    def __post_init__(self) -> None:
        self.findings = self.program.findings
        reserved = (*self.findings.reported, *self.findings.outputs, *self.batch.names)
        self.emitter = Emitter(self.base, reserved)
        self.blobs = self.emitter.blobs
        self.results: list[tuple[str, Node]] = []
        self.conditions: list[Node] = []
        self.carried: list[tuple[str, Node]] = []
        self.late = rules.rule_nodes(self.program.nodes)

    @property
    def builder(self) -> Builder:
        return self.emitter.builder

    def graph(self) -> Graph:
        """The graph, without what its results do not need."""
        graph = self._whole()
        if not self.test:
            return prune(graph)
        asked = [*graph.outputs, *self.findings.outputs]
        kept = evaluation(graph, asked) if self.program.training else prune(graph, asked, states=())
        return replace(kept, outputs=graph.outputs)

    def _whole(self) -> Graph:
        self._read_results()
        self._add_inputs()
        for node in self.program.nodes:
            pulled = rules.pulled_of(node)
            if pulled is not None:
                self._add_rule(node, pulled)
            elif _is_call(node) and node not in self.late:
                self._add_node(node)
        self._keep_conditions()
        for name, node in self.results:
            if name == LOSS:
                self.builder.blob(LOSS, (), self.emitter.dtype_of(node))
                self.builder.op(LOSS, "ScalarLoss", [self.blobs[node]], [LOSS])
            elif self.blobs[node] != name:
                self._clone(node, name)
        for name, node in self.carried:
            self._carry(name, node)
        self.builder.outputs = list(self.findings.reported)
        return self.builder.graph()

    def _read_results(self) -> None:
        """Note which nodes are results, under which names, and which are next values of states."""
        names = iter((*self.findings.reported, *self.findings.outputs))
        specs = self.program.exported.graph_signature.output_specs
        for spec, node in zip(specs, rules.nodes_in(self.program.nodes[-1].args[0]), strict=True):
            sort = spec.kind.name
            if sort == "USER_OUTPUT":
                name = next(names, None)
                if name is None:
                    self.conditions.append(node)
                    continue
                self.results.append((name, node))
                if name != LOSS and not self.findings.expected:
                    self.emitter.wanted.setdefault(node, name)
            elif sort == "BUFFER_MUTATION":
                self.carried.append((self.names[spec.target or ""], node))
            # A change of a parameter that the export lets pass is made once, before the net runs.
            elif sort not in ("PARAMETER_MUTATION", "USER_INPUT_MUTATION"):
                raise self.emitter.refused(node, sort.lower(), "results, and buffers that change")

    def _keep_conditions(self) -> None:
        """Make results NaN where a condition that the trace expected does not hold.

        Gradients of the loss are NaN then, too.
        """
        if not self.conditions:
            return
        lines = dict.fromkeys(self.findings.expected)
        told = "; ".join(f"{where}: {code}" for where, code in lines)
        conditions = list(dict.fromkeys(self.blobs[node] for node in self.conditions))
        for node in dict.fromkeys(node for _, node in self.results):
            value = value_of(node)
            if value.is_floating_point():
                name = self.builder.fresh(f"{self.blobs[node]}/expected")
                self.builder.blob(name, value.shape, self.emitter.dtype_of(node))
                inputs = [self.blobs[node], *conditions]
                self.builder.op(name, "Expect", inputs, [name], {"expected": told})
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
                self.blobs[node] = self.names[str(spec.target)]
            else:
                self.blobs[node] = self._constant(str(spec.target), node)

    def _constant(self, target: str, node: Node) -> str:
        value = self.program.exported.constants[target]
        if not isinstance(value, Tensor):
            what = f"the module uses a {type(value).__name__} of its own"
            expected = "parameters, buffers, tensors and plain numbers"
            found = f"a {type(value).__name__} that operations are given"
            remedy = "leave out generator=: random numbers are drawn by the seed of a run"
            raise refusal(what, expected, found, remedy, node=next(iter(node.users), node))
        value = value.detach()
        first = name = own_name(target)
        numbers = count(1)
        while name in self.constants and not _same(self.constants[name], value):
            name = f"{first}.{next(numbers)}"
        self.constants[name] = value
        if name not in self.builder.states:
            add_state(self.builder, name, value)
        return name

    def _add_node(self, node: Node) -> None:
        self._refuse_values(node)
        overload = node.target
        if not isinstance(overload, OpOverload):
            raise self.emitter.refused(node, str(overload), "an ATen operator")
        kind = aten.name_of(overload)
        special = _SPECIAL.get(kind)
        if special is not None and special(self.emitter, node):
            return
        if aten.kind_of(kind) is None:
            raise self.emitter.refused(node, kind, "an ATen operator")
        if torch.Tag.nondeterministic_seeded in overload.tags and kind not in _DROPLESS:
            raise self.emitter.refused(node, kind, "a distribution that we can draw from", REMEDY)
        values = node.all_input_nodes
        numbers = {value: number for number, value in enumerate(values)}
        inputs, attributes = aten.attributes_of(
            overload, node.args, node.kwargs, lambda v: numbers[v] if isinstance(v, Node) else None
        )
        if kind in ("aten.view", "aten._unsafe_view"):
            kind, attributes = "aten.reshape", {"shape": attributes["size"]}
        results = node.meta.get("val")
        if isinstance(results, Tensor):
            outputs: list[Node | None] = [node]
        elif isinstance(results, tuple | list):
            outputs = self.emitter.results_of(node, len(results))
        else:
            return  # an assertion about its inputs
        blobs = [self.blobs[values[number]] for number in inputs]
        self.emitter.emit(node, kind, blobs, outputs, attributes)

    def _add_rule(self, node: Node, pulled: Pulled) -> None:
        """Add the op that gives results the gradients of the user's own rule."""
        results = self.emitter.results_of(node, len(pulled.results))
        if self.test or not any(results):
            for result, value in zip(results, pulled.results, strict=True):
                if result is not None:
                    self.blobs[result] = self.blobs[value]
            return
        name = self.emitter.fresh_name(node, re.sub(r"\W+", "_", pulled.name).strip("_"))
        rule, saved = self._rule(pulled)
        pairs = []
        for value, result in zip(pulled.results, results, strict=True):
            output = NOTHING
            if result is not None:
                shape, dtype = value_of(value).shape, self.emitter.dtype_of(value)
                own = self.builder.fresh(f"{name}/value")
                output = self.builder.blob(self.emitter.wanted.get(result, own), shape, dtype)
                self.blobs[result] = output
            pairs.append((self.blobs[value], output))
        sources = [self.blobs[source] for source in pulled.sources]
        add_custom_gradient(self.builder, name, pairs, rule, sources, saved, where=source_of(node))

    def _rule(self, pulled: Pulled) -> tuple[Graph, list[str]]:
        """A rule as a graph of its own, and the blobs that it reads besides cotangents."""
        outer, before = self.builder, leading_to(pulled.gradients)
        inner = self.emitter.builder = Builder(outer.graph())  # with all names that are taken
        cotangents = [inner.fresh(f"cotangent{k}") for k in range(len(pulled.results))]
        for node in self.late:
            number = rules.cotangent_of(node)
            if number is not None and node in before:
                self.blobs[node] = cotangents[number]
            elif node in before and _is_call(node):
                self._add_node(node)
        self.emitter.builder = outer
        members = [op for name, op in inner.ops.items() if name not in outer.ops]
        produced = {blob for op in members for blob in op.outputs}
        outputs = [self.blobs[node] for node in pulled.gradients]
        read = dict.fromkeys((*(name for op in members for name in op.inputs), *outputs))
        saved = [name for name in read if name not in produced and name not in cotangents]
        renamed = {name: f"saved{number}" for number, name in enumerate(saved)}
        body = Builder()
        for name, value in zip(cotangents, pulled.results, strict=True):
            body.blob(name, None, self.emitter.dtype_of(value))
        for name in (*saved, *(blob for blob in inner.blobs if blob in produced)):
            body.blob(renamed.get(name, name), None, inner.blobs[name].dtype)
        for op in members:
            body.add(op.renamed(renamed))
        body.outputs = [renamed.get(name, name) for name in outputs]
        return body.graph(), saved

    def _refuse_values(self, node: Node) -> None:
        """Refuse a node that reads a number, or has a size, that depends on values of tensors."""
        results = node.meta.get("val")
        for source in node.all_input_nodes:
            if _is_symbol(source.meta.get("val")) and results is not None:  # None: an assertion
                what = "the module or its loss computes with a number that it reads from a tensor"
                expected = "a forward and a loss that do not depend on the values of tensors"
                found = ".item(), or float() or int() of a tensor"
                remedy = "replace .item() by tensors: write x.mean(), not x.mean().item()"
                raise refusal(what, expected, found, remedy, node=source)
        for value in results if isinstance(results, tuple | list) else (results,):
            if isinstance(value, Tensor) and any(map(_is_symbol, value.shape)):
                name = self.emitter.name_of(node)
                shape = ", ".join("?" if _is_symbol(size) else str(size) for size in value.shape)
                what = f"the size of what operation {name!r} gives depends on the values of tensors"
                expected = "sizes that follow from the shapes of the batch alone"
                found = f"size [{shape}]"
                remedy = "keep all elements and let those that are not wanted count for nothing: "
                remedy += "torch.where(mask, x, 0) in place of x[mask], nonzero or unique"
                raise GraphError(what, expected, found, remedy, where=source_of(node), op=name)

    def _clone(self, node: Node, name: str) -> None:
        self.builder.blob(name, value_of(node).shape, self.emitter.dtype_of(node))
        op = self.builder.fresh(f"{name}/clone")
        self.builder.op(op, "aten.clone", [self.blobs[node]], [name])

    def _carry(self, state: str, node: Node) -> None:
        """Make the value of a node the next value of a state; a blob serves one state at most."""
        following = self.blobs[node]
        taken = {other.next for other in self.builder.states.values()}
        produced = {blob for op in self.builder.ops.values() for blob in op.outputs}
        if following == state:
            return
        if following in taken or following not in produced:
            following = self.builder.fresh(f"{state}/next")
            self._clone(node, following)
        self.builder.states[state] = replace(self.builder.states[state], next=following)


_SPECIAL = {**DRAWS, **SPECIAL}

_DROPLESS = frozenset({"aten.scaled_dot_product_attention"})
"""Kinds tagged as random that draw nothing here: with dropout they were decomposed."""


def _is_call(node: Node) -> bool:
    return node.op == "call_function" and node.target is not getitem


def _is_symbol(value: object) -> bool:
    """Whether a number depends on the values of tensors."""
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _same(one: Tensor, other: Tensor) -> bool:
    return bool(one.dtype == other.dtype and torch.equal(one, other))
