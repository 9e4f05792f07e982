"""VGG with 16 layers of weights (configuration D)."""

from __future__ import annotations

from purine.arguments import checked
from purine.graph import Filler, Graph
from purine.kinds import Net, conv, inner_product, pool, relu
from purine.zoo._layers import classifier, drop

__all__ = ["vgg16"]


@checked
def vgg16(
    batch: int = 32,
    *,
    image: tuple[int, int, int] = (3, 224, 224),
    classes: int = 1000,
    width: int = 64,
    hidden: int = 4096,
    dropout: float = 0.5,
) -> Graph:
    """Thirteen convolutions of 3x3 in five blocks, then three fully connected layers.

    `width` is the number of filters in the first block; it doubles up to eight times that.
    """
    net = Net()
    data, label = net.data((batch, *image))
    x = data
    for block, (depth, factor) in enumerate(((2, 1), (2, 2), (3, 4), (3, 8), (3, 8)), 1):
        for layer in range(1, depth + 1):
            x = conv(x, factor * width, kernel=3, pad=1, name=f"block{block}/conv{layer}")
            x = relu(x, name=f"block{block}/relu{layer}")
        x = pool(x, kernel=2, stride=2, name=f"block{block}/pool")
    for name in ("fc6", "fc7"):
        x = inner_product(x, hidden, name=name, weight_filler=Filler("msra"))
        x = drop(relu(x, name=f"{name}/relu"), dropout, name=f"{name}/drop")
    x = inner_product(x, classes, name="fc8", weight_filler=Filler("gaussian", {"std": 0.01}))
    return classifier(net, x, label)
