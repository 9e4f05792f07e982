"""Powers, exponentials and logarithms of scaled and shifted values, slopes and thresholds."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from purine.registry.facts import Facts, Precision, SampleRule, ShardRule
from purine.registry.kind import kind

__all__ = ["Exp", "Log", "PRelu", "Power", "Threshold"]


@kind(facts=Facts(Precision.WIDE, ShardRule.ELEMENTWISE, SampleRule.ROWS))
def Power(x: Tensor, *, power: float = 1.0, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """(shift + scale * x) ** power."""
    return _line(x, scale, shift) ** power


@kind(facts=Facts(Precision.WIDE, ShardRule.ELEMENTWISE, SampleRule.ROWS))
def Exp(x: Tensor, *, base: float | None = None, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """base ** (shift + scale * x); without a base, that of the natural logarithm."""
    factor = _logarithm(base)
    return torch.exp(_line(x, scale * factor, shift * factor))


@kind(facts=Facts(Precision.WIDE, ShardRule.ELEMENTWISE, SampleRule.ROWS))
def Log(x: Tensor, *, base: float | None = None, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """The logarithm of shift + scale * x to `base`, or the natural one."""
    return torch.log(_line(x, scale, shift)) / _logarithm(base)


@kind(facts=Facts(Precision.FOLLOW, ShardRule.PRELU, SampleRule.ROWS))
def PRelu(x: Tensor, weight: Tensor) -> Tensor:
    """x where it is positive, else x times the weight: one for all channels or one for each."""
    if weight.ndim != 1 or weight.shape[0] not in (1, x.shape[1]):
        raise ValueError(f"weight has shape {list(weight.shape)}: x has {x.shape[1]} channels")
    return F.prelu(x, weight)


@kind(facts=Facts(Precision.FOLLOW, samples=SampleRule.ROWS))
def Threshold(x: Tensor, *, threshold: float = 0.0) -> Tensor:
    """1 where x is above the threshold, else 0; no gradient passes."""
    return (x.detach() > threshold).to(x.dtype)


def _line(x: Tensor, scale: float, shift: float) -> Tensor:
    return x * scale + shift


def _logarithm(base: float | None) -> float:
    if base is None:
        return 1.0
    if base <= 0 or base == 1:
        raise ValueError(f"base is {base}: it must be above 0 and not 1")
    return math.log(base)
