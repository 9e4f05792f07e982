"""Encodings of values that go over a network, and their inverses. They have no gradient.

Casts round to 16 bits. `EncodeInt8` and `EncodeTopK` also take the residual, which is what earlier
iterations left unsent. They send an approximation of the value plus the residual, and return the
difference as the next residual, so that nothing is lost over the iterations.

A value that is not finite is not hidden: what is decoded is not finite either. The residual stays
finite, so the iterations after it are not affected.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from purine.registry.aten import dtype_of
from purine.registry.facts import Facts, Role
from purine.registry.kind import kind

__all__ = [
    "DecodeCast",
    "DecodeInt8",
    "DecodeTopK",
    "EncodeCast",
    "EncodeInt8",
    "EncodeTopK",
]

_MOST = 127
"""The largest code of 8 bits; -128 is not used, so that codes are symmetric."""


@kind(facts=Facts(role=Role.COPY))
def EncodeCast(x: Tensor, *, dtype: str = "float16") -> Tensor:
    """The value in `dtype`. In float16, finite values saturate at the largest finite ones.

    >>> EncodeCast(torch.tensor([1e6, 0.1]))
    tensor([6.5504e+04, 9.9976e-02], dtype=torch.float16)
    """
    target = dtype_of(dtype)
    if target == torch.float16:
        most = torch.finfo(target).max
        x = torch.where(x.isinf(), x, x.clamp(-most, most))
    return x.to(target)


@kind(facts=Facts(role=Role.COPY))
def DecodeCast(x: Tensor) -> Tensor:
    """The value in float32."""
    return x.float()


@kind
def EncodeInt8(x: Tensor, residual: Tensor, *, block: int = 256) -> tuple[Tensor, Tensor, Tensor]:
    """Codes of 8 bits, a scale for each `block` of values, and the next residual.

    With `block` 0 there is one scale for all values.

    >>> EncodeInt8(torch.tensor([127.0, 0.75]), torch.zeros(2))
    (tensor([127,   1], dtype=torch.int8), tensor([1.]), tensor([ 0.0000, -0.2500]))
    """
    total = x + residual
    rows = _rows(total, block)
    scales = rows.abs().amax(1) / _MOST
    steps = torch.where(scales > 0, scales, 1.0)
    codes = (rows / steps[:, None]).round_().clamp_(-_MOST, _MOST).to(torch.int8)
    codes = codes.reshape(-1)[: x.numel()].view(x.shape)
    return codes, scales, _finite(total - DecodeInt8(codes, scales, block=block))


@kind
def DecodeInt8(codes: Tensor, scales: Tensor, *, block: int = 256) -> Tensor:
    """The values of codes and scales.

    >>> DecodeInt8(torch.tensor([127, 1], dtype=torch.int8), torch.tensor([0.5]))
    tensor([63.5000,  0.5000])
    """
    values = _rows(codes, block) * scales[:, None]
    return values.reshape(-1)[: codes.numel()].view(codes.shape)


@kind
def EncodeTopK(x: Tensor, residual: Tensor, *, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """The `share` of the values with the largest magnitudes, their places, and the next residual.

    >>> EncodeTopK(torch.tensor([1.0, -3.0, 2.0]), torch.zeros(3), share=0.3)
    (tensor([-3.]), tensor([1], dtype=torch.int32), tensor([1., 0., 2.]))
    """
    count = x.numel()
    if count > torch.iinfo(torch.int32).max:
        raise ValueError(f"{count} values are more than indices of 32 bits can count")
    total = (x + residual).reshape(-1)
    kept = max(1, math.ceil(share * count))
    places = total.abs().topk(kept, sorted=False).indices.sort().values
    rest = _finite(total.index_fill(0, places, 0.0))
    return total[places], places.to(torch.int32), rest.view(x.shape)


@kind
def DecodeTopK(values: Tensor, indices: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    """The values at their places, and zeros elsewhere.

    >>> DecodeTopK(torch.tensor([-3.0]), torch.tensor([1], dtype=torch.int32), shape=(3,))
    tensor([ 0., -3.,  0.])
    """
    zeros = values.new_zeros(math.prod(shape))
    return zeros.index_copy(0, indices.long(), values).view(shape)


def _rows(x: Tensor, block: int) -> Tensor:
    """The values as rows of `block`, the last of which is filled up with zeros."""
    flat = x.reshape(-1)
    if block == 0:
        return flat[None]
    return F.pad(flat, (0, -flat.numel() % block)).view(-1, block)


def _finite(rest: Tensor) -> Tensor:
    return rest.nan_to_num(0.0, 0.0, 0.0)
