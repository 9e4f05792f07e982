"""Groups of layers that several nets of the zoo are made of."""

from __future__ import annotations

from functools import partial
from typing import Literal, Required, TypedDict, Unpack

from purine import kinds
from purine.graph import Filler, Graph
from purine.kinds import Net, Var

__all__ = ["classifier", "conv_norm", "conv_norm_relu", "conv_relu", "drop", "transformer"]


class Window(TypedDict, total=False):
    """The sizes of a convolution, as `purine.kinds.conv` takes them."""

    kernel: Required[int]
    stride: int
    pad: int
    groups: int


def conv_norm(x: Var, outputs: int, *, name: str, **window: Unpack[Window]) -> Var:
    """A convolution without bias, then batch norm, whose shift stands for the bias."""
    x = kinds.conv(x, outputs, bias=False, name=name, **window)
    return kinds.batch_norm(x, name=f"{name}/bn")


def conv_norm_relu(x: Var, outputs: int, *, name: str, **window: Unpack[Window]) -> Var:
    """A convolution without bias, batch norm and a rectifier."""
    return kinds.relu(conv_norm(x, outputs, name=name, **window), name=f"{name}/relu")


def conv_relu(
    x: Var,
    outputs: int,
    *,
    weight_filler: Filler,
    bias: float = 0.0,
    name: str,
    **window: Unpack[Window],
) -> Var:
    """A convolution whose bias starts with one value, and a rectifier."""
    constant = Filler("constant", {"value": bias})
    layer = partial(kinds.conv, weight_filler=weight_filler, bias_filler=constant)
    return kinds.relu(layer(x, outputs, name=name, **window), name=f"{name}/relu")


def classifier(net: Net, scores: Var, label: Var, *, axis: int = 1) -> Graph:
    """The graph of a net with the softmax loss and the accuracy of its scores."""
    loss = kinds.softmax_loss(scores, label, axis=axis, name="loss")
    net.output(loss, kinds.accuracy(scores, label, axis=axis, name="accuracy"))
    return net.graph()


def drop(x: Var, ratio: float, *, name: str) -> Var:
    """Dropout, or x itself where the ratio is 0."""
    return kinds.dropout(x, ratio=ratio, name=name) if ratio else x


def transformer(
    x: Var,
    *,
    layers: int,
    heads: int,
    hidden: int,
    causal: bool,
    eps: float,
    approximate: Literal["none", "tanh"],
    fillers: tuple[Filler, Filler],
    dropout: float,
) -> Var:
    """Layers of attention and a perceptron for [N, T, C], and a last layer norm.

    Each of the two is behind a layer norm and added to its input. The second of the `fillers` is
    for the weights whose results are added.
    """
    first, last = fillers
    attention = partial(
        kinds.attention, heads=heads, causal=causal, weight_filler=first, out_filler=last
    )
    for layer in range(1, layers + 1):
        name = f"layer{layer}"
        y = kinds.layer_norm(x, eps=eps, name=f"{name}/ln1")
        y = attention(y, name=f"{name}/attention")
        y = drop(y, dropout, name=f"{name}/attention/drop")
        x = kinds.eltwise([x, y], name=f"{name}/add1")
        y = kinds.layer_norm(x, eps=eps, name=f"{name}/ln2")
        y = kinds.inner_product(y, hidden, axis=2, name=f"{name}/mlp/fc", weight_filler=first)
        y = kinds.gelu(y, approximate=approximate, name=f"{name}/mlp/gelu")
        y = kinds.inner_product(y, x.shape[2], axis=2, name=f"{name}/mlp/out", weight_filler=last)
        y = drop(y, dropout, name=f"{name}/mlp/drop")
        x = kinds.eltwise([x, y], name=f"{name}/add2")
    return kinds.layer_norm(x, eps=eps, name="ln")
