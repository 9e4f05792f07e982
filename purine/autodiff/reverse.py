"""Gradients: a reverse walk that adds ops to the graph.

`backward` turns a net into forward and backward as one graph. Every op between a trainable state
and a loss is lowered: the calls of its traced joint that do not depend on a cotangent take its
place, the others become its backward, so that saved values are shared and never computed twice. Ops
that no gradient passes stay as they are. The gradient of blob `x` is blob `grad/x`, at the location
of `x`. Where `x` has several readers, ops add up their contributions, that of the last reader
first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import purine.kinds.average  # noqa: F401  (registers the kinds)
from purine.analysis.infer import complete, infer_op, op_key, spec_of
from purine.analysis.tracing import Call, Joint, Spec, trace_joint
from purine.arguments import checked
from purine.autodiff.batch_marks import mark_batch
from purine.errors import GraphError
from purine.graph import NOTHING, Attribute, Blob, Builder, Graph, Lane, Location, Op, Origin
from purine.graph.names import (
    GRADIENT,
    gradient_of,
    has_gradients,
    loss_of,
    of_worker,
    origin_of,
)
from purine.kinds.loss_scale import LOSS_SCALE, scaled_of, unscale
from purine.registry.gradient import RULES, Pull, Rule
from purine.registry.lookup import lookup

__all__ = ["GRADIENT", "backward", "gradient_of", "losses_of", "reported_losses"]

_ROWS = "aten.embedding_dense_backward"
"""The kind of a gradient that is added row by row to others."""
_STOP = "StopGradient"
_REAL = ("float", "bfloat", "complex")


@checked
def backward(
    net: Graph, *, losses: Mapping[str, float] | None = None, wrt: Sequence[str] = ()
) -> Graph:
    """Forward and backward of a net as one graph.

    The gradient is that of the sum of all losses, each times its weight: by default the results of
    all loss ops with their attribute `loss_weight`. Gradients are made for trainable states whose
    rate multiplier is not 0, and for the blobs named in `wrt`; nothing else costs an op.

    >>> from purine.zoo import mlp
    >>> "grad/fc1/weight" in backward(mlp(batch=8)).blobs
    True
    """
    net = complete(net)
    weights = losses_of(net) if losses is None else dict(losses)
    trained = {name for name, state in net.states.items() if state.trainable and state.lr_mult}
    sources = trained | set(wrt)
    _refuse(net, weights, wrt, sources)
    graph = _Walk(mark_batch(net, weights), weights, sources).graph()
    if LOSS_SCALE in net.states:
        differentiated = [name for name in sorted(sources) if gradient_of(name) in graph.producers]
        states = [name for name in differentiated if name in graph.states]
        graph = unscale(graph, states, [name for name in differentiated if name not in states])
    for name in wrt:
        if gradient_of(name) not in graph.blobs:
            what = f"no loss depends on blob {name!r} in a way that can be differentiated"
            expected = f"a path of differentiable ops from {name!r} to {', '.join(weights)}"
            remedy = "ask for the gradient of another blob or another loss"
            raise GraphError(what, blob=name, expected=expected, found="none", remedy=remedy)
    return graph


def _refuse(
    net: Graph, weights: Mapping[str, float], wrt: Sequence[str], sources: set[str]
) -> None:
    if has_gradients(net):
        what = "the graph has gradients already"
        expected, remedy = "a net of forward ops", "call backward once, on the net itself"
        raise GraphError(what, expected=expected, found=f"blobs under {GRADIENT}/", remedy=remedy)
    if not weights:
        expected = "at least one op of a loss kind, or losses= naming scalar blobs"
        found = "kinds " + ", ".join(sorted({op.kind for op in net.ops.values()}))
        raise GraphError("the net has no loss", expected, found, "add for example a SoftmaxLoss")
    for name in (*weights, *wrt):
        if name not in net.blobs:
            what = f"there is no blob {name!r} to take the gradient of"
            expected, remedy = "the name of a blob of the net", "see `purine show` for the names"
            raise GraphError(what, blob=name, expected=expected, found=repr(name), remedy=remedy)
    if not sources:
        what, remedy = "the net has nothing to train", "mark parameters as trainable: true"
        expected = "at least one trainable state, or wrt= naming blobs"
        found = f"{len(net.states)} states, none of them trainable"
        raise GraphError(what, expected=expected, found=found, remedy=remedy)


def losses_of(net: Graph) -> dict[str, float]:
    """The results of a net's loss ops, with the weights they have in its total loss."""
    losses = [op for op in net.ops.values() if lookup(op).loss]
    return {op.outputs[0]: op.number("loss_weight", 1.0) for op in losses}


