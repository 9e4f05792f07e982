"""How ops work on pieces of their inputs: a rule for each sharding class that kinds declare.

A rule of `_FOLLOW` says how an op continues with inputs that are cut already; None where the pieces
have to be gathered first. A rule of `_WEIGHTED` cuts an op by its parameters: by `columns`, so that
each device computes a part of the result, or by `rows`, so that each computes a summand of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from purine.graph import Attribute, Op
from purine.parallel._layout import Cannot, Layout, Shape, evenly, reshaped
from purine.registry.facts import ShardRule
from purine.registry.lookup import lookup

__all__ = [
    "By",
    "Cut",
    "Piece",
    "Plan",
    "Seen",
    "blocks_of",
    "cut_by_parameters",
    "follow",
    "has_parameters",
    "order_of",
    "shard_rule",
]

By: TypeAlias = Literal["columns", "rows"]


@dataclass(frozen=True, slots=True)
class Seen:
    """An op as a rule sees it: shapes, how its inputs are cut, and which of them are states."""

    op: Op
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    layouts: tuple[Layout | None, ...]
    states: tuple[bool, ...]

    def setting(self, name: str) -> Attribute:
        """An attribute of the op, or its default."""
        known = lookup(self.op).attributes[name]
        return self.op.attributes.get(name, None if known.required else known.default)  # type: ignore[arg-type]

    def axis(self, name: str = "", dims: int | None = None) -> int:
        """An attribute that numbers a dimension, by default `axis` or `dim`, from the front."""
        known = lookup(self.op).attributes
        value = self.setting(name or ("axis" if "axis" in known else "dim"))
        assert isinstance(value, int)
        return value % (len(self.inputs[0]) if dims is None else dims)


@dataclass(frozen=True, slots=True)
class Piece:
    """The op of one device: its kind and attributes, and which inputs of the whole op it reads."""

    kind: str
    attributes: Mapping[str, Attribute]
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """How inputs and outputs of an op are cut (None: whole), and the op of each device.

    With `summed` the pieces each write a summand of the one output.
    """

    inputs: tuple[Layout | None, ...]
    outputs: tuple[Layout | None, ...]
    pieces: tuple[Piece, ...]
    summed: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """What is asked of an op with parameters: into how many pieces, how, and in which units."""

    count: int
    by: By | None
    blocks: int = 1
    unit: int = 1


def _same(
    seen: Seen, count: int, changed: Sequence[Mapping[str, Attribute]] = ()
) -> tuple[Piece, ...]:
    """Pieces of the op's own kind with all its inputs, and some attributes changed."""
    changes = changed or [{}] * count
    every = tuple(range(len(seen.inputs)))
    return tuple(Piece(seen.op.kind, {**seen.op.attributes, **change}, every) for change in changes)


def _plan(
    seen: Seen,
    layout: Layout,
    inputs: Sequence[Layout | None],
    outputs: Sequence[Layout | None],
    changed: Sequence[Mapping[str, Attribute]] = (),
) -> Plan:
    return Plan(tuple(inputs), tuple(outputs), _same(seen, len(layout.parts), changed))


def _only(seen: Seen) -> Layout | None:
    """How the first input is cut, where it is the only one that is."""
    first, *others = seen.layouts
    return first if not any(others) else None


def _elementwise(seen: Seen) -> Plan | None:
    """Inputs of the same cut, or parameters, which are cut alike; broadcast ones stay whole."""
    out = seen.outputs[0]
    place = next(k for k, layout in enumerate(seen.layouts) if layout)
    first = seen.layouts[place]
    assert first is not None
    axis = first.axis + len(out) - len(seen.inputs[place])
    if seen.inputs[place][first.axis] != out[axis]:
        return None
    wanted: list[Layout | None] = []
    for shape, layout, state in zip(seen.inputs, seen.layouts, seen.states, strict=True):
        own = axis - len(out) + len(shape)
        if own < 0 or shape[own] == 1:
            if layout is not None:
                return None
            wanted.append(None)
        elif layout == first.along(own) or (layout is None and state):
            wanted.append(first.along(own))
        else:
            return None
    return _plan(seen, first, wanted, [first.along(axis)] * len(seen.outputs))


