"""Gradients: a reverse walk that adds ops to the graph.

`backward` turns a net into forward and backward as one graph. Every op between a trainable state
and a loss is lowered: the calls of its traced joint that do not depend on a cotangent take its
place, the others become its backward, so that saved values are shared and never computed twice. Ops
that no gradient passes stay as they are. The gradient of blob `x` is blob `grad/x`; where `x` has
several readers their contributions are added by explicit ops, that of the last reader first.

Ops of a backward are where the op of the net is, and a `Copy` is pulled back by a `Copy` to where
its input is. So the gradient of a blob is at the blob's location, and a net whose crossings are all
copies gives a graph of which the same holds.
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
from purine.graph import NOTHING, Attribute, Blob, Builder, Graph, Location, Op, Origin
from purine.graph.names import GRADIENT, gradient_of, has_gradients, loss_of, origin_of
from purine.kinds.loss_scale import LOSS_SCALE, scaled_of, unscale
from purine.registry.gradient import RULES, Pull, Rule
from purine.registry.lookup import lookup

__all__ = ["GRADIENT", "backward", "gradient_of", "losses_of", "reported_losses"]

_STOPS = frozenset({"StopGradient"})
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
    if has_gradients(net):
        raise GraphError(
            "the graph has gradients already",
            expected="a net of forward ops",
            found=f"blobs under {GRADIENT}/",
            remedy="call backward once, on the net itself",
        )
    weights = losses_of(net) if losses is None else dict(losses)
    if not weights:
        raise GraphError(
            "the net has no loss",
            expected="at least one op of a loss kind, or losses= naming scalar blobs",
            found="kinds " + ", ".join(sorted({op.kind for op in net.ops.values()})),
            remedy="add for example a SoftmaxLoss",
        )
    for name in (*weights, *wrt):
        if name not in net.blobs:
            raise GraphError(
                f"there is no blob {name!r} to take the gradient of",
                blob=name,
                expected="the name of a blob of the net",
                found=repr(name),
                remedy="see `purine show` for the names",
            )
    sources = {
        name for name, state in net.states.items() if state.trainable and state.lr_mult != 0
    } | set(wrt)
    if not sources:
        raise GraphError(
            "the net has nothing to train",
            expected="at least one trainable state, or wrt= naming blobs",
            found=f"{len(net.states)} states, none of them trainable",
            remedy="mark parameters as trainable: true",
        )
    graph = _Walk(mark_batch(net, weights), weights, sources).graph()
    if LOSS_SCALE in net.states:
        graph = _unscaled(graph, sources)
    for name in wrt:
        if gradient_of(name) not in graph.blobs:
            raise GraphError(
                f"no loss depends on blob {name!r} in a way that can be differentiated",
                blob=name,
                expected=f"a path of differentiable ops from {name!r} to {', '.join(weights)}",
                found="none",
                remedy="ask for the gradient of another blob or another loss",
            )
    return graph


def losses_of(net: Graph) -> dict[str, float]:
    """The results of a net's loss ops, with the weights they have in its total loss."""
    weights: dict[str, float] = {}
    for op in net.ops.values():
        if lookup(op).loss:
            weight = op.attributes.get("loss_weight", 1.0)
            assert isinstance(weight, int | float)
            weights[op.outputs[0]] = float(weight)
    return weights