def reported_losses(graph: Graph) -> tuple[str, ...]:
    """The outputs of a net or a training step that are losses.

    In a step they are known by the constant that the gradient of each begins with.

    >>> from purine.zoo import mlp
    >>> reported_losses(backward(mlp(batch=8)))
    ('loss',)
    """
    losses: set[str] = set()
    for op in graph.ops.values():
        if op.kind == "aten.full" and op.origin is not None:
            losses.add(op.origin.of.removeprefix(op.origin.parts))
        elif op.kind == "Fused":
            losses.update(map(loss_of, _CONSTANTS.findall(str(op.attributes.get("body", "")))))
        elif lookup(op).loss:
            losses.update(op.outputs[:1])
    return tuple(name for name in graph.outputs if {name, of_worker(name)} & losses)


_CONSTANTS = re.compile(r"op_type: aten\.full, name: ([^,\s]+)")
"""The names of constants in the text of a fused op."""


@dataclass(frozen=True, slots=True)
class _Lowered:
    """An op whose forward is in the new graph, with what its backward needs to know."""

    op: Op
    wanted: tuple[bool, ...]
    rule: Rule | None
    saved: tuple[str, ...]
    joint: Joint | None
    values: dict[int, str]


class _Walk:
    """One differentiation: builds the new graph op by op, forwards and then in reverse."""

    def __init__(self, net: Graph, weights: Mapping[str, float], sources: set[str]) -> None:
        self.net, self.weights, self.sources = net, weights, sources
        self.builder = Builder(net)
        self.builder.ops.clear()
        self.contributions: dict[str, list[str]] = {}
        self.totals: dict[str, str] = {}
        self.emitted: dict[str, list[str]] = {}
        self.renamed: dict[str, str] = {}

    def graph(self) -> Graph:
        reaching = self._reaching()
        lowered = []
        for op in self.net.in_order:
            wanted = tuple(blob in reaching for blob in op.inputs)
            if any(wanted) and any(blob in reaching for blob in op.outputs):
                lowered.append(self._lower(op, wanted))
            else:
                self.builder.add(op)
        for loss, weight in self.weights.items():
            self._seed(loss, weight)
        for item in reversed(lowered):
            self._pull(item)
        for name in sorted(self.sources):
            total, target = self._total(name), gradient_of(name)
            if total is not None and total != target:  # the gradient of a source is called after it
                self._add(target, "aten.clone", [total], name)
        return self.builder.graph()

    def _reaching(self) -> set[str]:
        """Blobs between a source and a loss, as far as gradients pass."""
        after: set[str] = set(self.sources)
        blobs = self.net.blobs
        for op in self.net.in_order:
            if op.kind != _STOP and not after.isdisjoint(op.inputs):
                after.update(name for name in op.results if blobs[name].dtype.startswith(_REAL))
        before = self.net.leading_to(self.weights, stop=_STOP)
        return after & {*self.weights, *(name for op in before for name in op.inputs)}

    def _lower(self, op: Op, wanted: tuple[bool, ...]) -> _Lowered:
        rule = RULES.get(op.kind)
        if rule is not None:
            saved = rule.lower(_Emitter(self.builder, op, forward=True), op)
            return _Lowered(op, wanted, rule, saved, None, {})
        specs = [spec_of(self.net.blobs[name]) for name in op.inputs]
        infer_op(op, specs)  # refuses what no kernel may do
        try:
            joint = _joint_of(op, specs, wanted)
        except Exception as error:
            what = f"op {op.name!r} ({op.kind}) at {op.location} cannot be differentiated"
            expected = "a kind that torch can differentiate, or one with a rule of its own"
            found = (str(error).strip().splitlines() or [type(error).__name__])[0]
            remedy = "put a StopGradient before it, or add a rule to registry.gradient.RULES"
            raise GraphError(what, expected, found, remedy, op=op) from error
        values = dict(enumerate(op.inputs))
        read = {number for call in (*joint.forward, *joint.backward) for number in call.inputs}
        named = {
            number: name
            for number, name in zip(joint.outputs, op.outputs, strict=True)
            if name != NOTHING or number not in read
        }
        emit = _Emitter(self.builder, op, forward=True)
        self._replay(emit, joint.forward, values, named)
        for number, name in zip(joint.outputs, op.outputs, strict=True):
            if name != NOTHING and values[number] != name:
                # The trace returned an input, or one value twice.
                emit("aten.clone", [values[number]], label="clone", outputs=[name])
        return _Lowered(op, wanted, None, (), joint, values)

    def _pull(self, item: _Lowered) -> None:
        cotangents = [self._total(name) if name != NOTHING else None for name in item.op.outputs]
        if all(cotangent is None for cotangent in cotangents):
            return
        emit = _Emitter(self.builder, item.op, forward=False)
        if item.rule is not None:
            gradients = item.rule.pull(emit, Pull(item.op, item.saved, cotangents, item.wanted))
        else:
            gradients = self._pull_joint(emit, item, cotangents)
        emitted = {name for op in emit.names for name in self.builder.ops[op].outputs}
        for name, want, gradient in zip(item.op.inputs, item.wanted, gradients, strict=True):
            if want and gradient is not None:
                if gradient in emitted:
                    self.emitted[gradient] = emit.names
                self.contributions.setdefault(name, []).append(gradient)

    def _pull_joint(
        self, emit: _Emitter, item: _Lowered, cotangents: Sequence[str | None]
    ) -> list[str | None]:
        joint, values = item.joint, dict(item.values)
        assert joint is not None
        number = len(item.op.inputs)
        for output, cotangent, pulled in zip(joint.outputs, cotangents, joint.pulled, strict=True):
            if pulled:
                values[number] = cotangent or self._zero(emit, item, output)
                number += 1
        self._replay(emit, joint.backward, values, {})
        return [None if g is None else values[g] for g in joint.gradients]

    def _zero(self, emit: _Emitter, item: _Lowered, output: int) -> str:
        """A cotangent of zeros, for a result that no loss depends on or that nobody takes."""
        assert item.joint is not None
        if item.values[output] != NOTHING:
            return emit("aten.zeros_like", [item.values[output]], label="zero")[0]
        results = (result for call in item.joint.forward for result in call.results)
        spec = next(result[1] for result in results if result is not None and result[0] == output)
        return emit("aten.zeros", [], {"size": spec.shape, "dtype": spec.dtype}, label="zero")[0]

    def _replay(
        self,
        emit: _Emitter,
        calls: Sequence[Call],
        values: dict[int, str],
        named: Mapping[int, str],
    ) -> None:
        """Emit recorded calls; `values` maps value numbers to blobs and grows."""
        for call in calls:
            outputs = [
                NOTHING if result is None else named.get(result[0]) for result in call.results
            ]
            inputs = [values[number] for number in call.inputs]
            names = emit(call.kind, inputs, call.attributes, outputs=outputs)
            for result, name in zip(call.results, names, strict=True):
                if result is not None:
                    values[result[0]] = name

    def _seed(self, loss: str, weight: float) -> None:
        blob = spec_of(self.builder.blobs[loss])
        name = self.builder.fresh(gradient_of(loss))
        full: dict[str, Attribute] = {"size": blob.shape, "fill_value": weight, "dtype": blob.dtype}
        self._add(name, "aten.full", [], loss, full)
        if LOSS_SCALE in self.net.states:
            plain, name = name, self.builder.fresh(scaled_of(name))
            self._add(name, "aten.mul.Tensor", [plain, LOSS_SCALE], loss)
        self.contributions.setdefault(loss, []).append(name)

    def _add(
        self,
        name: str,
        kind: str,
        inputs: Sequence[str],
        of: str,
        settings: Mapping[str, Attribute] | None = None,
        lane: Lane = "compute",
    ) -> None:
        """Add an op that computes the gradient of blob `of`, or a part of it, as blob `name`."""
        blob = self.builder.blobs[of]
        if name not in self.builder.blobs:
            self.builder.blob(name, blob.shape, blob.dtype, blob.location)
        origin = Origin(of, "backward")
        self.builder.op(
            name, kind, inputs, [name], settings, location=blob.location, lane=lane, origin=origin
        )

    def _total(self, name: str) -> str | None:
        """The blob that holds the whole gradient of `name`, or None where nothing contributed."""
        if name not in self.totals:
            parts = [self.renamed.get(part, part) for part in self.contributions.pop(name, [])]
            if not parts:
                return None
            self.totals[name] = self._sum(name, parts)
        return self.totals[name]

    def _sum(self, name: str, parts: Sequence[str]) -> str:
        target = gradient_of(name)
        total = parts[0]
        if len(parts) == 1:
            if total in self.emitted and target not in self.builder.blobs:
                self._rename(total, target)
                return target
            return total
        parts = sorted(parts, key=lambda part: self._kind_of(part) == _ROWS)
        total, blob = parts[0], self.builder.blobs[name]
        if any(self._kind_of(part) == "Copy" for part in parts):
            # One op adds up contributions from several locations.
            result = self.builder.fresh(target)
            self._add(result, "Average", parts, name, {"weights": (1.0,) * len(parts)}, "inbound")
            return result
        for index, part in enumerate(parts[1:], 1):
            result = self.builder.fresh(target if index == len(parts) - 1 else f"{target}/sum")
            self.builder.blob(result, blob.shape, blob.dtype, blob.location)
            if not self._add_rows(total, part, result, name):
                self._add(result, "aten.add.Tensor", [total, part], name)
            total = result
        return total

    def _maker(self, part: str) -> Op | None:
        ops = map(self.builder.ops.get, self.emitted.get(part, []))
        return next((op for op in ops if op is not None and part in op.outputs), None)

    def _kind_of(self, part: str) -> str | None:
        op = self._maker(part)
        return None if op is None else op.kind

    def _add_rows(self, total: str, part: str, result: str, name: str) -> bool:
        """Add the gradient of an embedding row by row, where it is a part of a sum.

        By itself it is a table full of zeros, as large as the vocabulary.
        """
        op = self._maker(part)
        if op is None or op.kind != _ROWS:
            return False
        if op.attributes["scale_grad_by_freq"] or op.attributes["padding_idx"] != -1:
            return False
        del self.builder.ops[op.name], self.builder.blobs[part]
        rows, index = (self.builder.blobs[item] for item in op.inputs)
        length, width = math.prod(index.sizes), rows.sizes[-1:]
        flat = []
        for label, item, inner in (("index", index, ()), ("rows", rows, width)):
            view = self.builder.fresh(f"{op.name}/{label}")
            flat.append(self.builder.blob(view, (length, *inner), item.dtype, op.location))
            settings: dict[str, Attribute] = {"shape": (-1, *inner)}
            reshape = Op(view, "aten.reshape", (item.name,), (view,), settings, op.location)
            self.builder.add(replace(reshape, origin=op.origin))
        self._add(result, "aten.index_add", [total, *flat], name, {"dim": 0})
        return True

    def _rename(self, old: str, new: str) -> None:
        """Give a gradient its final name; only ops emitted along with it can refer to it yet."""
        self.builder.blobs[new] = replace(self.builder.blobs.pop(old), name=new)
        for name in self.emitted.pop(old):
            self.builder.ops[name] = self.builder.ops[name].renamed({old: new})
        self.renamed[old] = new


