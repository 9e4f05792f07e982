"""Making nets that were traced for one batch size work for any.

The module is traced again with a few samples more. What differs between the two graphs follows the
batch size: reshapes and expansions by -1, everything else as a `sized` kind. The shapes inferred at
the second size must be those of the second trace; otherwise the net keeps its batch size, which a
`FixedBatch` op checks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from purine.analysis.infer import complete, with_batch
from purine.errors import GraphError
from purine.graph import Attribute, Builder, Graph, Op
from purine.importers.torch.batch import Batch
from purine.importers.torch.random import KINDS
from purine.kinds.custom_gradient import CUSTOM_GRADIENT, rule_of, rule_text, shaped_rule
from purine.registry.sized import sized

__all__ = ["Unfit", "check_constants", "counterpart", "enlarged", "fix_batch", "follow_batch"]

T = TypeVar("T")

# An odd number, so that halves and pairs of samples are not taken for what they are not.
_MORE = 3

# Kinds that differ between modes and have attributes, none of which depends on the batch size.
_SIZELESS = frozenset({"BatchNorm", "BatchNormTest", "Data", "Dropout"})


class Unfit(Exception):
    """Why a net cannot follow the batch size, and the op that is to blame where there is one."""

    def __init__(self, because: str, op: Op | None = None) -> None:
        super().__init__(because)
        self.because = because
        self.op = op


def enlarged(batch: Batch) -> Batch:
    """The batch with a few samples more: its own, over again."""
    size = batch.values[0].shape[0]
    if size == 0:
        raise Unfit("its example has no samples")
    rows = [row % size for row in range(size + _MORE)]
    return replace(batch, values=tuple(value[rows] for value in batch.values))


def counterpart(net: Graph, known: Graph, larger: Graph) -> Graph | None:
    """What a net is with more samples, as far as the other mode of the module tells.

    `known` is the module in its other mode, and `larger` the same with more samples. Saves tracing;
    None where that has to be done.
    """
    builder = Builder(net)
    for name, op in net.ops.items():
        mine, there = known.ops.get(name), larger.ops.get(name)
        counter = op.kind == "aten.add.Tensor" and op.inputs[0].endswith("num_batches_tracked")
        if op.kind in _SIZELESS or not op.attributes or counter:
            continue
        if mine is None or there is None or _form(mine) != _form(op):
            return None
        builder.ops[name] = replace(op, attributes=there.attributes)
    fields = {name for op in net.ops.values() if op.kind == "Data" for name in op.outputs}
    for name, blob in net.blobs.items():
        if name in fields and name not in larger.blobs:
            return None
        if name in net.producers:
            shape = larger.blobs[name].shape if name in fields else None
            builder.blobs[name] = replace(blob, shape=shape)
    try:
        return complete(builder.graph())
    except GraphError:
        return None


def _form(op: Op) -> tuple[str, str, str | None]:
    """What the same op of two traces has in common."""
    return op.kind, repr(op.attributes), op.where


def follow_batch(net: Graph, other: Graph, fields: Sequence[str]) -> Graph:
    """The net with all that differs in `other`, a trace with more samples, following the batch.

    `fields` are the blobs that are read from data; the first that the net has tells the batch size
    to ops that have no other way to know it.
    """
    field = next((name for name in fields if name in net.blobs), None)
    if field is None:
        return net
    try:
        followed = _followed(net, other, field)
        _check_shapes(followed, other, other.blobs[field].sizes[0])
        return followed
    except Unfit as unfit:
        return fix_batch(net, fields, unfit)


def _followed(net: Graph, other: Graph, field: str) -> Graph:
    _check_alike(net, other)
    sizes = net.blobs[field].sizes[0], other.blobs[field].sizes[0]
    builder = Builder(net)
    for name, op in net.ops.items():
        there = other.ops[name]
        if repr(op.attributes) != repr(there.attributes):
            following = _following_rule if op.kind == CUSTOM_GRADIENT else _following
            builder.ops[name] = following(op, there, net, other, field, sizes)
        if op.kind in ("Dropout", "RandomMask", *KINDS):
            _draw_by_sample(builder, builder.ops[name], net, other)
    return builder.graph()


def fix_batch(net: Graph, fields: Sequence[str], unfit: Unfit) -> Graph:
    """The net with a check that the batch is of its own size."""
    field = next((name for name in fields if any(name in op.inputs for op in net.ops.values())), "")
    if not field:
        return net
    blob, builder = net.blobs[field], Builder(net)
    checked = builder.fresh(f"{field}/fixed")
    for op in net.ops.values():
        inputs = tuple(checked if name == field else name for name in op.inputs)
        builder.ops[op.name] = replace(op, inputs=inputs)
    settings: dict[str, Attribute] = {"batch": net.blobs[field].sizes[0], "because": unfit.because}
    if unfit.op is not None:
        settings["holder"] = unfit.op.name
        settings["held"] = unfit.op.results[0]
    builder.add(replace(blob, name=checked))
    builder.op(checked, "FixedBatch", [field], [checked], settings)
    return builder.graph()


def check_constants(values: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> None:
    """Refuse constants of a trace that depend on the batch size."""
    for name, value in values.items():
        there = others.get(name)
        if there is None or there.shape != value.shape or not value.equal(there):
            raise Unfit(f"constant {name!r} of the module depends on the batch size")


def _check_alike(net: Graph, other: Graph) -> None:
    for name, op in net.ops.items():
        there = other.ops.get(name)
        parts = (op.kind, op.inputs, op.outputs)
        if there is None or parts != (there.kind, there.inputs, there.outputs):
            raise Unfit(f"op {name!r} ({op.kind}) is another with other batch sizes", op)
    more = [name for name in other.ops if name not in net.ops]
    if more:
        raise Unfit(f"with other batch sizes the module has an op {more[0]!r} in addition")
    for name in net.states:
        if net.blobs[name].shape != other.blobs[name].shape:
            raise Unfit(f"state {name!r} depends on the batch size")


def _check_shapes(net: Graph, other: Graph, size: int) -> None:
    """Refuse a net that has other shapes than the second trace at its batch size."""
    try:
        resized = with_batch(net, size)
    except GraphError as error:
        blamed = net.ops.get(error.op or "")
        raise Unfit(f"made for {size} samples, {error.what}", blamed) from error
    for name, blob in other.blobs.items():
        if resized.blobs[name].shape != blob.shape:
            op = net.producers.get(name)
            raise Unfit(f"the size of blob {name!r} does not follow the batch size", op)


def _following(
    op: Op, there: Op, net: Graph, other: Graph, field: str, sizes: tuple[int, int]
) -> Op:
    """The op with attributes that hold for both batch sizes, and so for any."""
    if op.kind == "aten.reshape":
        shape, changing = net.blobs[op.outputs[0]].sizes, _changing(op.outputs[0], net, other)
        if len(changing) == 1:
            shape = tuple(-1 if axis in changing else e for axis, e in enumerate(shape))
            return replace(op, attributes={"shape": shape})
    mine, theirs = dict(op.attributes), dict(there.attributes)
    if op.kind == "aten.expand":
        mine, theirs = (_kept(each, net, other) for each in (op, there))
    if mine.keys() != theirs.keys():
        raise Unfit(f"op {op.name!r} ({op.kind}) has other attributes with other batch sizes", op)
    settings = {key: _counted(op, mine[key], theirs[key], sizes) for key in mine}
    return replace(op, attributes=settings) if settings == mine else sized(op, field, settings)


def _following_rule(
    op: Op, there: Op, net: Graph, other: Graph, field: str, sizes: tuple[int, int]
) -> Op:
    """The op with a gradient rule whose ops follow the batch size, as those of the net do."""
    index = next((k for k, blob in enumerate(op.inputs) if _follows(blob, net, other, sizes)), -1)
    if index < 0:
        raise Unfit(f"the gradient rule of op {op.name!r} depends on the batch size", op)
    field = "batch"  # one more input of the rule, which tells the size
    op, there = (_with_batch_of(each, index, field) for each in (op, there))
    mine, theirs = shaped_rule(op, net), shaped_rule(there, other)
    rule = rule_text(_followed(mine, theirs, field))
    following = replace(op, attributes={**op.attributes, "rule": rule})
    shaped = shaped_rule(following, other)
    if any(shaped.blobs[name].shape != blob.shape for name, blob in theirs.blobs.items()):
        raise Unfit(f"the gradient rule of op {op.name!r} does not follow the batch size", op)
    return following


def _follows(blob: str, net: Graph, other: Graph, sizes: tuple[int, int]) -> bool:
    return (net.blobs[blob].sizes[:1], other.blobs[blob].sizes[:1]) == (sizes[:1], sizes[1:])


def _with_batch_of(op: Op, index: int, name: str) -> Op:
    """The op with a rule that reads one more of its inputs."""
    builder, saved = Builder(rule_of(op)), (*op.items("saved"), index)
    builder.blob(name, None)
    rule = rule_text(builder.graph())
    return replace(op, attributes={**op.attributes, "rule": rule, "saved": saved})


def _kept(op: Op, net: Graph, other: Graph) -> dict[str, Attribute]:
    """The attributes of an expansion, with -1 where its input has the batch's size already."""
    size = op.items("size")
    before = len(size) - len(net.blobs[op.inputs[0]].sizes)
    follows = {before + axis for axis in _changing(op.inputs[0], net, other)}
    kept = tuple(-1 if axis in follows else extent for axis, extent in enumerate(size))
    return {**op.attributes, "size": kept}