def reported_losses(graph: Graph) -> tuple[str, ...]:
    """The outputs of a net or a training step that are losses.

    In a step they are known by the constant that the gradient of each begins with, whatever was
    done to the step since.

    >>> from purine.zoo import mlp
    >>> reported_losses(backward(mlp(batch=8)))
    ('loss',)
    """
    found: set[str] = set()
    for op in graph.ops.values():
        if op.kind == "aten.full" and op.origin is not None:
            found.add(op.origin.of.removeprefix(op.origin.parts))
        elif op.kind == "Fused":
            found.update(map(loss_of, _CONSTANTS.findall(str(op.attributes.get("body", "")))))
        elif lookup(op).loss:
            found.update(op.outputs[:1])
    return tuple(name for name in graph.outputs if name in found)


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
        self.net = net
        self.weights = weights
        self.sources = sources
        self.builder = Builder(net)
        self.builder.ops.clear()
        self.contributions: dict[str, list[str]] = {}
        self.totals: dict[str, str] = {}
        self.emitted: dict[str, list[str]] = {}
        self.renamed: dict[str, str] = {}

    def graph(self) -> Graph:
        reaching = self._reaching()
        lowered = []
        for name in self.net.order:
            op = self.net.ops[name]
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
            self._finish(name)
        return self.builder.graph()

    def _reaching(self) -> set[str]:
        """Blobs between a source and a loss, as far as gradients pass."""
        after: set[str] = set(self.sources)
        for name in self.net.order:
            op = self.net.ops[name]
            if op.kind not in _STOPS and not after.isdisjoint(op.inputs):
                after.update(
                    n for n in op.outputs if n and self.net.blobs[n].dtype.startswith(_REAL)
                )
        before = set(self.weights)
        for name in reversed(self.net.order):
            op = self.net.ops[name]
            if op.kind not in _STOPS and not before.isdisjoint(op.outputs):
                before.update(op.inputs)
        return after & before

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
            raise GraphError(
                f"op {op.name!r} ({op.kind}) at {op.location} cannot be differentiated",
                where=op.where,
                op=op.name,
                location=str(op.location),
                expected="a kind that torch can differentiate, or one with a rule of its own",
                found=(str(error).strip().splitlines() or [type(error).__name__])[0],
                remedy="put a StopGradient before it, or add a rule to registry.gradient.RULES",
            ) from error
        values = dict(enumerate(op.inputs))
        read = {number for call in (*joint.forward, *joint.backward) for number in call.inputs}
        named = {
            number: name
            for number, name in zip(joint.outputs, op.outputs, strict=True)
            if name != NOTHING or number not in read
        }
        self._replay(_Emitter(self.builder, op, forward=True), joint.forward, values, named)
        self._alias_outputs(op, joint, values)
        return _Lowered(op, wanted, None, (), joint, values)

    def _alias_outputs(self, op: Op, joint: Joint, values: dict[int, str]) -> None:
        """Name the op's outputs where the trace returned an input, or one value twice."""
        for number, name in zip(joint.outputs, op.outputs, strict=True):
            if name != NOTHING and values[number] != name:
                emit = _Emitter(self.builder, op, forward=True)
                emit("aten.clone", [values[number]], label="clone", outputs=[name])

    def _pull(self, item: _Lowered) -> None:
        cotangents = [self._total(name) if name != NOTHING else None for name in item.op.outputs]
        if all(cotangent is None for cotangent in cotangents):
            return
        emit = _Emitter(self.builder, item.op, forward=False)
        if item.rule is not None:
            pull = Pull(item.op, item.saved, cotangents, item.wanted)
            found = item.rule.pull(emit, pull)
        else:
            found = self._pull_joint(emit, item, cotangents)
        made = {name for op in emit.names for name in self.builder.ops[op].outputs}
        for name, want, gradient in zip(item.op.inputs, item.wanted, found, strict=True):
            if want and gradient is not None:
                if gradient in made:
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
        settings: dict[str, Attribute] = {"size": spec.shape, "dtype": spec.dtype}
        return emit("aten.zeros", [], settings, label="zero")[0]

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
        blob = self.builder.blobs[loss]
        assert blob.shape is not None
        name = self.builder.fresh(gradient_of(loss))
        self.builder.blob(name, blob.shape, blob.dtype, blob.location)
        settings: dict[str, Attribute] = {"fill_value": weight, "dtype": blob.dtype}
        origin = Origin(loss, "backward")
        self.builder.op(
            name,
            "aten.full",
            [],
            [name],
            {"size": blob.shape, **settings},
            location=blob.location,
            origin=origin,
        )
        if LOSS_SCALE in self.net.states:
            plain, name = name, self.builder.fresh(scaled_of(name))
            self.builder.blob(name, blob.shape, blob.dtype, blob.location)
            self.builder.op(
                name,
                "aten.mul.Tensor",
                [plain, LOSS_SCALE],
                [name],
                location=blob.location,
                origin=origin,
            )
        self.contributions.setdefault(loss, []).append(name)

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
        parts = sorted(parts, key=self._is_rows)
        total = parts[0]
        blob = self.builder.blobs[name]
        if any(map(self._is_copied, parts)):
            result = self.builder.fresh(target)
            self.builder.blob(result, blob.shape, blob.dtype, blob.location)
            settings: dict[str, Attribute] = {"weights": (1.0,) * len(parts)}
            self.builder.op(
                result,
                "Average",
                parts,
                [result],
                settings,
                location=blob.location,
                lane="inbound",
                origin=Origin(name, "backward"),
            )
            return result
        for index, part in enumerate(parts[1:], 1):
            last = index == len(parts) - 1
            result = self.builder.fresh(target if last else f"{target}/sum")
            self.builder.blob(result, blob.shape, blob.dtype, blob.location)
            origin = Origin(name, "backward")
            if not self._add_rows(total, part, result, origin):
                self.builder.op(
                    result,
                    "aten.add.Tensor",
                    [total, part],
                    [result],
                    location=blob.location,
                    origin=origin,
                )
            total = result
        return total

    def _is_copied(self, part: str) -> bool:
        """Whether a contribution comes from another location: then one op adds all of them."""
        made = map(self.builder.ops.get, self.emitted.get(part, []))
        return any(op is not None and op.kind == "Copy" and part in op.outputs for op in made)

    def _is_rows(self, part: str) -> bool:
        """Whether a contribution is that of an embedding: such are added row by row to others."""
        made = map(self.builder.ops.get, self.emitted.get(part, []))
        kind = "aten.embedding_dense_backward"
        return any(op is not None and op.kind == kind and part in op.outputs for op in made)

    def _add_rows(self, total: str, part: str, result: str, origin: Origin) -> bool:
        """Add the gradient of an embedding row by row, where it is a part of a sum.

        By itself it is a table full of zeros, as large as the vocabulary.
        """
        made = self.emitted.get(part, [])
        op = next((o for o in map(self.builder.ops.get, made) if o and part in o.outputs), None)
        if op is None or op.kind != "aten.embedding_dense_backward":
            return False
        if op.attributes["scale_grad_by_freq"] or op.attributes["padding_idx"] != -1:
            return False
        rows, index = (self.builder.blobs[item] for item in op.inputs)
        assert rows.shape is not None
        assert index.shape is not None
        del self.builder.ops[op.name], self.builder.blobs[part]
        flat = []
        for item, shape in ((index, (-1,)), (rows, (-1, rows.shape[-1]))):
            size = (math.prod(index.shape), *shape[1:])
            name = self.builder.fresh(f"{op.name}/{'rows' if item is rows else 'index'}")
            flat.append(self.builder.blob(name, size, item.dtype, op.location))
            self.builder.op(
                name,
                "aten.reshape",
                [item.name],
                [name],
                {"shape": shape},
                location=op.location,
                origin=op.origin,
            )
        self.builder.op(
            result,
            "aten.index_add",
            [total, *flat],
            [result],
            {"dim": 0},
            location=op.location,
            origin=origin,
        )
        return True

    def _rename(self, old: str, new: str) -> None:
        """Give a gradient its final name; only ops emitted along with it can refer to it yet."""
        blob = self.builder.blobs.pop(old)
        self.builder.blobs[new] = replace(blob, name=new)
        for name in self.emitted.pop(old):
            op = self.builder.ops[name]
            self.builder.ops[name] = replace(
                op,
                inputs=tuple(new if item == old else item for item in op.inputs),
                outputs=tuple(new if item == old else item for item in op.outputs),
            )
        self.renamed[old] = new

    def _finish(self, source: str) -> None:
        """Make sure that the gradient of a source is called after it."""
        total, target = self._total(source), gradient_of(source)
        if total is not None and total != target:
            blob = self.builder.blobs[source]
            self.builder.blob(target, blob.shape, blob.dtype, blob.location)
            self.builder.op(
                target,
                "aten.clone",
                [total],
                [target],
                location=blob.location,
                origin=Origin(source, "backward"),
            )


