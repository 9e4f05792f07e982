"""How ops work on shards of their inputs: a rule for each sharding class that kinds declare.

Rules of `_FOLLOW` and `_FOLLOW_FIRST` are for ops whose inputs are sharded already. They return
None if the shards have to be gathered first. A rule of `_WEIGHTED` shards an op by its parameters:
by `columns`, so that each device computes a part of the result, or by `rows`, so that each computes
a summand of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from purine.graph import Attribute, Op
from purine.parallel._sharding import Cannot, Shape, Sharding, evenly, reshaped
from purine.registry.facts import ShardRule
from purine.registry.lookup import lookup

By: TypeAlias = Literal["columns", "rows"]


@dataclass(frozen=True, slots=True)
class Seen:
    """The input of a rule: the op with shapes, the sharding of its inputs, and which of them are
    states."""

    op: Op
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    shardings: tuple[Sharding | None, ...]
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
class ShardedOp:
    """The sharding of the inputs and outputs of an op, and the op of each device.

    None is an input that is whole, or an output of which each device writes a summand.
    """

    inputs: tuple[Sharding | None, ...]
    outputs: tuple[Sharding | None, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A request to shard an op with parameters: into how many shards, how, and in which units."""

    count: int
    by: By | None
    blocks: int = 1
    unit: int = 1


def _sharded(
    seen: Seen,
    inputs: Sequence[Sharding | None],
    outputs: Sequence[Sharding | None],
    changed: Sequence[Mapping[str, Attribute]] = (),
) -> ShardedOp:
    """Pieces of the op's own kind with all its inputs, and some attributes changed."""
    count = next(len(sharding.parts) for sharding in (*inputs, *outputs) if sharding)
    every = tuple(range(len(seen.inputs)))
    changes = [{**seen.op.attributes, **change} for change in changed or [{}] * count]
    pieces = tuple(Piece(seen.op.kind, attributes, every) for attributes in changes)
    return ShardedOp(tuple(inputs), tuple(outputs), pieces)


def _elementwise(seen: Seen) -> ShardedOp | None:
    """Inputs with the same sharding, or parameters, which are sharded alike; broadcast ones stay
    whole."""
    out = seen.outputs[0]
    index = next(k for k, sharding in enumerate(seen.shardings) if sharding)
    first = seen.shardings[index]
    assert first is not None
    axis = first.axis + len(out) - len(seen.inputs[index])
    if seen.inputs[index][first.axis] != out[axis]:
        return None
    wanted: list[Sharding | None] = []
    for shape, sharding, state in zip(seen.inputs, seen.shardings, seen.states, strict=True):
        own = axis - len(out) + len(shape)
        if own < 0 or shape[own] == 1:
            if sharding is not None:
                return None
            wanted.append(None)
        elif sharding == first.along(own) or (sharding is None and state):
            wanted.append(first.along(own))
        else:
            return None
    return _sharded(seen, wanted, [first.along(axis)] * len(seen.outputs))


def _dropout(seen: Seen, sharding: Sharding) -> ShardedOp | None:
    """Each shard draws the values of the whole mask at its positions."""
    if sharding.axis == 0 or seen.op.attributes.get("part") is not None:
        return None
    extent = seen.inputs[0][sharding.axis]
    changed: list[dict[str, Attribute]] = [
        {"part": (sharding.axis, extent, *(end for span in part for end in span))}
        for part in sharding.parts
    ]
    return _sharded(seen, [sharding, None, None], [sharding], changed)


def _shifted(seen: Seen) -> ShardedOp | None:
    """Scale and Bias: values that belong to the sharded axis are sharded too."""
    sharding = seen.shardings[0]
    if sharding is None:
        return None
    first = seen.axis("axis")
    wanted: list[Sharding | None] = [sharding]
    for shape in seen.inputs[1:]:
        inside = first <= sharding.axis < first + len(shape)
        wanted.append(sharding.along(sharding.axis - first) if inside else None)
    return _sharded(seen, wanted, [sharding])


def _prelu(seen: Seen, sharding: Sharding) -> ShardedOp:
    cut = sharding.axis == 1 and seen.inputs[1] != (1,)
    return _sharded(seen, [sharding, sharding.along(0) if cut else None], [sharding])


def _batch_norm(seen: Seen, sharding: Sharding) -> ShardedOp | None:
    """Each channel is independent, with its own statistics."""
    if sharding.axis != 1:
        return None
    inputs, outputs = (
        [sharding, *[sharding.along(0)] * (len(shapes) - 1)]
        for shapes in (seen.inputs, seen.outputs)
    )
    return _sharded(seen, inputs, outputs)


