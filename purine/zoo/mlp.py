"""A multilayer perceptron."""

from __future__ import annotations

from purine.arguments import checked
from purine.graph import Graph
from purine.kinds import Net, inner_product, relu
from purine.zoo._layers import classifier

__all__ = ["mlp"]


@checked
def mlp(
    batch: int = 64,
    *,
    image: tuple[int, int, int] = (1, 28, 28),
    classes: int = 10,
    hidden: tuple[int, ...] = (256, 128),
) -> Graph:
    """Fully connected layers with rectifiers between them."""
    net = Net()
    data, label = net.data((batch, *image))
    x = data
    for number, width in enumerate(hidden, 1):
        x = relu(inner_product(x, width, name=f"fc{number}"), name=f"relu{number}")
    x = inner_product(x, classes, name=f"fc{len(hidden) + 1}")
    return classifier(net, x, label)
