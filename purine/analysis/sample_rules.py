"""What common ops do with the samples of a batch, without trying them out.

A rule gives the relation that all results of an op have to those of the whole batch, or None where
it cannot tell. Inputs are `SAME` or `Samples`. Tests compare every rule with a trial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch

from purine.analysis.samples import ANY, EVERY, MEAN, SAME, SUM, Relation, Samples, try_out
from purine.graph import Attribute, Blob, Op
from purine.registry import sized
from purine.registry.facts import SampleRule
from purine.registry.lookup import lookup
from purine.registry.spec import Shape

__all__ = ["is_batch_norm", "relate"]

Rule: TypeAlias = Callable[[Op, Sequence[Shape], Sequence[Relation]], Relation | None]


def is_batch_norm(op: Op) -> bool:
    """Whether an op normalises by the statistics of the samples that it reads."""
    return lookup(op).facts.samples is SampleRule.BATCH_NORM


def relate(
    op: Op, blobs: Mapping[str, Blob], relations: Mapping[str, Relation]
) -> tuple[Relation, ...] | None:
    """How the results of an op relate to those of the whole batch; None where it mixes samples."""
    given = [relations[name] for name in op.inputs]
    count = len(op.outputs)
    if op.attributes.get("scale_grad_by_freq") is True:
        return None  # gradients of rows are divided by how often the batch has them
    if {"offset", "shape", "stream"} <= lookup(op).attributes.keys():
        drawn = _drawn(op)
        return None if drawn is None else (drawn,)
    if all(relation is SAME for relation in given) and not op.kind.startswith(sized.PREFIX):
        return (SAME,) * count
    condition = _condition(op, given)
    if condition is not None:
        return (condition,)
    if is_batch_norm(op) and op.attributes.get("training", True):
        x = given[0]
        whole = isinstance(x, Samples) and x.axis == 0 and all(r is SAME for r in given[1:])
        return (x, *(SAME,) * (count - 1)) if whole else None
    shapes = [blobs[name].sizes for name in op.inputs]
    if all(r is SAME or (isinstance(r, Samples) and not r.numbers) for r in given):
        relation = _by_rule(op, shapes, given)
        if relation is not None:
            return (relation,) * count
    if {"offset", "stream"} <= lookup(op).attributes.keys():
        return None  # it draws by the number of the sample, which has to be along the first axis
    if any(relation in (ANY, EVERY) for relation in given):
        return None
    inputs = [blobs[name] for name in op.inputs]
    templates = tuple(map(_template, inputs, given))
    key = (op.kind, repr(sorted(op.attributes.items())), count, templates)
    if key not in _TRIED:
        _TRIED[key] = try_out(op, inputs, given, count)
    return _TRIED[key]


def _drawn(op: Op) -> Relation | None:
    """Random numbers: by sample along the first axis, or the same for all parts of a batch."""
    if op.attributes.get("shared") is True:
        return SAME
    shape = op.attributes["shape"]
    first = str(shape[0]) if isinstance(shape, tuple) and shape else ""
    rows, _, batch = first.rpartition("*")
    whole = op.kind.startswith(sized.PREFIX) and batch == "batch" and (rows or "1").isdigit()
    return Samples(0, inner=int(rows or "1")) if whole else None


def _condition(op: Op, given: Sequence[Relation]) -> Relation | None:
    """The relation of a condition on all samples, or of a value that depends on one."""
    kinds, rule = set(given), lookup(op).facts.samples
    if op.kind == "Expect" and kinds - {given[0]} <= {EVERY, SAME} and given[0] is not ANY:
        return given[0]
    if op.kind in ("aten.all", "aten.any") and isinstance(given[0], Samples):
        return EVERY if op.kind == "aten.all" else ANY
    if given[0] in (EVERY, ANY) and rule in (SampleRule.IDENTITY, SampleRule.RESHAPE):
        return given[0]
    if op.kind == "aten.logical_not" and kinds <= {EVERY, ANY}:
        return ANY if EVERY in kinds else EVERY
    if op.kind == "aten.logical_and" and EVERY in kinds <= {EVERY, SAME}:
        return EVERY
    if op.kind == "aten.logical_or" and ANY in kinds <= {ANY, SAME}:
        return ANY
    return None


_TRIED: dict[tuple[object, ...], tuple[Relation, ...] | None] = {}


def _template(blob: Blob, relation: Relation) -> tuple[object, ...]:
    """What a trial depends on: a blob's shape for any number of samples."""
    sizes = relation.sized(blob.sizes, 1) if isinstance(relation, Samples) else blob.sizes
    return tuple(sizes), blob.dtype, relation


