"""Functions of each element: activations, powers, exponentials, logarithms and thresholds."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from purine.arguments import checked
from purine.kinds.net import Var
from purine.registry.facts import Facts, Precision, SampleRule, ShardRule
from purine.registry.kind import kind

__all__ = ["elu", "gelu", "leaky_relu", "relu", "relu6", "sigmoid", "tanh"]


_ACTIVATION = Facts(
    *(Precision.FOLLOW, ShardRule.ELEMENTWISE, SampleRule.ROWS),
    shape=lambda settings, shapes: shapes[0] if len(shapes) == 1 else None,
)
_POWER = Facts(Precision.WIDE, ShardRule.ELEMENTWISE, SampleRule.ROWS)


@kind(facts=_ACTIVATION)
def Relu(x: Tensor) -> Tensor:
    """x where it is positive, else 0."""
    return F.relu(x)


@kind(facts=_ACTIVATION)
def Relu6(x: Tensor) -> Tensor:
    """x between 0 and 6; the nearer of the two elsewhere."""
    return F.relu6(x)


@kind(facts=_ACTIVATION)
def LeakyRelu(x: Tensor, *, slope: float = 0.01) -> Tensor:
    """x where it is positive, else `slope` times x."""
    return F.leaky_relu(x, slope)


@kind(facts=_ACTIVATION)
def Sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return torch.sigmoid(x)


@kind(facts=_ACTIVATION)
def Tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent of x."""
    return torch.tanh(x)


@kind(facts=_ACTIVATION)
def Gelu(x: Tensor, *, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """x times the normal distribution function of x, or its approximation by tanh."""
    return F.gelu(x, approximate=approximate)


@kind(facts=_ACTIVATION)
def Elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """x where it is positive, else `alpha` times (exp(x) - 1)."""
    return F.elu(x, alpha)


@kind(facts=_POWER)
def Power(x: Tensor, *, power: float = 1.0, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """(shift + scale * x) ** power."""
    return (x * scale + shift) ** power


@kind(facts=_POWER)
def Exp(x: Tensor, *, base: float | None = None, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """base ** (shift + scale * x); without a base, that of the natural logarithm."""
    factor = _logarithm(base)
    return torch.exp(x * (scale * factor) + shift * factor)


@kind(facts=_POWER)
def Log(x: Tensor, *, base: float | None = None, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """The logarithm of shift + scale * x to `base`, or the natural one."""
    return torch.log(x * scale + shift) / _logarithm(base)


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


@checked
def relu(x: Var, *, name: str | None = None) -> Var:
    """A rectified linear layer."""
    return x.net.apply("Relu", [x], name=name)


@checked
def relu6(x: Var, *, name: str | None = None) -> Var:
    """A rectified linear layer that lets at most 6 pass."""
    return x.net.apply("Relu6", [x], name=name)


@checked
def leaky_relu(x: Var, *, slope: float = 0.01, name: str | None = None) -> Var:
    """A rectified linear layer that lets `slope` of negative values pass."""
    return x.net.apply("LeakyRelu", [x], {"slope": slope}, name=name or "leaky_relu")


@checked
def sigmoid(x: Var, *, name: str | None = None) -> Var:
    """A sigmoid layer."""
    return x.net.apply("Sigmoid", [x], name=name)


@checked
def tanh(x: Var, *, name: str | None = None) -> Var:
    """A hyperbolic tangent layer."""
    return x.net.apply("Tanh", [x], name=name)


@checked
def gelu(x: Var, *, approximate: Literal["none", "tanh"] = "none", name: str | None = None) -> Var:
    """A Gaussian error linear layer."""
    return x.net.apply("Gelu", [x], {"approximate": approximate}, name=name)


@checked
def elu(x: Var, *, alpha: float = 1.0, name: str | None = None) -> Var:
    """An exponential linear layer."""
    return x.net.apply("Elu", [x], {"alpha": alpha}, name=name)


def _logarithm(base: float | None) -> float:
    if base is None:
        return 1.0
    if base <= 0 or base == 1:
        raise ValueError(f"base is {base}: it must be above 0 and not 1")
    return math.log(base)
