"""Random numbers as a pure function of (seed, stream, iteration, index), and dropout.

Every element's number is a hash of its own index under a key, so that the bits depend neither on
the order in which ops run nor on how a batch is cut: a part of a batch that starts at sample
`offset` draws exactly the numbers that the whole batch would have drawn there. Every random kind
has that attribute, with that meaning.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from purine.graph import Op
from purine.ops.aten import dtype_name, dtype_of
from purine.ops.gradient import RULES, Emit, Rule
from purine.ops.net import Var
from purine.ops.registry import kind

__all__ = ["Dropout", "RandomMask", "dropout", "random_bits"]


def random_bits(
    seed: Tensor, iteration: Tensor, count: int, *, stream: str, offset: int = 0
) -> Tensor:
    """`count` int32 values whose bits are random; `stream` names what they are drawn for."""
    key = _mix64(seed * 0x5851F42D4C957F2D + iteration)
    key = _mix64(key ^ zlib.crc32(stream.encode()))
    low, high = key.to(torch.int32), (key >> 32).to(torch.int32)
    bits = torch.arange(offset, offset + count, dtype=torch.int32, device=seed.device)
    # Two rounds of an invertible 32-bit mixer, with half of the key before each.
    for half in (low, high):
        bits.bitwise_xor_(half)
        bits.bitwise_xor_(bits.bitwise_right_shift(16).bitwise_and_(0xFFFF)).mul_(0x7FEB352D)
        bits.bitwise_xor_(bits.bitwise_right_shift(15).bitwise_and_(0x1FFFF)).mul_(-0x7B935975)
        bits.bitwise_xor_(bits.bitwise_right_shift(16).bitwise_and_(0xFFFF))
    return bits


@kind
def RandomMask(
    seed: Tensor,
    iteration: Tensor,
    *,
    shape: tuple[int, ...],
    keep: float,
    stream: str,
    dtype: str = "float32",
    offset: int = 0,
) -> Tensor:
    """1 / keep with probability `keep`, else 0, for every element of `shape`."""
    start = offset * math.prod(shape[1:])
    bits = random_bits(seed, iteration, math.prod(shape), stream=stream, offset=start)
    limit = min(round(keep * 2**32) - 2**31, 2**31 - 1)
    return (bits < limit).to(dtype_of(dtype)).mul_(1.0 / keep).view(shape)


@kind(evaluation="pass")
def Dropout(
    x: Tensor,
    seed: Tensor,
    iteration: Tensor,
    *,
    ratio: float = 0.5,
    stream: str = "",
    offset: int = 0,
) -> Tensor:
    """Zero each element with probability `ratio` and scale the others up; nothing at test time."""
    if not 0 <= ratio < 1:
        raise ValueError(f"ratio is {ratio}: it must be at least 0 and below 1")
    mask = RandomMask(
        seed,
        iteration,
        shape=tuple(x.shape),
        keep=1.0 - ratio,
        stream=stream,
        dtype=dtype_name(x.dtype),
        offset=offset,
    )
    return x * mask


def dropout(x: Var, *, ratio: float = 0.5, name: str | None = None) -> Var:
    """A dropout layer."""
    name = x.net.builder.fresh(name or "dropout")
    return x.net.apply("Dropout", [x], {"ratio": ratio, "stream": name}, name=name)


def _lower_dropout(emit: Emit, op: Op) -> tuple[str, ...]:
    x, seed, iteration = op.inputs
    blob = emit.blob(x)
    ratio = op.attributes.get("ratio", 0.5)
    assert isinstance(ratio, float | int)
    assert blob.shape is not None
    (mask,) = emit(
        "RandomMask",
        [seed, iteration],
        {
            "shape": blob.shape,
            "keep": 1.0 - ratio,
            "stream": op.attributes.get("stream", ""),
            "dtype": blob.dtype,
            "offset": op.attributes.get("offset", 0),
        },
        label="mask",
    )
    emit("aten.mul.Tensor", [x, mask], outputs=op.outputs)
    return (mask,)


def _pull_dropout(
    emit: Emit,
    op: Op,
    saved: Sequence[str],
    cotangents: Sequence[str | None],
    wanted: Sequence[bool],
) -> Sequence[str | None]:
    (cotangent,) = cotangents
    assert cotangent is not None
    return (*emit("aten.mul.Tensor", [cotangent, *saved]), None, None)


RULES["Dropout"] = Rule(_lower_dropout, _pull_dropout)


def _mix64(x: Tensor) -> Tensor:
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        x = (x ^ ((x >> shift) & (2 ** (64 - shift) - 1))) * factor
    return x ^ ((x >> 31) & (2**33 - 1))
