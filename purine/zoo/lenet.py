"""LeNet as Caffe's MNIST example has it."""

from __future__ import annotations

from purine.arguments import checked
from purine.graph import Filler, Graph
from purine.kinds import Net, conv, inner_product, pool, relu
from purine.zoo._layers import classifier

__all__ = ["lenet"]


@checked
def lenet(
    batch: int = 64, *, image: tuple[int, int, int] = (1, 28, 28), classes: int = 10
) -> Graph:
    """Two convolutions with pooling, then two fully connected layers."""
    net = Net()
    xavier = Filler("xavier")
    data, label = net.data((batch, *image))
    x = conv(data, 20, kernel=5, name="conv1", weight_filler=xavier)
    x = pool(x, kernel=2, stride=2, name="pool1")
    x = conv(x, 50, kernel=5, name="conv2", weight_filler=xavier)
    x = pool(x, kernel=2, stride=2, name="pool2")
    x = relu(inner_product(x, 500, name="fc1", weight_filler=xavier), name="relu1")
    x = inner_product(x, classes, name="fc2", weight_filler=xavier)
    return classifier(net, x, label)