def _dropout(seen: Seen) -> Plan | None:
    """Each piece draws what the whole mask has at its places."""
    layout = _only(seen)
    if layout is None or layout.axis == 0 or seen.op.attributes.get("part") is not None:
        return None
    extent = seen.inputs[0][layout.axis]
    changed: list[dict[str, Attribute]] = [
        {"part": (layout.axis, extent, *(end for span in part for end in span))}
        for part in layout.parts
    ]
    return _plan(seen, layout, [layout, None, None], [layout], changed)


def _shifted(seen: Seen) -> Plan | None:
    """Scale and Bias: values that stand for the axis that is cut are cut too."""
    layout = seen.layouts[0]
    if layout is None:
        return None
    first = seen.axis("axis")
    wanted: list[Layout | None] = [layout]
    for shape in seen.inputs[1:]:
        inside = first <= layout.axis < first + len(shape)
        wanted.append(layout.along(layout.axis - first) if inside else None)
    return _plan(seen, layout, wanted, [layout])


def _prelu(seen: Seen) -> Plan | None:
    layout = _only(seen)
    if layout is None:
        return None
    cut = layout.axis == 1 and seen.inputs[1] != (1,)
    return _plan(seen, layout, [layout, layout.along(0) if cut else None], [layout])


def _batch_norm(seen: Seen) -> Plan | None:
    """Each channel by itself, with its own statistics."""
    layout = _only(seen)
    if layout is None or layout.axis != 1:
        return None
    channels = layout.along(0)
    wanted = [layout, *[channels] * (len(seen.inputs) - 1)]
    return _plan(seen, layout, wanted, [layout, *[channels] * (len(seen.outputs) - 1)])


def _planes(seen: Seen) -> Plan | None:
    """Ops on each image of each channel by itself."""
    layout = _only(seen)
    if layout is None or layout.axis > 1 or len(seen.inputs[0]) != 4:
        return None
    return _plan(seen, layout, [layout], [layout] * len(seen.outputs))


def _response(seen: Seen) -> Plan | None:
    """Local response normalisation reads neighbouring channels, unless it is within one."""
    return _planes(seen) if seen.setting("region") == "within" else None


def _mean(seen: Seen) -> Plan | None:
    layout, dims = _only(seen), seen.setting("dim")
    if layout is None or not isinstance(dims, tuple):
        return None
    gone = {dim % len(seen.inputs[0]) for dim in dims if isinstance(dim, int)}
    if layout.axis in gone or not gone:
        return None
    less = 0 if seen.setting("keepdim") else sum(dim < layout.axis for dim in gone)
    return _plan(seen, layout, [layout], [layout.along(layout.axis - less)])


def _attention(seen: Seen) -> Plan | None:
    """Heads, and samples, attend by themselves."""
    layout = seen.layouts[0]
    if layout is None or any(item != layout for item in seen.layouts[:3]):
        return None
    if layout.axis > len(seen.inputs[0]) - 3 or seen.op.attributes.get("enable_gqa"):
        return None
    for shape, mask in zip(seen.inputs[3:], seen.layouts[3:], strict=True):
        own = layout.axis - len(seen.inputs[0]) + len(shape)
        if mask is not None or (own >= 0 and shape[own] != 1):
            return None
    rest = len(seen.inputs) - 3
    return _plan(seen, layout, [layout] * 3 + [None] * rest, [layout])


def _products(seen: Seen) -> Plan | None:
    """Products of matrices for each of the places before them."""
    first, second = seen.layouts
    one, other = seen.inputs
    if first is None or first != second or len(one) != len(other) or first.axis > len(one) - 3:
        return None
    return _plan(seen, first, [first, second], [first])


def order_of(seen: Seen) -> tuple[int, ...]:
    """Dimension k of the result is dimension `order_of[k]` of the input."""
    dims, attributes = len(seen.inputs[0]), seen.op.attributes
    order = list(range(dims))
    if seen.op.kind in ("Transpose", "aten.permute"):
        given = attributes["axes" if seen.op.kind == "Transpose" else "dims"]
        assert isinstance(given, tuple)
        return tuple(axis % dims for axis in given if isinstance(axis, int))
    if seen.op.kind == "aten.t":
        return tuple(reversed(order))
    one, other = seen.axis("dim0"), seen.axis("dim1")
    order[one], order[other] = order[other], order[one]
    return tuple(order)


