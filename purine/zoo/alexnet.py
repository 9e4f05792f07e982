"""AlexNet as Caffe has it: local response normalisation, and convolutions in two groups."""

from __future__ import annotations

from functools import partial

from purine.arguments import checked
from purine.graph import Filler, Graph
from purine.kinds import Net, Var, inner_product, lrn, pool, relu
from purine.zoo._layers import classifier, conv_relu, drop

__all__ = ["alexnet"]

_conv = partial(conv_relu, weight_filler=Filler("gaussian", {"std": 0.01}))


@checked
def alexnet(
    batch: int = 128,
    *,
    image: tuple[int, int, int] = (3, 227, 227),
    classes: int = 1000,
    width: int = 96,
    hidden: int = 4096,
    dropout: float = 0.5,
) -> Graph:
    """Five convolutions and three fully connected layers.

    `width`, a multiple of 3, is the number of filters of the first convolution, to which the others
    keep their proportions; `hidden` is the size of the fully connected layers.
    """
    net = Net()
    data, label = net.data((batch, *image))
    x = _conv(data, width, kernel=11, stride=4, name="conv1")
    x = pool(lrn(x, name="norm1"), kernel=3, stride=2, ceil=True, name="pool1")
    x = _conv(x, width * 8 // 3, kernel=5, pad=2, groups=2, name="conv2", bias=1.0)
    x = pool(lrn(x, name="norm2"), kernel=3, stride=2, ceil=True, name="pool2")
    x = _conv(x, width * 4, kernel=3, pad=1, name="conv3")
    x = _conv(x, width * 4, kernel=3, pad=1, groups=2, name="conv4", bias=1.0)
    x = _conv(x, width * 8 // 3, kernel=3, pad=1, groups=2, name="conv5", bias=1.0)
    x = pool(x, kernel=3, stride=2, ceil=True, name="pool5")
    x = drop(_full(x, hidden, name="fc6"), dropout, name="fc6/drop")
    x = drop(_full(x, hidden, name="fc7"), dropout, name="fc7/drop")
    x = inner_product(x, classes, name="fc8", weight_filler=Filler("gaussian", {"std": 0.01}))
    return classifier(net, x, label)


def _full(x: Var, outputs: int, *, name: str) -> Var:
    weight = Filler("gaussian", {"std": 0.005})
    one = Filler("constant", {"value": 1.0})
    x = inner_product(x, outputs, name=name, weight_filler=weight, bias_filler=one)
    return relu(x, name=f"{name}/relu")