def _planes(seen: Seen, sharding: Sharding) -> ShardedOp | None:
    """Ops on each channel of each image separately."""
    if sharding.axis > 1 or len(seen.inputs[0]) != 4:
        return None
    # Local response normalisation reads neighbouring channels, unless it is within one.
    if shard_rule(seen.op) is ShardRule.LOCAL_RESPONSE and seen.setting("region") != "within":
        return None
    return _sharded(seen, [sharding], [sharding] * len(seen.outputs))


def _mean(seen: Seen, sharding: Sharding) -> ShardedOp | None:
    dims = seen.setting("dim")
    if not isinstance(dims, tuple):
        return None
    gone = {dim % len(seen.inputs[0]) for dim in dims if isinstance(dim, int)}
    if sharding.axis in gone or not gone:
        return None
    less = 0 if seen.setting("keepdim") else sum(dim < sharding.axis for dim in gone)
    return _sharded(seen, [sharding], [sharding.along(sharding.axis - less)])


def _attention(seen: Seen) -> ShardedOp | None:
    """Heads, and samples, are independent."""
    sharding = seen.shardings[0]
    if sharding is None or any(item != sharding for item in seen.shardings[:3]):
        return None
    if sharding.axis > len(seen.inputs[0]) - 3 or seen.op.attributes.get("enable_gqa"):
        return None
    for shape, mask in zip(seen.inputs[3:], seen.shardings[3:], strict=True):
        own = sharding.axis - len(seen.inputs[0]) + len(shape)
        if mask is not None or (own >= 0 and shape[own] != 1):
            return None
    rest = len(seen.inputs) - 3
    return _sharded(seen, [sharding] * 3 + [None] * rest, [sharding])


def _products(seen: Seen) -> ShardedOp | None:
    """Batched matrix products, sharded along a batch dimension."""
    first, second = seen.shardings
    one, other = seen.inputs
    if first is None or first != second or len(one) != len(other) or first.axis > len(one) - 3:
        return None
    return _sharded(seen, [first, second], [first])


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


def _transposed(seen: Seen, sharding: Sharding) -> ShardedOp:
    axis = order_of(seen).index(sharding.axis)
    return _sharded(seen, [sharding], [sharding.along(axis)])


def _reshaped(seen: Seen, sharding: Sharding) -> ShardedOp | None:
    after = reshaped(seen.inputs[0], sharding, seen.outputs[0])
    if after is None:
        return None
    changed: list[dict[str, Attribute]] = []
    shape = seen.op.attributes.get("shape")
    if isinstance(shape, tuple):
        for number in range(len(sharding.parts)):
            sizes = list(shape)
            if sizes[after.axis] not in (0, -1):
                sizes[after.axis] = after.extent(number)
            changed.append({"shape": tuple(sizes)})
    return _sharded(seen, [sharding], [after], changed)


def blocks_of(seen: Seen) -> tuple[int, int] | None:
    """The axis along which an op cuts its input into equal parts, and their number."""
    axis, count = seen.axis(), len(seen.outputs)
    return None if seen.inputs[0][axis] % count else (axis, count)


