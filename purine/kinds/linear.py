"""Inner products, embeddings, and scale and shift with learnt values."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from purine.analysis.shapes import axis_of, checked_axis
from purine.arguments import checked
from purine.graph import Filler
from purine.kinds.net import Var
from purine.registry.facts import Facts, Precision, SampleRule, ShardRule
from purine.registry.kind import kind
from purine.registry.spec import Settings, Shape, Shapes

__all__ = ["bias", "embedding", "inner_product", "scale"]

_ONE = Filler("constant", {"value": 1.0})


def _inner_product_shape(settings: Settings, shapes: Shapes) -> Shape | None:
    x, weight, *biases = shapes
    axis = axis_of(settings["axis"], x)
    if axis is None or len(weight) != 2 or math.prod(x[axis:]) != weight[1]:
        return None
    return (*x[:axis], weight[0]) if biases in ([], [weight[:1]]) else None


@kind(facts=Facts(Precision.LOW, ShardRule.LINEAR, SampleRule.ROWS, shape=_inner_product_shape))
def InnerProduct(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, axis: int = 1) -> Tensor:
    """The product of x, whose dimensions from `axis` on count as one, with weight [M, K].

    The dimensions before `axis` stay: `axis = -1` multiplies along the last dimension alone.
    """
    flat = x.flatten(checked_axis(x, axis))
    if flat.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"weight takes {weight.shape[-1]} values, x has {flat.shape[-1]} from axis {axis} on"
        )
    if flat.dtype != weight.dtype:
        raise ValueError(f"x is {flat.dtype}, weight is {weight.dtype}")
    return F.linear(flat, weight, bias)


@kind(facts=Facts(Precision.WIDE, ShardRule.EMBEDDING, SampleRule.EMBEDDING))
def Embedding(indices: Tensor, weight: Tensor) -> Tensor:
    """The rows of weight [V, D] that int64 indices name."""
    return F.embedding(indices, weight)


@kind(facts=Facts(Precision.WIDE, samples=SampleRule.EMBEDDING))
def EmbeddingPart(indices: Tensor, weight: Tensor, *, start: int) -> Tensor:
    """The rows that indices name of a table of which weight holds those from `start` on.

    Indices of other rows give zeros, so the sum over all parts of a table is the whole table's.
    """
    own = indices - start
    inside = (own >= 0) & (own < weight.shape[0])
    rows = F.embedding(own.clamp(0, weight.shape[0] - 1), weight)
    return rows * inside.unsqueeze(-1).to(rows.dtype)


@kind(facts=Facts(Precision.FOLLOW, ShardRule.CHANNEL_SCALE, SampleRule.ROWS))
def Scale(x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis: int = 1) -> Tensor:
    """x times `scale` (plus `bias`), whose dimensions stand for those of x from `axis` on."""
    y = x * _spread(scale, x, axis)
    return y if bias is None else y + _spread(bias, x, axis)


@kind(facts=Facts(Precision.FOLLOW, ShardRule.CHANNEL_SCALE, SampleRule.ROWS))
def Bias(x: Tensor, bias: Tensor, *, axis: int = 1) -> Tensor:
    """x plus `bias`, whose dimensions stand for those of x from `axis` on."""
    return x + _spread(bias, x, axis)


@checked
def inner_product(
    x: Var,
    outputs: int,
    *,
    axis: int = 1,
    bias: bool = True,
    name: str | None = None,
    weight_filler: Filler | None = None,
    bias_filler: Filler | None = None,
) -> Var:
    """A fully connected layer with its own weight and bias.

    >>> from purine.kinds import Net
    >>> x = Net().input("x", (8, 3, 4, 4))
    >>> inner_product(x, 10, name="fc").shape
    (8, 10)
    """
    name = x.net.builder.fresh(name or "fc")
    shape, filler = (outputs, math.prod(x.shape[axis:])), weight_filler or Filler("xavier")
    inputs = x.with_weights(name, shape, outputs if bias else 0, filler, bias_filler)
    return x.net.apply("InnerProduct", inputs, {"axis": axis}, name=name)


@checked
def embedding(
    indices: Var,
    size: int,
    width: int,
    *,
    name: str | None = None,
    weight_filler: Filler | None = None,
) -> Var:
    """A table of `size` learnt vectors of `width` values, looked up by int64 indices."""
    net, name = indices.net, indices.net.builder.fresh(name or "embedding")
    filler = weight_filler or Filler("gaussian", {"std": 0.02})
    weight = net.parameter(f"{name}/weight", (size, width), filler)
    return net.apply("Embedding", [indices, weight], name=name)


@checked
def scale(
    x: Var,
    factor: Var | None = None,
    *,
    axis: int = 1,
    dims: int = 1,
    bias: bool = False,
    name: str | None = None,
) -> Var:
    """A scale layer: by `factor`, or by learnt values for `dims` dimensions of x from `axis` on."""
    net, name = x.net, x.net.builder.fresh(name or "scale")
    shape = _part(x, axis, dims) if factor is None else factor.shape
    inputs = [x, factor or net.parameter(f"{name}/weight", shape, _ONE)]
    if bias:
        inputs.append(net.parameter(f"{name}/bias", shape, Filler()))
    return net.apply("Scale", inputs, {"axis": axis}, name=name)


@checked
def bias(x: Var, *, axis: int = 1, dims: int = 1, name: str | None = None) -> Var:
    """A layer that adds learnt values for `dims` dimensions of x from `axis` on."""
    net, name = x.net, x.net.builder.fresh(name or "bias")
    value = net.parameter(f"{name}/bias", _part(x, axis, dims), Filler())
    return net.apply("Bias", [x, value], {"axis": axis}, name=name)


def _part(x: Var, axis: int, dims: int) -> tuple[int, ...]:
    first = axis % len(x.shape)
    return x.shape[first : first + dims]


def _spread(value: Tensor, x: Tensor, axis: int) -> Tensor:
    """`value` with dimensions of 1 behind, so that it broadcasts over x from `axis` on."""
    first = checked_axis(x, axis)
    if x.shape[first : first + value.ndim] != value.shape:
        raise ValueError(
            f"{list(value.shape)} does not stand for dimensions of {list(x.shape)} from {axis} on"
        )
    return value.reshape(*value.shape, *[1] * (x.ndim - first - value.ndim))