def _unscaled(graph: Graph, sources: set[str]) -> Graph:
    """The graph with its gradients divided by the loss scale that they were made with."""
    found = [name for name in sorted(sources) if gradient_of(name) in graph.producers]
    states = [name for name in found if name in graph.states]
    others = [name for name in found if name not in graph.states]
    return unscale(graph, states, others)


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
        place = location or self.op.location
        main = outputs is not None and self.op.outputs[0] in outputs
        short = label or kind.split(".")[min(1, kind.count("."))].strip("_")
        name = self.builder.fresh(f"{self.prefix}/{short}")
        origin: Origin | None = self.origin
        if main and self.op.name not in self.builder.ops:
            name, origin = self.op.name, self.op.origin
        draft = Op(
            name, kind, tuple(inputs), (), attributes or {}, place, self.op.lane, origin=origin
        )
        specs = infer_op(draft, [spec_of(self.builder.blobs[item]) for item in inputs])
        names: list[str] = []
        for index, spec in enumerate(specs):
            given = outputs[index] if outputs is not None else None
            if given is None and spec is not None:
                given = (
                    name if len(specs) == 1 and not main else self.builder.fresh(f"{name}/{index}")
                )
                self.builder.blob(given, spec.shape, spec.dtype, place)
            elif given and spec is not None and given not in self.builder.blobs:
                self.builder.blob(given, spec.shape, spec.dtype, place)
            names.append(given or NOTHING)
        self.builder.add(replace(draft, outputs=tuple(names)))
        self.names.append(name)
        return tuple(names)
