"""MobileNetV2: thin layers joined by identities, with wide depthwise convolutions between them."""

from __future__ import annotations

from typing import Unpack

from purine.arguments import checked
from purine.graph import Filler, Graph
from purine.kinds import Net, Var, eltwise, global_pool, inner_product, relu6
from purine.zoo._layers import Window, classifier, conv_norm, drop

__all__ = ["mobilenet_v2"]

_STAGES = (
    # expansion, channels, blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


@checked
def mobilenet_v2(
    batch: int = 32,
    *,
    image: tuple[int, int, int] = (3, 224, 224),
    classes: int = 1000,
    multiplier: float = 1.0,
    dropout: float = 0.2,
) -> Graph:
    """Seventeen inverted residual blocks; `multiplier` scales the channels of all layers."""
    net = Net()
    data, label = net.data((batch, *image))
    x = _layer(data, _channels(32 * multiplier), kernel=3, stride=2, name="conv1")
    for stage, (expansion, channels, blocks, first) in enumerate(_STAGES, 1):
        for block in range(1, blocks + 1):
            x = _inverted(
                x,
                _channels(channels * multiplier),
                expansion=expansion,
                stride=first if block == 1 else 1,
                name=f"stage{stage}/block{block}",
            )
    x = _layer(x, _channels(1280 * max(1.0, multiplier)), kernel=1, name="conv2")
    x = drop(global_pool(x, name="pool"), dropout, name="drop")
    x = inner_product(x, classes, name="fc", weight_filler=Filler("gaussian", {"std": 0.01}))
    return classifier(net, x, label)


def _inverted(x: Var, outputs: int, *, expansion: int, stride: int, name: str) -> Var:
    """Widen, filter each channel by itself, and narrow again without a rectifier."""
    y, wide = x, expansion * x.shape[1]
    if expansion != 1:
        y = _layer(y, wide, kernel=1, name=f"{name}/expand")
    y = _layer(y, wide, kernel=3, stride=stride, groups=wide, name=f"{name}/depthwise")
    y = conv_norm(y, outputs, kernel=1, name=f"{name}/project")
    return eltwise([x, y], name=f"{name}/add") if x.shape == y.shape else y


def _layer(x: Var, outputs: int, *, name: str, **window: Unpack[Window]) -> Var:
    window["pad"] = window["kernel"] // 2
    x = conv_norm(x, outputs, name=name, **window)
    return relu6(x, name=f"{name}/relu6")


def _channels(count: float) -> int:
    """The nearest multiple of 8, but never less than nine tenths of `count`."""
    nearest = max(8, int(count + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * count else nearest + 8
