"""ResNet with 50 layers of weights: bottleneck blocks around identities, with batch norm."""

from __future__ import annotations

from purine.arguments import checked
from purine.graph import Graph
from purine.kinds import Net, Var, eltwise, global_pool, inner_product, pool, relu
from purine.zoo._layers import classifier, conv_norm, conv_norm_relu

__all__ = ["resnet50"]


@checked
def resnet50(
    batch: int = 32,
    *,
    image: tuple[int, int, int] = (3, 224, 224),
    classes: int = 1000,
    width: int = 64,
    layers: tuple[int, ...] = (3, 4, 6, 3),
) -> Graph:
    """Four stages of bottleneck blocks; from stage to stage images halve and filters double.

    `layers` is the number of blocks in each stage, `width` the number of filters in the first.
    """
    net = Net()
    data, label = net.data((batch, *image))
    x = conv_norm_relu(data, width, kernel=7, stride=2, pad=3, name="conv1")
    x = pool(x, kernel=3, stride=2, pad=1, name="pool1")
    for stage, blocks in enumerate(layers):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            name = f"stage{stage + 1}/block{block + 1}"
            x = _bottleneck(x, width * 2**stage, stride=stride, name=name)
    x = inner_product(global_pool(x, name="pool5"), classes, name="fc")
    return classifier(net, x, label)


def _bottleneck(x: Var, width: int, *, stride: int, name: str) -> Var:
    """1x1, 3x3 and 1x1, added to x, or to a projection of x where the sizes differ."""
    y = conv_norm_relu(x, width, kernel=1, name=f"{name}/conv1")
    y = conv_norm_relu(y, width, kernel=3, stride=stride, pad=1, name=f"{name}/conv2")
    y = conv_norm(y, 4 * width, kernel=1, name=f"{name}/conv3")
    if y.shape != x.shape:
        x = conv_norm(x, 4 * width, kernel=1, stride=stride, name=f"{name}/project")
    return relu(eltwise([x, y], name=f"{name}/add"), name=f"{name}/relu")