def _split(seen: Seen, sharding: Sharding) -> ShardedOp | None:
    cut = blocks_of(seen)
    if cut is None:
        return None
    axis, count = cut
    if sharding.axis != axis:
        return _sharded(seen, [sharding], [sharding] * count)
    size = seen.inputs[0][axis] // count
    blocks = []
    for block in range(count):
        low, high = block * size, (block + 1) * size
        parts = tuple(
            tuple((s - low, e - low) for s, e in part if low <= s and e <= high)
            for part in sharding.parts
        )
        blocks.append(Sharding(axis, parts))
    changed: list[dict[str, Attribute]] = []
    for number in range(len(sharding.parts)):
        local = {item.extent(number) for item in blocks}
        if len(local) != 1 or local == {0} or local.pop() * count != sharding.extent(number):
            return None
        if seen.op.kind == "aten.split.Tensor":
            changed.append({"split_size": sharding.extent(number) // count})
        elif seen.op.kind == "aten.split_with_sizes":
            changed.append({"split_sizes": (sharding.extent(number) // count,) * count})
    return _sharded(seen, [sharding], blocks, changed)


def _concat(seen: Seen) -> ShardedOp | None:
    axis = seen.axis()
    shardings = [sharding for sharding in seen.shardings if sharding is not None]
    if len(shardings) != len(seen.inputs) or len({sharding.axis for sharding in shardings}) != 1:
        return None
    first = shardings[0]
    if first.axis != axis:
        same = all(sharding == first for sharding in shardings)
        return _sharded(seen, shardings, [first]) if same else None
    parts: list[list[tuple[int, int]]] = [[] for _ in first.parts]
    start = 0
    for shape, sharding in zip(seen.inputs, shardings, strict=True):
        for spans, own in zip(parts, sharding.parts, strict=True):
            spans += [(start + s, start + e) for s, e in own]
        start += shape[axis]
    return _sharded(seen, shardings, [Sharding(axis, tuple(map(tuple, parts)))])


def _along(seen: Seen, sharding: Sharding, *, dropped: bool = False) -> ShardedOp | None:
    """Ops that work along one axis, which is not the sharded one."""
    axis = seen.axis()
    if sharding.axis == axis:
        return None
    less = 1 if dropped and axis < sharding.axis else 0
    return _sharded(seen, [sharding], [sharding.along(sharding.axis - less)])


def _layer_norm(seen: Seen, sharding: Sharding) -> ShardedOp | None:
    shape = seen.setting("shape" if seen.op.kind == "LayerNorm" else "normalized_shape")
    assert isinstance(shape, tuple)
    if sharding.axis >= len(seen.inputs[0]) - len(shape):
        return None
    return _sharded(seen, [sharding, *[None] * (len(seen.inputs) - 1)], [sharding])


_FOLLOW: Mapping[ShardRule, Callable[[Seen], ShardedOp | None]] = {
    ShardRule.ELEMENTWISE: _elementwise,
    ShardRule.CHANNEL_SCALE: _shifted,
    ShardRule.ATTENTION: _attention,
    ShardRule.CONCAT: _concat,
    ShardRule.BATCHED_PRODUCT: _products,
    ShardRule.MATMUL: _products,
}
"""Rules for ops of which several inputs may be cut."""

_FOLLOW_FIRST: Mapping[ShardRule, Callable[[Seen, Sharding], ShardedOp | None]] = {
    ShardRule.PRELU: _prelu,
    ShardRule.DROPOUT: _dropout,
    ShardRule.BATCH_NORM: _batch_norm,
    ShardRule.LAYER_NORM: _layer_norm,
    ShardRule.LOCAL_RESPONSE: _planes,
    ShardRule.POOL: _planes,
    ShardRule.MEAN: _mean,
    ShardRule.TRANSPOSE: _transposed,
    ShardRule.RESHAPE: _reshaped,
    ShardRule.SPLIT: _split,
    ShardRule.ALONG_AXIS: _along,
    ShardRule.SELECT: partial(_along, dropped=True),
}
"""Rules for ops whose first input, and no other, is cut in the given way."""


@dataclass(frozen=True, slots=True)
class _Places:
    """The roles of the inputs of a kind, and of the dimensions of the weight."""

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


def _linear(seen: Seen, cut: Cut, at: _Places) -> ShardedOp:
    x, weight = seen.inputs[at.x], seen.inputs[at.weight]
    biased = len(seen.inputs) == 3
    if not seen.states[at.weight] or len(weight) != 2:
        raise Cannot("its weight is not a parameter of two dimensions")
    if at.bare is not None and seen.op.attributes:
        raise Cannot("it scales its inputs")
    if biased and len(seen.inputs[at.bias]) != 1:
        raise Cannot("its bias is not a row")
    first = seen.axis("axis", len(x)) if seen.op.kind == "InnerProduct" else len(x) - 1
    wanted: list[Sharding | None] = [None] * len(seen.inputs)
    rows = _rows(seen, cut, at.x, first)
    if rows is None:
        spans = evenly(weight[at.out], cut.count, blocks=cut.blocks, unit=cut.unit)
        wanted[at.weight] = Sharding(at.out, spans)
        if biased:
            wanted[at.bias] = Sharding(0, spans)
        result = Sharding(len(seen.outputs[0]) - 1, spans)
        return _sharded(seen, wanted, [result])
    wanted[at.x] = rows
    wanted[at.weight] = rows.scaled(at.into, math.prod(x[first + 1 :]))
    return ShardedOp(tuple(wanted), (None,), _summands(seen, cut.count, at))


def _rows(seen: Seen, cut: Cut, index: int, axis: int) -> Sharding | None:
    """The sharding of an input along an axis, if the op is to be sharded by rows."""
    given = seen.shardings[index]
    if given is not None and given.axis != axis:
        given = None
    if (cut.by or ("rows" if given else "columns")) == "columns":
        return None
    return given or Sharding(axis, evenly(seen.inputs[index][axis], cut.count))


def _summands(
    seen: Seen, count: int, at: _Places, changed: Mapping[str, Attribute] | None = None
) -> tuple[Piece, ...]:
    """Shards of which the first adds the bias."""
    whole = Piece(seen.op.kind, seen.op.attributes, tuple(range(len(seen.inputs))))
    if len(seen.inputs) < 3:
        return (whole,) * count
    others = tuple(index for index in range(3) if index != at.bias)
    attributes = {**seen.op.attributes, **(changed or {})}
    bare = Piece(at.bare or seen.op.kind, attributes, others)
    return (whole, *[bare] * (count - 1))


def _conv(seen: Seen, cut: Cut) -> ShardedOp:
    x, weight = seen.inputs[:2]
    if not seen.states[1] or len(x) != len(weight):
        raise Cannot("its weight is not a parameter, or its input is not a batch")
    if seen.op.attributes.get("transposed"):
        raise Cannot("it is a transposed convolution")
    groups = seen.op.whole("groups", 1)
    if groups > 1:
        return _grouped_conv(seen, cut, groups)
    rows = _rows(seen, cut, 0, 1)
    if rows is None:
        return _conv_columns(seen, Sharding(1, evenly(weight[0], cut.count)))
    wanted = (rows, rows, *[None] * (len(seen.inputs) - 2))
    absent: dict[str, Attribute] = {"bias": None} if seen.op.kind == "aten.convolution" else {}
    pieces = _summands(seen, cut.count, _LINEAR[ShardRule.LINEAR], absent)
    return ShardedOp(wanted, (None,), pieces)


def _grouped_conv(seen: Seen, cut: Cut, groups: int) -> ShardedOp:
    """Every device computes whole groups, or a part of one group, from their channels."""
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
    return _conv_columns(seen, Sharding(1, tuple(spans)), Sharding(1, tuple(reads)), owned)


def _conv_columns(
    seen: Seen, result: Sharding, reads: Sharding | None = None, owned: Sequence[int] = ()
) -> ShardedOp:
    wanted = (reads, *[result.along(0)] * (len(seen.inputs) - 1))
    return _sharded(seen, wanted, [result], [{"groups": count} for count in owned])


def _embedding(seen: Seen, cut: Cut) -> ShardedOp:
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
    wanted: list[Sharding | None] = [None, None]
    if cut.by == "columns" or (cut.by is None and not plain):
        spans = evenly(shape[1], cut.count)
        wanted[table] = Sharding(1, spans)
        last = Sharding(len(seen.outputs[0]) - 1, spans)
        return _sharded(seen, wanted, [last])
    if not plain:
        raise Cannot("its padding and scaling need the whole table")
    spans = evenly(shape[0], cut.count)
    wanted[table] = Sharding(0, spans)
    pieces = tuple(Piece("EmbeddingPart", {"start": part[0][0]}, (index, table)) for part in spans)
    return ShardedOp(tuple(wanted), (None,), pieces)


_WEIGHTED: Mapping[ShardRule, Callable[[Seen, Cut], ShardedOp]] = {
    **{rule: partial(_linear, at=places) for rule, places in _LINEAR.items()},
    ShardRule.CONVOLUTION: _conv,
    ShardRule.EMBEDDING: _embedding,
}


def shard_rule(op: Op) -> ShardRule | None:
    """The sharding class that the kind of an op declares."""
    return lookup(op).facts.shard


def has_parameters(op: Op) -> bool:
    """Whether an op can be sharded by its parameters."""
    return shard_rule(op) in _WEIGHTED


def cut_by_parameters(seen: Seen, cut: Cut) -> ShardedOp:
    """The sharded form of an op with parameters; raises `Cannot` with the reason if there is
    none."""
    shard = shard_rule(seen.op)
    assert shard is not None
    return _WEIGHTED[shard](seen, cut)


def follow(seen: Seen) -> ShardedOp | None:
    """The sharded form of an op with sharded inputs, if there is one."""
    shard = shard_rule(seen.op)
    first, *others = seen.shardings
    if shard is not None and shard in _FOLLOW:
        return _FOLLOW[shard](seen)
    if shard is None or shard not in _FOLLOW_FIRST or first is None or any(others):
        return None
    return _FOLLOW_FIRST[shard](seen, first)