def _by_rule(op: Op, shapes: Sequence[Shape], given: Sequence[Relation]) -> Relation | None:
    known = lookup(op).facts.samples
    rule = None if known is None else _RULES.get(known)
    if rule is not None:
        return rule(op, shapes, given)
    tags = getattr(lookup(op).function, "tags", ())
    pointwise = op.kind.startswith("aten.") and torch.Tag.pointwise in tags
    return _pointwise(op, shapes, given) if pointwise else None


def _only(given: Sequence[Relation]) -> Samples | None:
    """The one relation of all inputs that have samples."""
    samples = {relation for relation in given if isinstance(relation, Samples)}
    return samples.pop() if len(samples) == 1 else None


def _rows(op: Op, shapes: Sequence[Shape], given: Sequence[Relation]) -> Relation | None:
    samples = _only(given)
    if lookup(op).settings(op).get("axis") == 0:
        return None
    if samples is None or samples.axis != 0 or given[0] is SAME or len(shapes[0]) < 2:
        return None
    return samples


def _pointwise(op: Op, shapes: Sequence[Shape], given: Sequence[Relation]) -> Relation | None:
    """Elementwise ops; broadcasting aligns the axes of inputs from the last one."""
    most = max(map(len, shapes))
    aligned: set[Samples] = set()
    for shape, relation in zip(shapes, given, strict=True):
        if isinstance(relation, Samples):
            before = most - len(shape)
            aligned.add(Samples(relation.axis + before, relation.outer, relation.inner))
    if len(aligned) != 1:
        return None
    (samples,) = aligned
    for shape, relation in zip(shapes, given, strict=True):
        axis = samples.axis - (most - len(shape))
        if relation is SAME and axis >= 0 and shape[axis] != 1:
            return None
    return samples


def _reduction(inside: Relation | None) -> Rule:
    """Reductions over the axes `dim`; `inside` is what they give over the samples."""

    def rule(op: Op, shapes: Sequence[Shape], given: Sequence[Relation]) -> Relation | None:
        samples, rank = given[0], len(shapes[0])
        if not isinstance(samples, Samples) or len(given) != 1:
            return None
        dims = _dims(op, rank)
        if dims is None or samples.axis in dims:
            return inside
        if op.attributes.get("keepdim"):
            return samples
        before = sum(dim < samples.axis for dim in dims)
        return Samples(samples.axis - before, samples.outer, samples.inner)

    return rule


def _dims(op: Op, rank: int) -> set[int] | None:
    """The axes that an op reduces; None for all."""
    value: Attribute = op.attributes.get("dim")
    if value is None or value == ():
        return None
    dims = value if isinstance(value, tuple) else (value,)
    return {dim % rank for dim in dims if isinstance(dim, int)}


def _own_reshape(op: Op, shapes: Sequence[Shape], given: Sequence[Relation]) -> Relation | None:
    shape = op.attributes["shape"]
    kept = isinstance(shape, tuple) and shape[:1] == (0,)
    return given[0] if kept and given[0] == Samples(0) else None


def _product(op: Op, shapes: Sequence[Shape], given: Sequence[Relation]) -> Relation | None:
    """Products of the last two inputs, added to those before."""
    *added, left, right = given
    if any(relation is not SAME for relation in added):
        return None
    *_, one, other = shapes
    rows, columns = len(one) - 2, len(other) - 1
    if right is SAME and isinstance(left, Samples):
        return left if len(other) == 2 <= len(one) and left.axis <= rows else None
    if left is SAME and isinstance(right, Samples):
        return right if len(one) == len(other) == 2 and right.axis == columns else None
    if isinstance(left, Samples) and left == right and rows == columns - 1:
        return left if left.axis < rows else None
    return None


def _attention(op: Op, shapes: Sequence[Shape], given: Sequence[Relation]) -> Relation | None:
    samples = _only(given)
    inside = samples is not None and samples.axis < len(shapes[0]) - 2
    return samples if inside and all(r == samples for r in given[:3]) else None


def _embedding(op: Op, shapes: Sequence[Shape], given: Sequence[Relation]) -> Relation | None:
    table = lookup(op).inputs.index("weight")
    return given[1 - table] if given[table] is SAME else None


def _along_last(op: Op, shapes: Sequence[Shape], given: Sequence[Relation]) -> Relation | None:
    """Ops along the last axes: those of a norm's shape, or the last one of a linear layer."""
    x, sizes = given[0], op.attributes.get("normalized_shape", op.attributes.get("shape", (0,)))
    if not isinstance(x, Samples) or not isinstance(sizes, tuple):
        return None
    inside = x.axis < len(shapes[0]) - len(sizes)
    return x if inside and all(relation is SAME for relation in given[1:]) else None


