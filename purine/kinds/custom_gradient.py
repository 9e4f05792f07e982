"""Values with a gradient rule of their own: straight-through estimators, reversed gradients.

The first inputs of a `CustomGradient` are its results, computed without a gradient; the others are
for the rule. The backward adds the ops of the rule, a graph that the op has as YAML text:

    inputs of the rule:  the cotangents of the results, then the inputs that are `saved`
    outputs of the rule: the gradients of the inputs that are `sources`

The rule has no shapes: they follow from the op's inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from torch import Tensor

from purine.analysis.infer import complete
from purine.analysis.rule_parts import needs_whole_batch
from purine.errors import GraphError
from purine.graph import NOTHING, Attribute, Builder, Graph, Op, from_yaml, to_yaml
from purine.registry.facts import Facts, Precision
from purine.registry.gradient import RULES, Emit, Pull, Rule
from purine.registry.kind import Attr, Kernel, Kind, PerOp, Results, register

__all__ = [
    "CUSTOM_GRADIENT",
    "add_custom_gradient",
    "refuse_parts",
    "rule_of",
    "rule_text",
    "shaped_rule",
]

CUSTOM_GRADIENT = "CustomGradient"


def rule_text(rule: Graph) -> str:
    """A rule as the value of an attribute: without shapes and places in files."""
    builder = Builder(rule)
    for name, blob in rule.blobs.items():
        builder.blobs[name] = replace(blob, shape=None, where=None)
    for name, op in rule.ops.items():
        builder.ops[name] = replace(op, where=None)
    return to_yaml(builder.graph())


def rule_of(op: Op) -> Graph:
    """The graph of an op's rule."""
    return _rule(str(op.attributes["rule"]))


@lru_cache(maxsize=256)
def _rule(text: str) -> Graph:
    return from_yaml(text, file="rule")


def shaped_rule(op: Op, graph: Graph) -> Graph:
    """The rule of an op of a graph, with the shapes that its blobs have there."""
    rule = rule_of(op)
    given = dict(zip(rule.inputs, _arguments(op, op.inputs), strict=True))
    builder = Builder(rule)
    for name, blob in rule.blobs.items():
        if name in given:
            builder.blobs[name] = replace(blob, shape=graph.blobs[given[name]].shape)
    return complete(builder.graph())


def _arguments(op: Op, cotangents: Sequence[str]) -> list[str]:
    """The blobs that the rule reads: cotangents of the results, then what is saved."""
    saved = [op.inputs[index] for index in op.items("saved")]
    return [*cotangents[: _count(op)], *saved]


def _count(op: Op) -> int:
    """The number of results; a ValueError where the rule does not fit the op."""
    rule, sources, saved = rule_of(op), op.items("sources"), op.items("saved")
    count = len(rule.inputs) - len(saved)
    if not 1 <= count <= len(op.inputs):
        raise ValueError(f"the rule has {len(rule.inputs)} inputs, and {len(saved)} are saved")
    if len(rule.outputs) != len(sources):
        raise ValueError(f"the rule has {len(rule.outputs)} outputs for {len(sources)} sources")
    if any(not 0 <= index < len(op.inputs) for index in (*sources, *saved)):
        raise ValueError(f"sources and saved must be inputs 0 to {len(op.inputs) - 1}")
    return count


def _bind(op: Op) -> Kernel:
    count = _count(op)

    def results(*tensors: Tensor) -> Results:
        shown = tuple(tensor.view_as(tensor) for tensor in tensors[:count])
        return shown if count > 1 else shown[0]

    return results


def _lower(emit: Emit, op: Op) -> tuple[str, ...]:
    # A rule that needs the whole batch keeps its op, for schemes that cut batches to see.
    if needs_whole_batch(rule_of(op), _count(op)):
        emit(CUSTOM_GRADIENT, op.inputs, op.attributes, outputs=op.outputs)
        return ()
    for given, name in zip(op.inputs, op.outputs, strict=False):
        if name != NOTHING:
            emit("StopGradient", [given], label="value", outputs=[name])
    return ()


def _pull(emit: Emit, pull: Pull) -> Sequence[str | None]:
    op, wanted = pull.op, pull.wanted
    cotangents = [
        emit("aten.zeros_like", [op.inputs[index]], label="zero")[0] if each is None else each
        for index, each in enumerate(pull.cotangents)
    ]
    rule = rule_of(op)
    blobs = dict(zip(rule.inputs, _arguments(op, cotangents), strict=True))
    sources = op.items("sources")
    needed = {name for name, index in zip(rule.outputs, sources, strict=True) if wanted[index]}
    for member in rule.leading_to(needed):
        outputs = [NOTHING if name == NOTHING else None for name in member.outputs]
        inputs = [blobs[name] for name in member.inputs]
        results = emit(member.kind, inputs, member.attributes, outputs=outputs)
        blobs.update(zip(member.outputs, results, strict=True))
    gradients: list[str | None] = [None] * len(op.inputs)
    for name, index in zip(rule.outputs, sources, strict=True):
        if wanted[index]:
            gradients[index] = blobs[name]
            _check(emit, op, op.inputs[index], blobs[name])
    return gradients


def _check(emit: Emit, op: Op, source: str, gradient: str) -> None:
    blobs = emit.blob(source), emit.blob(gradient)
    expected, found = (f"{blob.dtype} {list(blob.shape or ())}" for blob in blobs)
    if expected != found:
        what = f"the rule of op {op.name!r} gives a gradient of blob {source!r} of another form"
        remedy = "change the rule so that a gradient has the form of what it is the gradient of"
        raise GraphError(what, expected, found, remedy, op=op, blob=source)


def refuse_parts(graph: Graph, scheme: str) -> None:
    """Raise `GraphError` for a step with a gradient rule that needs the whole batch."""
    for op in graph.ops.values():
        if op.kind == CUSTOM_GRADIENT and needs_whole_batch(rule_of(op), _count(op)):
            what = f"the gradient rule of op {op.name!r} needs the whole batch"
            expected = f"rules that scale gradients sample by sample, for {scheme}"
            found = "ops " + ", ".join(each.kind for each in rule_of(op).ops.values())
            remedy = "train on the whole batch, or write the backward so that it is linear in "
            remedy += "the gradient and keeps samples apart"
            raise GraphError(what, expected, found, remedy, op=op)


def add_custom_gradient(
    builder: Builder,
    name: str,
    results: Sequence[tuple[str, str]],
    rule: Graph,
    sources: Sequence[str],
    saved: Sequence[str],
    *,
    where: str | None = None,
) -> None:
    """Add an op whose `results`, pairs of input and output, have the gradients of a rule."""
    inputs = [*(given for given, _ in results), *sources, *saved]
    first, last = len(results), len(inputs) - len(saved)
    settings: dict[str, Attribute] = {
        "rule": rule_text(rule),
        "sources": tuple(range(first, last)),
        "saved": tuple(range(last, len(inputs))),
    }
    outputs = [output for _, output in results]
    builder.op(name, CUSTOM_GRADIENT, inputs, outputs, settings, where=where)


RULES[CUSTOM_GRADIENT] = Rule(_lower, _pull)
_INDICES = Attr(tuple[int, ...], ())

register(
    Kind(
        CUSTOM_GRADIENT,
        _bind,
        ("x",),
        variadic=True,
        attributes={"rule": Attr(str), "sources": _INDICES, "saved": _INDICES},
        facts=Facts(Precision.WIDE),
        per_op=PerOp(_bind),
        view=True,
    )
)