def _joint_of(op: Op, inputs: Sequence[Spec], wanted: tuple[bool, ...]) -> Joint:
    """The traced joint of an op; ops that say the same of the same inputs are traced once."""
    key = (op_key(op, inputs), wanted)
    if key not in _JOINTS:
        _JOINTS[key] = trace_joint(lookup(op).bind(op), inputs, wanted)
    return _JOINTS[key]


_JOINTS: dict[tuple[object, ...], Joint] = {}


class _Emitter:
    """Adds ops on behalf of one op of the net: named after it, at its location and lane."""

    def __init__(self, builder: Builder, op: Op, *, forward: bool) -> None:
        self.builder = builder
        self.op = op
        self.prefix = op.name if forward else gradient_of(op.name)
        self.origin = replace(origin_of(op), of=op.name, role="forward" if forward else "backward")
        self.names: list[str] = []

    def blob(self, name: str) -> Blob:
        return self.builder.blobs[name]

    def __call__(
        self,
        kind: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        label: str | None = None,
        outputs: Sequence[str | None] | None = None,
        location: Location | None = None,
    ) -> tuple[str, ...]:
        location = location or self.op.location
        main = outputs is not None and self.op.outputs[0] in outputs
        short = label or kind.split(".")[min(1, kind.count("."))].strip("_")
        name = self.builder.fresh(f"{self.prefix}/{short}")
        origin: Origin | None = self.origin
        if main and self.op.name not in self.builder.ops:
            name, origin = self.op.name, self.op.origin
        settings, lane = attributes or {}, self.op.lane
        draft = Op(name, kind, tuple(inputs), (), settings, location, lane, origin=origin)
        specs = infer_op(draft, [spec_of(self.builder.blobs[item]) for item in inputs])
        names: list[str] = []
        for index, spec in enumerate(specs):
            given = outputs[index] if outputs is not None else None
            if given is None and spec is not None:
                single = len(specs) == 1 and not main
                given = name if single else self.builder.fresh(f"{name}/{index}")
            if given and spec is not None and given not in self.builder.blobs:
                self.builder.blob(given, spec.shape, spec.dtype, location)
            names.append(given or NOTHING)
        self.builder.add(replace(draft, outputs=tuple(names)))
        self.names.append(name)
        return tuple(names)
