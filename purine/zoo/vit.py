"""Vision transformer: an image as a sequence of patches, behind a token that gathers its class."""

from __future__ import annotations

from purine.arguments import checked
from purine.graph import Filler, Graph
from purine.kinds import Net, conv, flatten, inner_product, prepend, slice, transpose
from purine.zoo._layers import classifier, drop, transformer

__all__ = ["vit"]


@checked
def vit(
    batch: int = 32,
    *,
    image: tuple[int, int, int] = (3, 224, 224),
    classes: int = 1000,
    patch: int = 16,
    layers: int = 12,
    heads: int = 12,
    width: int = 768,
    hidden: int = 3072,
    dropout: float = 0.0,
) -> Graph:
    """By default ViT-B/16. `patch` is the side of a patch, `hidden` the size of the perceptrons."""
    net = Net()
    xavier, normal = Filler("xavier", {"variance": "average"}), Filler("gaussian", {"std": 0.02})
    data, label = net.data((batch, *image))
    filler = Filler("xavier")
    x = conv(data, width, kernel=patch, stride=patch, name="patches", weight_filler=filler)
    x = transpose(flatten(x, axis=2, name="patches/flatten"), (0, 2, 1), name="patches/sequence")
    x = prepend(x, 1, name="token")
    places = net.parameter("position/weight", x.shape[1:], normal)
    x = net.apply("Bias", [x, places], {"axis": 1}, name="position")
    x = drop(x, dropout, name="drop")
    x = transformer(
        x,
        layers=layers,
        heads=heads,
        hidden=hidden,
        causal=False,
        eps=1e-6,
        approximate="none",
        fillers=(xavier, xavier),
        dropout=dropout,
    )
    x = slice(x, 0, 1, axis=1, name="class")
    x = inner_product(x, classes, name="fc", weight_filler=Filler())
    return classifier(net, x, label)
