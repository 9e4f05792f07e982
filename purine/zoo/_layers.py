"""Groups of layers that several nets of the zoo are made of."""

from __future__ import annotations

from typing import Literal

from purine.graph import Filler
from purine.kinds import (
    Var,
    attention,
    batch_norm,
    conv,
    dropout,
    eltwise,
    gelu,
    inner_product,
    layer_norm,
    relu,
)

__all__ = ["conv_norm", "conv_norm_relu", "drop", "transformer_block"]


def conv_norm(
    x: Var,
    outputs: int,
    *,
    kernel: int,
    stride: int = 1,
    pad: int = 0,
    groups: int = 1,
    name: str,
) -> Var:
    """A convolution without bias, then batch norm, whose shift stands for the bias."""
    x = conv(
        x, outputs, kernel=kernel, stride=stride, pad=pad, groups=groups, bias=False, name=name
    )
    return batch_norm(x, name=f"{name}/bn")


def conv_norm_relu(
    x: Var, outputs: int, *, kernel: int, stride: int = 1, pad: int = 0, name: str
) -> Var:
    """A convolution without bias, batch norm and a rectifier."""
    x = conv_norm(x, outputs, kernel=kernel, stride=stride, pad=pad, name=name)
    return relu(x, name=f"{name}/relu")


def drop(x: Var, ratio: float, *, name: str) -> Var:
    """Dropout, or x itself where the ratio is 0."""
    return dropout(x, ratio=ratio, name=name) if ratio else x


def transformer_block(
    x: Var,
    *,
    heads: int,
    hidden: int,
    causal: bool,
    eps: float,
    approximate: Literal["none", "tanh"],
    weight_filler: Filler,
    out_filler: Filler,
    dropout: float,
    name: str,
) -> Var:
    """Attention and a perceptron for [N, T, C], each behind a layer norm and added to its input.

    `out_filler` is for the weights whose results are added to the input.
    """
    y = layer_norm(x, eps=eps, name=f"{name}/ln1")
    y = attention(
        y,
        heads=heads,
        causal=causal,
        name=f"{name}/attention",
        weight_filler=weight_filler,
        out_filler=out_filler,
    )
    y = drop(y, dropout, name=f"{name}/attention/drop")
    x = eltwise([x, y], name=f"{name}/add1")
    width = x.shape[2]
    y = layer_norm(x, eps=eps, name=f"{name}/ln2")
    y = inner_product(y, hidden, axis=2, name=f"{name}/mlp/fc", weight_filler=weight_filler)
    y = gelu(y, approximate=approximate, name=f"{name}/mlp/gelu")
    y = inner_product(y, width, axis=2, name=f"{name}/mlp/out", weight_filler=out_filler)
    y = drop(y, dropout, name=f"{name}/mlp/drop")
    return eltwise([x, y], name=f"{name}/add2")