def _reshape(op: Op, shapes: Sequence[Shape], given: Sequence[Relation]) -> Relation | None:
    """Reshapes keep the order of elements: those before the samples, and those behind."""
    samples, shape = given[0], op.attributes.get("shape", op.attributes.get("size"))
    if not isinstance(samples, Samples) or not isinstance(shape, tuple):
        return None
    batch = shapes[0][samples.axis] // (samples.outer * samples.inner)
    sizes = [size for size in shape if isinstance(size, int)]
    total = math.prod(shapes[0])
    if batch < 2 or len(sizes) != len(shape) or total == 0:
        return None
    known = math.prod(size for size in sizes if size != -1)
    sizes = [total // known if size == -1 else size for size in sizes]
    before = math.prod(shapes[0][: samples.axis]) * samples.outer
    for axis, size in enumerate(sizes):
        outer, rest = divmod(before, math.prod(sizes[:axis]))
        if outer and rest == 0 and size % (outer * batch) == 0:
            return Samples(axis, outer, size // (outer * batch))
    return None


def _moved(order_of: Callable[[Op, int], Sequence[int] | None]) -> Rule:
    """Ops that put axes into another order: `order_of` has for each result axis the old one."""

    def rule(op: Op, shapes: Sequence[Shape], given: Sequence[Relation]) -> Relation | None:
        samples, order = given[0], order_of(op, len(shapes[0]))
        if not isinstance(samples, Samples) or order is None:
            return None
        return replace(samples, axis=list(order).index(samples.axis))

    return rule


def _permuted(op: Op, rank: int) -> Sequence[int] | None:
    dims = op.attributes.get("dims", op.attributes.get("axes"))
    if not isinstance(dims, tuple):
        return None
    return [dim % rank for dim in dims if isinstance(dim, int)]


def _transposed(op: Op, rank: int) -> Sequence[int] | None:
    one, other = op.attributes.get("dim0", 0), op.attributes.get("dim1", 1)
    if not isinstance(one, int) or not isinstance(other, int):
        return None
    order = list(range(rank))
    order[one], order[other] = order[other], order[one]
    return order


def _across(op: Op, shapes: Sequence[Shape], given: Sequence[Relation]) -> Relation | None:
    """Ops that work along one axis, which is not that of the samples."""
    samples, axis = _only(given), _axis(op)
    if samples is None or axis is None or any(r is SAME for r in given):
        return None
    return None if axis % len(shapes[0]) == samples.axis else samples


def _axis(op: Op) -> int | None:
    settings = lookup(op).settings(op)
    value = settings.get("axis", settings.get("dim"))
    return value if isinstance(value, int) else None


def _selected(op: Op, shapes: Sequence[Shape], given: Sequence[Relation]) -> Relation | None:
    samples, dim = _across(op, shapes, given), op.attributes["dim"]
    if not isinstance(samples, Samples) or not isinstance(dim, int):
        return None
    return replace(samples, axis=samples.axis - (dim % len(shapes[0]) < samples.axis))


def _softmax_loss(op: Op, shapes: Sequence[Shape], given: Sequence[Relation]) -> Relation | None:
    """Losses and measures of scores and labels, each of which counts once."""
    rows = _only(given)
    if rows is None or rows.axis != 0 or any(relation is SAME for relation in given[:2]):
        return None
    if op.attributes.get("axis", 1) == 0:
        return None
    if op.attributes.get("normalization") == "none":
        return SUM
    return MEAN if op.attributes.get("ignore_label") is None else None


def _cross_entropy(op: Op, shapes: Sequence[Shape], given: Sequence[Relation]) -> Relation | None:
    rows = _only(given)
    if rows is None or rows.axis != 0 or given[0] != given[1]:
        return None
    return SUM if op.attributes.get("reduction", 1) == 2 and len(shapes[0]) > 1 else None


_RULES: Mapping[SampleRule, Rule] = {
    SampleRule.ROWS: _rows,
    SampleRule.IDENTITY: lambda op, shapes, given: given[0],
    SampleRule.ALONG_AXIS: _across,
    SampleRule.SELECT: _selected,
    SampleRule.RESHAPE: _reshape,
    SampleRule.RESHAPE_ROWS: _own_reshape,
    SampleRule.PERMUTE: _moved(_permuted),
    SampleRule.TRANSPOSE: _moved(_transposed),
    SampleRule.LAYER_NORM: _along_last,
    SampleRule.LINEAR: _along_last,
    SampleRule.MATRIX_PRODUCT: _product,
    SampleRule.ATTENTION: _attention,
    SampleRule.EMBEDDING: _embedding,
    SampleRule.LABELS: _softmax_loss,
    SampleRule.CROSS_ENTROPY: _cross_entropy,
    SampleRule.SUM: _reduction(SUM),
    SampleRule.MEAN: _reduction(MEAN),
    SampleRule.EXTREME: _reduction(None),
}