def _counted(op: Op, one: Attribute, two: Attribute, sizes: tuple[int, int]) -> Attribute:
    """A value as a formula of the batch size, from its values at two sizes; itself if these agree.

    Only multiples, quotients and differences, which two values tell apart from other laws.
    """
    if isinstance(one, tuple) and isinstance(two, tuple) and len(one) == len(two):
        return tuple(_counted(op, a, b, sizes) for a, b in zip(one, two, strict=True))
    if repr(one) == repr(two):
        return one
    if type(one) is type(two) is int:
        times, rest = divmod(one, sizes[0])
        if rest == 0 and times * sizes[1] == two:
            return "batch" if times == 1 else f"{times}*batch"
        if two - one == sizes[1] - sizes[0]:
            return f"batch{one - sizes[0]:+d}"
    if type(one) is type(two) is float:
        for law, factors in (
            ("{}*batch", (one / sizes[0], two / sizes[1])),
            ("{}/batch", (one * sizes[0], two * sizes[1])),
        ):
            if math.isclose(*factors, rel_tol=1e-12):
                return law.format(_rounded(factors[0]))
        if two - one == sizes[1] - sizes[0] and one.is_integer():
            return f"1.0*batch{int(one) - sizes[0]:+d}"
    values = f"{one} and {two} for {sizes[0]} and {sizes[1]} samples"
    raise Unfit(f"op {op.name!r} ({op.kind}) holds {values}", op)