def _transposed(seen: Seen) -> Plan | None:
    layout = _only(seen)
    if layout is None:
        return None
    return _plan(seen, layout, [layout], [layout.along(order_of(seen).index(layout.axis))])


def _reshaped(seen: Seen) -> Plan | None:
    layout = _only(seen)
    found = layout and reshaped(seen.inputs[0], layout, seen.outputs[0])
    if layout is None or found is None:
        return None
    changed: list[dict[str, Attribute]] = []
    for number in range(len(layout.parts)):
        shape = seen.op.attributes.get("shape")
        if isinstance(shape, tuple):
            sizes = list(shape)
            if sizes[found.axis] not in (0, -1):
                sizes[found.axis] = found.extent(number)
            changed.append({"shape": tuple(sizes)})
    return _plan(seen, layout, [layout], [found], changed)


def blocks_of(seen: Seen) -> tuple[int, int] | None:
    """Along which axis an op cuts its input into equal parts, and into how many."""
    axis = seen.axis()
    count = len(seen.outputs)
    return None if seen.inputs[0][axis] % count else (axis, count)


def _split(seen: Seen) -> Plan | None:
    layout, cut = _only(seen), blocks_of(seen)
    if layout is None or cut is None:
        return None
    axis, count = cut
    if layout.axis != axis:
        return _plan(seen, layout, [layout], [layout] * count)
    size = seen.inputs[0][axis] // count
    found = []
    for block in range(count):
        low, high = block * size, (block + 1) * size
        parts = tuple(
            tuple((s - low, e - low) for s, e in part if low <= s and e <= high)
            for part in layout.parts
        )
        found.append(Layout(axis, parts))
    changed: list[dict[str, Attribute]] = []
    for number in range(len(layout.parts)):
        local = {item.extent(number) for item in found}
        if len(local) != 1 or local == {0} or local.pop() * count != layout.extent(number):
            return None
        if seen.op.kind == "aten.split.Tensor":
            changed.append({"split_size": layout.extent(number) // count})
        elif seen.op.kind == "aten.split_with_sizes":
            changed.append({"split_sizes": (layout.extent(number) // count,) * count})
    return _plan(seen, layout, [layout], found, changed)


def _concat(seen: Seen) -> Plan | None:
    axis = seen.axis()
    layouts = [layout for layout in seen.layouts if layout is not None]
    if len(layouts) != len(seen.inputs) or len({layout.axis for layout in layouts}) != 1:
        return None
    first = layouts[0]
    if first.axis != axis:
        same = all(layout == first for layout in layouts)
        return _plan(seen, first, layouts, [first]) if same else None
    parts: list[list[tuple[int, int]]] = [[] for _ in first.parts]
    start = 0
    for shape, layout in zip(seen.inputs, layouts, strict=True):
        for spans, own in zip(parts, layout.parts, strict=True):
            spans += [(start + s, start + e) for s, e in own]
        start += shape[axis]
    return _plan(seen, first, layouts, [Layout(axis, tuple(map(tuple, parts)))])


def _along(seen: Seen, *, dropped: bool = False) -> Plan | None:
    """Ops that work along one axis, which is not the one that is cut."""
    layout, axis = _only(seen), seen.axis()
    if layout is None or layout.axis == axis:
        return None
    less = 1 if dropped and axis < layout.axis else 0
    return _plan(seen, layout, [layout], [layout.along(layout.axis - less)])


def _selected(seen: Seen) -> Plan | None:
    return _along(seen, dropped=True)


def _layer_norm(seen: Seen) -> Plan | None:
    layout = _only(seen)
    shape = seen.setting("shape" if seen.op.kind == "LayerNorm" else "normalized_shape")
    assert isinstance(shape, tuple)
    if layout is None or layout.axis >= len(seen.inputs[0]) - len(shape):
        return None
    return _plan(seen, layout, [layout, *[None] * (len(seen.inputs) - 1)], [layout])


_FOLLOW: Mapping[ShardRule, Callable[[Seen], Plan | None]] = {
    ShardRule.ELEMENTWISE: _elementwise,
    ShardRule.CHANNEL_SCALE: _shifted,
    ShardRule.PRELU: _prelu,
    ShardRule.DROPOUT: _dropout,
    ShardRule.BATCH_NORM: _batch_norm,
    ShardRule.LAYER_NORM: _layer_norm,
    ShardRule.LOCAL_RESPONSE: _response,
    ShardRule.POOL: _planes,
    ShardRule.MEAN: _mean,
    ShardRule.ATTENTION: _attention,
    ShardRule.TRANSPOSE: _transposed,
    ShardRule.RESHAPE: _reshaped,
    ShardRule.SPLIT: _split,
    ShardRule.CONCAT: _concat,
    ShardRule.ALONG_AXIS: _along,
    ShardRule.SELECT: _selected,
    ShardRule.BATCHED_PRODUCT: _products,
    ShardRule.MATMUL: _products,
}


@dataclass(frozen=True, slots=True)
class _Places:
    """Which inputs of a kind are what, and which dimensions of the weight count what."""

    x: int
    weight: int
    bias: int
    out: int
    into: int
    bare: str | None = None
    """The kind without a bias, where it is another one."""


_LINEAR: Mapping[ShardRule, _Places] = {
    ShardRule.LINEAR: _Places(0, 1, 2, 0, 1),
    ShardRule.ADDMM: _Places(1, 2, 0, 1, 0, "aten.mm"),
    ShardRule.MM: _Places(0, 1, 2, 1, 0),
    ShardRule.MATMUL: _Places(0, 1, 2, 1, 0),
}


def _linear(seen: Seen, cut: Cut) -> Plan:
    shard = shard_rule(seen.op)
    assert shard is not None
    at = _LINEAR[shard]
    x, weight = seen.inputs[at.x], seen.inputs[at.weight]
    biased = len(seen.inputs) == 3
    if not seen.states[at.weight] or len(weight) != 2:
        raise Cannot("its weight is not a parameter of two dimensions")
    if at.bare is not None and seen.op.attributes:
        raise Cannot("it scales its inputs")
    if biased and len(seen.inputs[at.bias]) != 1:
        raise Cannot("its bias is not a row")
    first = seen.axis("axis", len(x)) if seen.op.kind == "InnerProduct" else len(x) - 1
    wanted: list[Layout | None] = [None] * len(seen.inputs)
    given = seen.layouts[at.x]
    fits = given is not None and given.axis == first
    if (cut.by or ("rows" if fits else "columns")) == "columns":
        spans = evenly(weight[at.out], cut.count, blocks=cut.blocks, unit=cut.unit)
        wanted[at.weight] = Layout(at.out, spans)
        if biased:
            wanted[at.bias] = Layout(0, spans)
        found = Layout(len(seen.outputs[0]) - 1, spans)
        return Plan(tuple(wanted), (found,), _same(seen, cut.count))
    rows = given if fits else Layout(first, evenly(x[first], cut.count))
    assert rows is not None
    wanted[at.x] = rows
    wanted[at.weight] = rows.scaled(at.into, math.prod(x[first + 1 :]))
    return Plan(tuple(wanted), (None,), _summands(seen, cut.count, at), summed=True)


def _summands(
    seen: Seen,
    count: int,
    at: _Places,
    changed: Mapping[str, Attribute] | None = None,
) -> tuple[Piece, ...]:
    """Pieces of which the first adds the bias."""
    whole = _same(seen, count)
    if len(seen.inputs) < 3:
        return whole
    others = tuple(place for place in range(3) if place != at.bias)
    attributes = {**seen.op.attributes, **(changed or {})}
    bare = Piece(at.bare or seen.op.kind, attributes, others)
    return (whole[0], *[bare] * (count - 1))


_CONV = _Places(0, 1, 2, 0, 1)


def _conv(seen: Seen, cut: Cut) -> Plan:
    x, weight = seen.inputs[:2]
    if not seen.states[1] or len(x) != len(weight):
        raise Cannot("its weight is not a parameter, or its input is not a batch")
    if seen.op.attributes.get("transposed"):
        raise Cannot("it is a transposed convolution")
    groups = seen.setting("groups")
    assert isinstance(groups, int)
    if groups > 1:
        return _grouped_conv(seen, cut, groups)
    given = seen.layouts[0]
    fits = given is not None and given.axis == 1
    if (cut.by or ("rows" if fits else "columns")) == "columns":
        spans = evenly(weight[0], cut.count)
        return _conv_columns(seen, cut, Layout(1, spans), None, [{}] * cut.count)
    rows = given if fits else Layout(1, evenly(x[1], cut.count))
    assert rows is not None
    wanted = (rows, rows, *[None] * (len(seen.inputs) - 2))
    absent: dict[str, Attribute] = {"bias": None} if seen.op.kind == "aten.convolution" else {}
    pieces = _summands(seen, cut.count, _CONV, absent)
    return Plan(wanted, (None,), pieces, summed=True)


def _grouped_conv(seen: Seen, cut: Cut, groups: int) -> Plan:
    """Every device makes whole groups, or a part of one group, from the channels of these."""
    x, weight = seen.inputs[:2]
    if cut.by == "rows":
        raise Cannot(f"it has {groups} groups, which are cut by columns alone")
    into, out = x[1] // groups, weight[0] // groups
    spans, reads, owned = [], [], []
    if groups >= cut.count:
        for ((first, last),) in evenly(groups, cut.count):
            spans.append(((first * out, last * out),))
            reads.append(((first * into, last * into),))
            owned.append(last - first)
    elif cut.count % groups == 0:
        for group in range(groups):
            for ((start, end),) in evenly(out, cut.count // groups):
                spans.append(((group * out + start, group * out + end),))
                reads.append(((group * into, (group + 1) * into),))
                owned.append(1)
    else:
        raise Cannot(f"{groups} groups cannot be laid over {cut.count} devices")
    changed: list[dict[str, Attribute]] = [{"groups": count} for count in owned]
    return _conv_columns(seen, cut, Layout(1, tuple(spans)), Layout(1, tuple(reads)), changed)


def _conv_columns(
    seen: Seen,
    cut: Cut,
    found: Layout,
    reads: Layout | None,
    changed: Sequence[Mapping[str, Attribute]],
) -> Plan:
    wanted = (reads, *[found.along(0)] * (len(seen.inputs) - 1))
    return Plan(wanted, (found,), _same(seen, cut.count, changed))


def _embedding(seen: Seen, cut: Cut) -> Plan:
    """By rows, of the vocabulary, or by columns, of the width."""
    table = lookup(seen.op).inputs.index("weight")
    index = 1 - table
    shape = seen.inputs[table]
    if not seen.states[table]:
        raise Cannot("its table is not a parameter")
    settings = seen.op.attributes
    plain = settings.get("padding_idx", -1) == -1 and not (
        settings.get("scale_grad_by_freq", False) or settings.get("sparse", False)
    )
    wanted: list[Layout | None] = [None, None]
    if cut.by == "columns" or (cut.by is None and not plain):
        spans = evenly(shape[1], cut.count)
        wanted[table] = Layout(1, spans)
        last = Layout(len(seen.outputs[0]) - 1, spans)
        return Plan(tuple(wanted), (last,), _same(seen, cut.count))
    if not plain:
        raise Cannot("its padding and scaling need the whole table")
    spans = evenly(shape[0], cut.count)
    wanted[table] = Layout(0, spans)
    pieces = tuple(Piece("EmbeddingPart", {"start": part[0][0]}, (index, table)) for part in spans)
    return Plan(tuple(wanted), (None,), pieces, summed=True)


_WEIGHTED: Mapping[ShardRule, Callable[[Seen, Cut], Plan]] = {
    **dict.fromkeys(_LINEAR, _linear),
    ShardRule.CONVOLUTION: _conv,
    ShardRule.EMBEDDING: _embedding,
}


def shard_rule(op: Op) -> ShardRule | None:
    """The sharding class that the kind of an op declares."""
    return lookup(op).facts.shard


def has_parameters(op: Op) -> bool:
    """Whether an op can be cut by its parameters."""
    return shard_rule(op) in _WEIGHTED


def cut_by_parameters(seen: Seen, cut: Cut) -> Plan:
    """The plan of an op that has parameters; `Cannot` with the reason where there is none."""
    shard = shard_rule(seen.op)
    assert shard is not None
    return _WEIGHTED[shard](seen, cut)


def follow(seen: Seen) -> Plan | None:
    """The plan of an op that works on its inputs as they are cut, if there is one."""
    shard = shard_rule(seen.op)
    rule = None if shard is None else _FOLLOW.get(shard)
    return None if rule is None else rule(seen)
