"""DenseNet with 121 layers of weights: every layer reads what all before it in its block gave."""

from __future__ import annotations

from purine.arguments import checked
from purine.graph import Graph
from purine.kinds import Net, Var, batch_norm, concat, conv, global_pool, inner_product, pool, relu
from purine.zoo._layers import classifier, conv_norm_relu

__all__ = ["densenet121"]


@checked
def densenet121(
    batch: int = 32,
    *,
    image: tuple[int, int, int] = (3, 224, 224),
    classes: int = 1000,
    growth: int = 32,
    layers: tuple[int, ...] = (6, 12, 24, 16),
) -> Graph:
    """Dense blocks of `layers` layers that add `growth` channels each; transitions halve both."""
    net = Net()
    data, label = net.data((batch, *image))
    x = conv_norm_relu(data, 2 * growth, kernel=7, stride=2, pad=3, name="conv1")
    x = pool(x, kernel=3, stride=2, pad=1, name="pool1")
    for block, depth in enumerate(layers, 1):
        for layer in range(1, depth + 1):
            name = f"block{block}/layer{layer}"
            y = _norm_relu_conv(x, 4 * growth, kernel=1, name=f"{name}/bottleneck")
            y = _norm_relu_conv(y, growth, kernel=3, pad=1, name=f"{name}/conv")
            x = concat([x, y], name=f"{name}/concat")
        if block < len(layers):
            x = _norm_relu_conv(x, x.shape[1] // 2, kernel=1, name=f"transition{block}")
            x = pool(x, kernel=2, stride=2, method="average", name=f"transition{block}/pool")
    x = relu(batch_norm(x, name="bn"), name="relu")
    x = inner_product(global_pool(x, name="pool5"), classes, name="fc")
    return classifier(net, x, label)


def _norm_relu_conv(x: Var, outputs: int, *, kernel: int, pad: int = 0, name: str) -> Var:
    x = relu(batch_norm(x, name=f"{name}/bn"), name=f"{name}/relu")
    return conv(x, outputs, kernel=kernel, pad=pad, bias=False, name=name)
