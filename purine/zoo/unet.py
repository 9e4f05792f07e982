"""U-Net: a class for every pixel, from what is seen coarsely and finely."""

from __future__ import annotations

from purine.arguments import checked
from purine.graph import Graph
from purine.kinds import Net, Var, concat, conv, deconv, pool
from purine.zoo._layers import classifier, conv_norm_relu

__all__ = ["unet"]


@checked
def unet(
    batch: int = 8,
    *,
    image: tuple[int, int, int] = (3, 256, 256),
    classes: int = 2,
    width: int = 64,
    layers: int = 4,
) -> Graph:
    """A path down to images `2**layers` times smaller, and one up that reads it on each level.

    Convolutions are padded, so the labels [N, H, W] are as large as the images, whose sides are
    multiples of `2**layers`. The loss is the mean over all pixels.
    """
    net = Net()
    sample = (batch, *image)
    data, label = net.source([("data", sample, net.dtype), ("label", (batch, *image[1:]), "int64")])
    x = data
    passed = []
    for level in range(layers):
        x = _double(x, width * 2**level, name=f"down{level + 1}")
        passed.append(x)
        x = pool(x, kernel=2, stride=2, name=f"down{level + 1}/pool")
    x = _double(x, width * 2**layers, name="bottom")
    for level in reversed(range(layers)):
        name = f"up{level + 1}"
        x = deconv(x, width * 2**level, kernel=2, stride=2, name=f"{name}/deconv")
        x = concat([passed[level], x], name=f"{name}/concat")
        x = _double(x, width * 2**level, name=name)
    x = conv(x, classes, kernel=1, name="scores")
    return classifier(net, x, label)


def _double(x: Var, outputs: int, *, name: str) -> Var:
    x = conv_norm_relu(x, outputs, kernel=3, pad=1, name=f"{name}/conv1")
    return conv_norm_relu(x, outputs, kernel=3, pad=1, name=f"{name}/conv2")
