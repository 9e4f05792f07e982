"""Activations: functions of each element alone."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from purine.arguments import checked
from purine.kinds.net import Var
from purine.registry.facts import (
    Facts,
    Precision,
    SampleRule,
    Settings,
    Shape,
    ShapeRule,
    Shapes,
    ShardRule,
)
from purine.registry.kind import kind

__all__ = [
    "Elu",
    "Gelu",
    "LeakyRelu",
    "Relu",
    "Relu6",
    "Sigmoid",
    "Tanh",
    "elu",
    "gelu",
    "leaky_relu",
    "relu",
    "relu6",
    "sigmoid",
    "tanh",
]


def _same_shape(settings: Settings, shapes: Shapes) -> Shape | None:
    del settings
    return shapes[0] if len(shapes) == 1 else None


_ACTIVATION = Facts(
    Precision.FOLLOW, ShardRule.ELEMENTWISE, SampleRule.ROWS, shape=ShapeRule(_same_shape)
)


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
