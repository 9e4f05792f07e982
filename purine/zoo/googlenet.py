"""GoogLeNet: inception modules, and two auxiliary losses on the way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from purine.arguments import checked
from purine.graph import Filler, Graph
from purine.kinds import Net, Var, concat, global_pool, inner_product, lrn, pool, relu, softmax_loss
from purine.zoo._layers import classifier, conv_norm_relu, conv_relu, drop

__all__ = ["googlenet"]

_Conv = Callable[..., Var]
_CONV = partial(conv_relu, weight_filler=Filler("xavier"), bias=0.2)

_MODULES = {
    # 1x1, 3x3 reduced to and 3x3, 5x5 reduced to and 5x5, 1x1 behind the pool
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""The filters of each inception module where the first convolution has 64."""


@checked
def googlenet(
    batch: int = 32,
    *,
    image: tuple[int, int, int] = (3, 224, 224),
    classes: int = 1000,
    width: int = 64,
    hidden: int = 1024,
    auxiliary: bool = True,
    batch_norm: bool = False,
    dropout: float = 0.4,
    auxiliary_dropout: float = 0.7,
) -> Graph:
    """Nine inception modules behind three convolutions.

    `auxiliary` adds two classifiers, with `hidden` values each, behind modules 4a and 4d, whose
    losses count 0.3. `batch_norm` puts batch norm behind every convolution, in the place of its
    bias and of local response normalisation. `width`, a multiple of 4, is the number of filters of
    the first convolution, to which all others keep their proportions.
    """
    net = Net()
    data, label = net.data((batch, *image))
    layer = conv_norm_relu if batch_norm else _CONV
    x = layer(data, width, kernel=7, stride=2, pad=3, name="conv1")
    x = pool(x, kernel=3, stride=2, ceil=True, name="pool1")
    x = x if batch_norm else lrn(x, name="norm1")
    x = layer(x, width, kernel=1, name="conv2/reduce")
    x = layer(x, 3 * width, kernel=3, pad=1, name="conv2")
    x = x if batch_norm else lrn(x, name="norm2")
    x = pool(x, kernel=3, stride=2, ceil=True, name="pool2")
    for module, filters in _MODULES.items():
        sizes = [count * width // 64 for count in filters]
        x = _inception(x, sizes, layer, name=f"inception{module}")
        if module in ("3b", "4e"):
            x = pool(x, kernel=3, stride=2, ceil=True, name=f"pool{module[0]}")
        if auxiliary and module in ("4a", "4d"):
            name = "aux1" if module == "4a" else "aux2"
            kernel = (min(5, x.shape[2]), min(5, x.shape[3]))  # images may be smaller than 5x5
            y = pool(x, kernel=kernel, stride=3, method="average", name=f"{name}/pool")
            y = layer(y, 2 * width, kernel=1, name=f"{name}/conv")
            y = relu(inner_product(y, hidden, name=f"{name}/fc1"), name=f"{name}/relu")
            y = drop(y, auxiliary_dropout, name=f"{name}/drop")
            y = inner_product(y, classes, name=f"{name}/fc2")
            net.output(softmax_loss(y, label, loss_weight=0.3, name=f"{name}/loss"))
    x = drop(global_pool(x, name="pool5"), dropout, name="drop")
    x = inner_product(x, classes, name="fc")
    return classifier(net, x, label)


def _inception(x: Var, sizes: list[int], layer: _Conv, *, name: str) -> Var:
    """Four branches side by side, joined along the channels."""
    one, reduce3, three, reduce5, five, behind = sizes
    a = layer(x, one, kernel=1, name=f"{name}/1x1")
    b = layer(x, reduce3, kernel=1, name=f"{name}/3x3/reduce")
    b = layer(b, three, kernel=3, pad=1, name=f"{name}/3x3")
    c = layer(x, reduce5, kernel=1, name=f"{name}/5x5/reduce")
    c = layer(c, five, kernel=5, pad=2, name=f"{name}/5x5")
    d = pool(x, kernel=3, pad=1, name=f"{name}/pool")
    d = layer(d, behind, kernel=1, name=f"{name}/pool/1x1")
    return concat([a, b, c, d], name=f"{name}/concat")
