"""Convolution and its transpose."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from purine.analysis.shapes import pair, windows
from purine.arguments import at_least, checked
from purine.graph import Filler
from purine.kinds.net import Var
from purine.registry.facts import Facts, Precision, Role, SampleRule, ShardRule
from purine.registry.kind import kind
from purine.registry.spec import Settings, Shape, Shapes

__all__ = ["conv", "deconv"]

Pair = int | tuple[int, int]


def _conv_shape(settings: Settings, shapes: Shapes) -> Shape | None:
    x, weight, *biases = shapes
    groups = settings["groups"]
    if len(x) != 4 or len(weight) != 4 or groups < 1:
        return None
    outputs = weight[0]
    if x[1] != weight[1] * groups or outputs % groups or biases not in ([], [(outputs,)]):
        return None
    pairs = [pair(settings[name]) for name in ("stride", "pad", "dilation")]
    sides = [
        windows(extent, dilation * (kernel - 1) + 1, stride, pad) if dilation > 0 else 0
        for extent, kernel, stride, pad, dilation in zip(x[2:], weight[2:], *pairs, strict=True)
    ]
    return (x[0], outputs, *sides) if min(sides) > 0 else None


@kind(
    facts=Facts(
        Precision.LOW, ShardRule.CONVOLUTION, SampleRule.ROWS, Role.CONVOLUTION, shape=_conv_shape
    )
)
def Conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Pair = 1,
    pad: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of [N, C, H, W] with [M, C / groups, h, w]."""
    return F.conv2d(x, weight, bias, stride, pad, dilation, groups)


@kind(facts=Facts(Precision.LOW, samples=SampleRule.ROWS, role=Role.TRANSPOSED_CONVOLUTION))
def Deconv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Pair = 1,
    pad: Pair = 0,
    output_pad: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Tensor:
    """Transposed convolution of [N, C, H, W] with [C, M / groups, h, w]."""
    return F.conv_transpose2d(x, weight, bias, stride, pad, output_pad, groups, dilation)


@checked
def conv(
    x: Var,
    outputs: int,
    *,
    kernel: Pair,
    stride: Pair = 1,
    pad: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
    bias: bool = True,
    name: str | None = None,
    weight_filler: Filler | None = None,
    bias_filler: Filler | None = None,
) -> Var:
    """A convolution layer with its own weight and bias."""
    at_least("groups", groups, 1)
    name = x.net.builder.fresh(name or "conv")
    shape = (outputs, x.extent(1) // groups, *pair(kernel))
    weight_filler = weight_filler or Filler("msra")
    inputs = x.with_weights(name, shape, outputs if bias else 0, weight_filler, bias_filler)
    settings = {"stride": stride, "pad": pad, "dilation": dilation, "groups": groups}
    return x.net.apply("Conv", inputs, settings, name=name)


@checked
def deconv(
    x: Var,
    outputs: int,
    *,
    kernel: Pair,
    stride: Pair = 1,
    pad: Pair = 0,
    output_pad: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
    bias: bool = True,
    name: str | None = None,
    weight_filler: Filler | None = None,
    bias_filler: Filler | None = None,
) -> Var:
    """A transposed convolution layer with its own weight and bias."""
    at_least("groups", groups, 1)
    name = x.net.builder.fresh(name or "deconv")
    shape = (x.extent(1), outputs // groups, *pair(kernel))
    weight_filler = weight_filler or Filler("msra")
    inputs = x.with_weights(name, shape, outputs if bias else 0, weight_filler, bias_filler)
    settings = {"stride": stride, "pad": pad, "dilation": dilation, "groups": groups}
    return x.net.apply("Deconv", inputs, {**settings, "output_pad": output_pad}, name=name)
