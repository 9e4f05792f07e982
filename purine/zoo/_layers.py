"""Groups of layers that several nets of the zoo are made of."""

from __future__ import annotations

from typing import Literal

from purine import kinds
from purine.graph import Filler, Graph
from purine.kinds import Net, Var

__all__ = ["classifier", "conv_norm", "conv_norm_relu", "conv_relu", "drop", "transformer_block"]


def conv_norm(
    x: Var, outputs: int, *, kernel: int, stride: int = 1, pad: int = 0, groups: int = 1, name: str
) -> Var:
    """A convolution without bias, then batch norm, whose shift stands for the bias."""
    x = kinds.conv(
        x, outputs, kernel=kernel, stride=stride, pad=pad, groups=groups, bias=False, name=name
    )
    return kinds.batch_norm(x, name=f"{name}/bn")


def conv_norm_relu(
    x: Var, outputs: int, *, kernel: int, stride: int = 1, pad: int = 0, name: str
) -> Var:
    """A convolution without bias, batch norm and a rectifier."""
    x = conv_norm(x, outputs, kernel=kernel, stride=stride, pad=pad, name=name)
    return kinds.relu(x, name=f"{name}/relu")


def conv_relu(
    x: Var,
    outputs: int,
    *,
    kernel: int,
    stride: int = 1,
    pad: int = 0,
    groups: int = 1,
    weight_filler: Filler,
    bias: float = 0.0,
    name: str,
) -> Var:
    """A convolution whose bias starts with one value, and a rectifier."""
    x = kinds.conv(
        x,
        outputs,
        kernel=kernel,
        stride=stride,
        pad=pad,
        groups=groups,
        name=name,
        weight_filler=weight_filler,
        bias_filler=Filler("constant", {"value": bias}),
    )
    return kinds.relu(x, name=f"{name}/relu")


def classifier(net: Net, scores: Var, label: Var, *, axis: int = 1) -> Graph:
    """The graph of a net with the softmax loss and the accuracy of its scores."""
    loss = kinds.softmax_loss(scores, label, axis=axis, name="loss")
    net.output(loss, kinds.accuracy(scores, label, axis=axis, name="accuracy"))
    return net.graph()


def drop(x: Var, ratio: float, *, name: str) -> Var:
    """Dropout, or x itself where the ratio is 0."""
    return kinds.dropout(x, ratio=ratio, name=name) if ratio else x


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
    y = kinds.layer_norm(x, eps=eps, name=f"{name}/ln1")
    y = kinds.attention(
        y,
        heads=heads,
        causal=causal,
        name=f"{name}/attention",
        weight_filler=weight_filler,
        out_filler=out_filler,
    )
    y = drop(y, dropout, name=f"{name}/attention/drop")
    x = kinds.eltwise([x, y], name=f"{name}/add1")
    width = x.shape[2]
    y = kinds.layer_norm(x, eps=eps, name=f"{name}/ln2")
    y = kinds.inner_product(y, hidden, axis=2, name=f"{name}/mlp/fc", weight_filler=weight_filler)
    y = kinds.gelu(y, approximate=approximate, name=f"{name}/mlp/gelu")
    y = kinds.inner_product(y, width, axis=2, name=f"{name}/mlp/out", weight_filler=out_filler)
    y = drop(y, dropout, name=f"{name}/mlp/drop")
    return kinds.eltwise([x, y], name=f"{name}/add2")
