"""Random numbers as a pure function of (seed, stream, iteration, index), and dropout.

The number of an element is a hash of its index under a key, so it depends neither on the order of
ops nor on how a batch is cut: a part that starts at sample `offset` draws what the whole batch
draws there. With `shared`, all parts of a batch draw the same.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from purine.arguments import checked
from purine.graph import Attribute, Op
from purine.kinds.net import Var
from purine.registry.aten import dtype_name, dtype_of
from purine.registry.facts import Facts, Precision, SampleRule, ShardRule, with_labels
from purine.registry.gradient import RULES, Emit, Pull, Rule
from purine.registry.kind import kind
from purine.registry.spec import Settings, Shape, Shapes

__all__ = ["dropout", "random_bits"]

# Digits of a uniform number: as many as the dtype has, so that rounding never gives 1.
_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 32}


def random_bits(
    seed: Tensor, iteration: Tensor, count: int, *, stream: str, offset: int = 0
) -> Tensor:
    """`count` int32 values whose bits are random; `stream` names what they are drawn for."""
    places = torch.arange(offset, offset + count, dtype=torch.int32, device=seed.device)
    return _bits_at(places, seed, iteration, stream)


def _bits_at(bits: Tensor, seed: Tensor, iteration: Tensor, stream: str) -> Tensor:
    """The random bits of the given indices, written over them."""
    key = _mix64(seed * 0x5851F42D4C957F2D + iteration)
    key = _mix64(key ^ zlib.crc32(stream.encode()))
    low, high = key.to(torch.int32), (key >> 32).to(torch.int32)
    # Two rounds of an invertible 32-bit mixer, with half of the key before each.
    for half in (low, high):
        bits.bitwise_xor_(half)
        bits.bitwise_xor_(bits.bitwise_right_shift(16).bitwise_and_(0xFFFF)).mul_(0x7FEB352D)
        bits.bitwise_xor_(bits.bitwise_right_shift(15).bitwise_and_(0x1FFFF)).mul_(-0x7B935975)
        bits.bitwise_xor_(bits.bitwise_right_shift(16).bitwise_and_(0xFFFF))
    return bits


@kind(facts=Facts(Precision.WIDE))
def RandomMask(
    seed: Tensor,
    iteration: Tensor,
    *,
    shape: tuple[int, ...],
    keep: float,
    stream: str,
    dtype: str = "float32",
    offset: int = 0,
    part: tuple[int, ...] | None = None,
    shared: bool = False,
) -> Tensor:
    """1 / keep with probability `keep`, else 0, for every element of `shape`.

    A `part` of a larger mask is given by an axis, the extent of the whole along it, and the start
    and end of each span.
    """
    if part is None:
        start = offset * math.prod(shape[1:])
        bits = random_bits(seed, iteration, math.prod(shape), stream=stream, offset=start)
    else:
        bits = _bits_at(_places(shape, part, offset, seed), seed, iteration, stream)
    limit = min(round(keep * 2**32) - 2**31, 2**31 - 1)
    return (bits < limit).to(dtype_of(dtype)).mul_(1.0 / keep).view(shape)


@kind(facts=Facts(Precision.WIDE))
def RandomUniform(
    seed: Tensor,
    iteration: Tensor,
    *,
    shape: tuple[int, ...],
    stream: str,
    low: float = 0.0,
    high: float = 1.0,
    dtype: str = "float32",
    offset: int = 0,
    shared: bool = False,
) -> Tensor:
    """Numbers from `low` on and below `high`, all equally likely."""
    digits = _DIGITS[dtype]
    whole = _unsigned(seed, iteration, shape, stream, offset) >> (32 - digits)
    unit = whole.to(dtype_of(dtype)) * 2.0**-digits
    return unit if (low, high) == (0.0, 1.0) else low + (high - low) * unit


@kind(facts=Facts(Precision.WIDE))
def RandomNormal(
    seed: Tensor,
    iteration: Tensor,
    *,
    shape: tuple[int, ...],
    stream: str,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: str = "float32",
    offset: int = 0,
    shared: bool = False,
) -> Tensor:
    """Numbers of a normal distribution, by the method of Box and Muller."""
    radius = (-2.0 * _open_unit(seed, iteration, shape, f"{stream}/radius", offset).log()).sqrt()
    angle = 2.0 * math.pi * _open_unit(seed, iteration, shape, f"{stream}/angle", offset)
    return (mean + std * radius * angle.cos()).to(dtype_of(dtype))


@kind(facts=Facts(Precision.WIDE))
def RandomExponential(
    seed: Tensor,
    iteration: Tensor,
    *,
    shape: tuple[int, ...],
    stream: str,
    rate: float = 1.0,
    dtype: str = "float32",
    offset: int = 0,
    shared: bool = False,
) -> Tensor:
    """Numbers of an exponential distribution; none is 0."""
    return (-_open_unit(seed, iteration, shape, stream, offset).log() / rate).to(dtype_of(dtype))


@kind(facts=Facts(Precision.WIDE))
def RandomIntegers(
    seed: Tensor,
    iteration: Tensor,
    *,
    shape: tuple[int, ...],
    stream: str,
    high: int,
    low: int = 0,
    dtype: str = "int64",
    offset: int = 0,
    shared: bool = False,
) -> Tensor:
    """Whole numbers from `low` on and below `high`, all equally likely."""
    if not 0 < high - low <= 2**31:
        raise ValueError(f"low is {low} and high is {high}: there must be 1 to 2**31 numbers")
    whole = _unsigned(seed, iteration, shape, stream, offset)
    return (low + (whole * (high - low) >> 32)).to(dtype_of(dtype))


def _unsigned(seed: Tensor, iteration: Tensor, shape: Shape, stream: str, offset: int) -> Tensor:
    """For every element of `shape` a whole number of 32 random bits, as int64."""
    start = offset * math.prod(shape[1:])
    bits = random_bits(seed, iteration, math.prod(shape), stream=stream, offset=start)
    return (bits.to(torch.int64) + 2**31).view(shape)


def _open_unit(seed: Tensor, iteration: Tensor, shape: Shape, stream: str, offset: int) -> Tensor:
    """Uniform float64 numbers strictly between 0 and 1."""
    return (_unsigned(seed, iteration, shape, stream, offset).to(torch.float64) + 0.5) * 2.0**-32


def _dropout_shape(settings: Settings, shapes: Shapes) -> Shape | None:
    x, *clock = shapes
    plain = 0 <= settings["ratio"] < 1 and settings["part"] is None and settings["offset"] == 0
    return x if plain and clock == [(), ()] else None


@kind(
    evaluation="pass",
    facts=Facts(
        *(Precision.FOLLOW, ShardRule.DROPOUT, SampleRule.ROWS),
        shape=_dropout_shape,
        dtypes=with_labels,
    ),
)
def Dropout(
    x: Tensor,
    seed: Tensor,
    iteration: Tensor,
    *,
    ratio: float = 0.5,
    stream: str = "",
    offset: int = 0,
    part: tuple[int, ...] | None = None,
    shared: bool = False,
) -> Tensor:
    """Zero each element with probability `ratio` and scale the others up; nothing at test time."""
    if not 0 <= ratio < 1:
        raise ValueError(f"ratio is {ratio}: it must be at least 0 and below 1")
    draw = partial(RandomMask, seed, iteration, shape=tuple(x.shape), dtype=dtype_name(x.dtype))
    return x * draw(keep=1.0 - ratio, stream=stream, offset=offset, part=part)


def _places(shape: tuple[int, ...], part: tuple[int, ...], offset: int, seed: Tensor) -> Tensor:
    """The index in the whole mask of each element of a part."""
    axis, extent, *ends = part
    spans = list(zip(ends[::2], ends[1::2], strict=True))
    if not 0 < axis < len(shape) or sum(end - start for start, end in spans) != shape[axis]:
        raise ValueError(f"part {list(part)} does not describe a mask of shape {list(shape)}")
    count = partial(torch.arange, dtype=torch.int32, device=seed.device)
    inner = math.prod(shape[axis + 1 :])
    row = torch.cat([count(start, end) for start, end in spans]).mul_(inner).unsqueeze(1)
    row = row + count(inner)
    first = offset * math.prod(shape[1:axis])
    rows = count(first, first + math.prod(shape[:axis]))
    return (rows.mul_(extent * inner).unsqueeze(1) + row.view(1, -1)).view(-1)


@checked
def dropout(x: Var, *, ratio: float = 0.5, name: str | None = None) -> Var:
    """A dropout layer."""
    name = x.net.builder.fresh(name or "dropout")
    return x.net.apply("Dropout", [x], {"ratio": ratio, "stream": name}, name=name)


def _lower_dropout(emit: Emit, op: Op) -> tuple[str, ...]:
    x, seed, iteration = op.inputs
    blob = emit.blob(x)
    keep = 1.0 - op.number("ratio", 0.5)
    settings: dict[str, Attribute] = {"shape": blob.sizes, "keep": keep, "stream": ""}
    settings |= {"dtype": blob.dtype, "offset": 0}
    settings |= {key: value for key, value in op.attributes.items() if key != "ratio"}
    (mask,) = emit("RandomMask", [seed, iteration], settings, label="mask")
    emit("aten.mul.Tensor", [x, mask], outputs=op.outputs)
    return (mask,)


def _pull_dropout(emit: Emit, pull: Pull) -> Sequence[str | None]:
    return (*emit("aten.mul.Tensor", [pull.cotangent, *pull.saved]), None, None)


RULES["Dropout"] = Rule(_lower_dropout, _pull_dropout)


def _mix64(x: Tensor) -> Tensor:
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        x = (x ^ ((x >> shift) & (2 ** (64 - shift) - 1))) * factor
    return x ^ ((x >> 31) & (2**33 - 1))
