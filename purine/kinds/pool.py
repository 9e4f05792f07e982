"""Pooling over windows and over whole images."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from purine.analysis.shapes import pair, windows
from purine.arguments import checked
from purine.graph import Attribute
from purine.kinds.net import Var
from purine.registry.facts import Facts, Precision, SampleRule, ShardRule
from purine.registry.kind import kind
from purine.registry.spec import Settings, Shape, Shapes

__all__ = ["global_pool", "pool"]

Pair = int | tuple[int, int]
Method = Literal["max", "average"]


def _pool_shape(settings: Settings, shapes: Shapes) -> Shape | None:
    (x,) = shapes
    if len(x) != 4:
        return None
    pairs = [pair(settings[name]) for name in ("kernel", "stride", "pad")]
    sides = [
        windows(extent, kernel, stride, pad, ceil=settings["ceil"]) if 2 * pad <= kernel else 0
        for extent, kernel, stride, pad in zip(x[2:], *pairs, strict=True)
    ]
    return (*x[:2], *sides) if min(sides) > 0 else None


def _global_pool_shape(settings: Settings, shapes: Shapes) -> Shape | None:
    (x,) = shapes
    return (*x[:2], 1, 1) if len(x) == 4 else None


@kind(facts=Facts(Precision.FOLLOW, ShardRule.POOL, SampleRule.ROWS, shape=_pool_shape))
def Pool(
    x: Tensor,
    *,
    method: Method = "max",
    kernel: Pair,
    stride: Pair = 1,
    pad: Pair = 0,
    ceil: bool = False,
    count_pad: bool = True,
) -> Tensor:
    """The maximum or average over windows of [N, C, H, W].

    `ceil` rounds the size of the result up where windows do not fit evenly, as Caffe does;
    `count_pad` lets padding count in averages.
    """
    if method == "max":
        return F.max_pool2d(x, kernel, stride, pad, ceil_mode=ceil)
    return F.avg_pool2d(x, kernel, stride, pad, ceil_mode=ceil, count_include_pad=count_pad)


@kind(facts=Facts(Precision.FOLLOW, ShardRule.POOL, SampleRule.ROWS, shape=_global_pool_shape))
def GlobalPool(x: Tensor, *, method: Method = "average") -> Tensor:
    """The maximum or average over all of each image: [N, C, H, W] to [N, C, 1, 1]."""
    if x.ndim != 4:
        raise ValueError(f"x has {x.ndim} dimensions: [N, C, H, W] has 4")
    if method == "max":
        return F.max_pool2d(x, tuple(x.shape[2:]))
    return x.mean((2, 3), keepdim=True)


@checked
def pool(
    x: Var,
    *,
    kernel: Pair,
    method: Method = "max",
    stride: Pair = 1,
    pad: Pair = 0,
    ceil: bool = False,
    count_pad: bool = True,
    name: str | None = None,
) -> Var:
    """A pooling layer; the stride is 1 unless given, as in `conv`.

    >>> from purine.kinds import Net
    >>> pool(Net().input("x", (8, 3, 7, 7)), kernel=2, stride=2, ceil=True).shape
    (8, 3, 4, 4)
    """
    window: dict[str, Attribute] = {"kernel": kernel, "stride": stride, "pad": pad, "ceil": ceil}
    return x.net.apply("Pool", [x], {"method": method, **window, "count_pad": count_pad}, name=name)


@checked
def global_pool(x: Var, *, method: Method = "average", name: str | None = None) -> Var:
    """A layer that pools each image to one value per channel."""
    return x.net.apply("GlobalPool", [x], {"method": method}, name=name or "global_pool")
