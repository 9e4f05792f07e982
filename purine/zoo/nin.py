"""Network in Network for CIFAR-10: three mlpconv blocks with dropout between them."""

from __future__ import annotations

from purine.arguments import checked
from purine.graph import Filler, Graph
from purine.kinds import Net, Var, conv, flatten, global_pool, pool, relu
from purine.zoo._layers import classifier, drop

__all__ = ["nin"]


@checked
def nin(
    batch: int = 128,
    *,
    image: tuple[int, int, int] = (3, 32, 32),
    classes: int = 10,
    dropout: float = 0.5,
) -> Graph:
    """Each block is a convolution and two of 1x1; the last one ends in one map per class."""
    net = Net()
    data, label = net.data((batch, *image))
    x = _mlpconv(data, (192, 160, 96), kernel=5, pad=2, block=1)
    x = drop(pool(x, kernel=3, stride=2, ceil=True, name="pool1"), dropout, name="drop1")
    x = _mlpconv(x, (192, 192, 192), kernel=5, pad=2, block=2)
    x = pool(x, kernel=3, stride=2, ceil=True, method="average", name="pool2")
    x = drop(x, dropout, name="drop2")
    x = _mlpconv(x, (192, 192, classes), kernel=3, pad=1, block=3)
    x = flatten(global_pool(x, method="average", name="pool3"), name="scores")
    return classifier(net, x, label)


def _mlpconv(x: Var, widths: tuple[int, int, int], *, kernel: int, pad: int, block: int) -> Var:
    names = (f"conv{block}", f"cccp{block}a", f"cccp{block}b")
    sizes = ((kernel, pad), (1, 0), (1, 0))
    for name, width, (size, border) in zip(names, widths, sizes, strict=True):
        x = conv(x, width, kernel=size, pad=border, name=name, weight_filler=Filler("msra"))
        x = relu(x, name=f"{name}/relu")
    return x