def _rounded(factor: float) -> float:
    return float(round(factor)) if math.isclose(factor, round(factor), rel_tol=1e-12) else factor


def _draw_by_sample(builder: Builder, op: Op, net: Graph, other: Graph) -> None:
    """Make parts of a batch draw what the whole batch draws: by sample, or the same for all."""
    y = op.outputs[0]
    axes = _changing(y, net, other)
    if not axes:
        builder.ops[op.name] = replace(op, attributes={**op.attributes, "shared": True})
        return
    if len(axes) > 1:
        raise Unfit(f"op {op.name!r} ({op.kind}) draws random numbers for pairs of samples", op)
    if axes[0] == 0:
        return
    swap: dict[str, Attribute] = {"dim0": 0, "dim1": axes[0]}
    shape, dtype = _swapped(net.blobs[y].sizes, axes[0]), net.blobs[y].dtype
    drawn = builder.blob(builder.fresh(f"{op.name}/drawn"), shape, dtype)
    if op.kind == "Dropout":
        turned = builder.blob(builder.fresh(f"{op.name}/turned"), shape, dtype)
        builder.op(turned, "aten.transpose.int", [op.inputs[0]], [turned], swap, where=op.where)
        op = replace(op, inputs=(turned, *op.inputs[1:]))
    else:
        counted = _swapped(op.items("shape"), axes[0])
        op = replace(op, attributes={**op.attributes, "shape": counted})
    builder.ops[op.name] = replace(op, outputs=(drawn,))
    back = builder.fresh(f"{op.name}/back")
    builder.op(back, "aten.transpose.int", [drawn], [y], swap, where=op.where)


def _swapped(items: tuple[T, ...], index: int) -> tuple[T, ...]:
    """The items with the first and that at `index` exchanged."""
    swapped = list(items)
    swapped[0], swapped[index] = items[index], items[0]
    return tuple(swapped)


def _changing(blob: str, net: Graph, other: Graph) -> list[int]:
    """The axes of a blob that differ between two traces."""
    extents = zip(net.blobs[blob].sizes, other.blobs[blob].sizes, strict=True)
    return [axis for axis, (one, two) in enumerate(extents) if one != two]
