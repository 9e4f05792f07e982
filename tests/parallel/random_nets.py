"""Random small nets in float64: branches, skip connections, tied weights, several losses.

A net is made from a recipe, which hypothesis can draw, print and make smaller. Widths are odd and
even, and at times less than the number of devices, so shards are uneven and layers stay whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd
from typing import TypeAlias

from hypothesis import strategies as st

from purine.graph import Filler, Graph
from purine.kinds import (
    Net,
    Var,
    attention,
    batch_norm,
    concat,
    conv,
    dropout,
    eltwise,
    flatten,
    global_pool,
    inner_product,
    layer_norm,
    lrn,
    pool,
    relu,
    scale,
    sigmoid,
    softmax_loss,
    tanh,
    transpose,
)

__all__ = ["SHAPE", "Recipe", "recipes"]

SHAPE = (2, 6, 6)
"""The shape of an image."""

_Layer: TypeAlias = Callable[[Var, int, str], Var]


def _conv(x: Var, width: int, name: str) -> Var:
    return conv(x, width, kernel=3, pad=1, name=name)


def _grouped(x: Var, width: int, name: str) -> Var:
    return conv(x, width, kernel=1, groups=gcd(x.shape[1], width), bias=False, name=name)


def _strided(x: Var, width: int, name: str) -> Var:
    return conv(x, width, kernel=3, pad=1, stride=2, name=name)


def _max(x: Var, width: int, name: str) -> Var:
    return pool(x, kernel=2, stride=2, name=name) if x.shape[2] > 3 else x


def _average(x: Var, width: int, name: str) -> Var:
    return pool(x, kernel=3, pad=1, stride=1 + width % 2, method="average", name=name)


def _skip(x: Var, width: int, name: str) -> Var:
    behind = _conv(relu(_conv(x, width, f"{name}/in"), name=f"{name}/relu"), x.shape[1], name)
    return eltwise([x, behind], name=f"{name}/sum")


def _inception(x: Var, width: int, name: str) -> Var:
    around = pool(x, kernel=3, pad=1, method="average", name=f"{name}/pool")
    branches = [
        conv(x, width, kernel=1, name=f"{name}/1x1"),
        _conv(conv(x, 3, kernel=1, name=f"{name}/reduce"), 4, f"{name}/3x3"),
        conv(around, 2, kernel=1, name=f"{name}/around"),
    ]
    return concat([*branches, x], name=f"{name}/join")


def _tied(x: Var, width: int, name: str) -> Var:
    """Two convolutions with the same parameters."""
    shape = (x.shape[1], x.shape[1], 1, 1)
    weight = x.net.parameter(f"{name}/weight", shape, Filler("xavier"))
    for place in ("first", "second"):
        x = tanh(x.net.apply("Conv", [x, weight], name=f"{name}/{place}"), name=f"{name}/{place}t")
    return x


def _gate(x: Var, width: int, name: str) -> Var:
    """A factor for every channel of every image, by two inner products."""
    y = relu(inner_product(global_pool(x, name=f"{name}/pool"), width, name=f"{name}/fc1"))
    y = sigmoid(inner_product(y, x.shape[1], name=f"{name}/fc2"), name=f"{name}/sigmoid")
    return scale(x, y, axis=0, name=name)


def _auxiliary(x: Var, width: int, name: str) -> Var:
    y = inner_product(global_pool(x, name=f"{name}/pool"), 10, name=f"{name}/fc")
    x.net.output(softmax_loss(y, Var(x.net, "label"), loss_weight=0.3, name=f"{name}/loss"))
    return x


_IMAGES: dict[str, _Layer] = {
    "conv": _conv,
    "grouped": _grouped,
    "strided": _strided,
    "max": _max,
    "average": _average,
    "relu": lambda x, width, name: relu(x, name=name),
    "norm": lambda x, width, name: batch_norm(x, eps=1e-2, name=name),
    "lrn": lambda x, width, name: lrn(x, size=3, name=name),
    "scale": lambda x, width, name: scale(x, bias=True, name=name),
    "drop": lambda x, width, name: dropout(x, ratio=0.3, name=name),
    "skip": _skip,
    "inception": _inception,
    "tied": _tied,
    "gate": _gate,
    "auxiliary": _auxiliary,
}


def _flat_skip(x: Var, width: int, name: str) -> Var:
    y = relu(inner_product(x, width, name=f"{name}/in"), name=f"{name}/relu")
    return eltwise([x, inner_product(y, x.shape[1], name=f"{name}/out")], name=f"{name}/sum")


_FLAT: dict[str, _Layer] = {
    "fc": lambda x, width, name: inner_product(x, width, name=name),
    "relu": lambda x, width, name: relu(x, name=name),
    "drop": lambda x, width, name: dropout(x, ratio=0.5, name=name),
    "layer_norm": lambda x, width, name: layer_norm(x, eps=1e-2, name=name),
    "norm": lambda x, width, name: batch_norm(x, eps=1e-2, name=name),
    "skip": _flat_skip,
    "concat": lambda x, width, name: concat(
        [x, inner_product(x, width, name=f"{name}/fc")], name=f"{name}/join"
    ),
}


@dataclass(frozen=True)
class Recipe:
    """Layers by name, each with a width that some of them have: of images, then of vectors."""

    images: tuple[tuple[str, int], ...]
    heads: int
    """Of an attention over the places of the image in between; 0 for none."""
    flat: tuple[tuple[str, int], ...]

    def has(self, layer: str) -> bool:
        return any(name == layer for name, _ in (*self.images, *self.flat))

    def without(self, layer: str) -> Recipe:
        """The recipe with a rectifier in the place of each such layer."""

        def other(layers: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
            return tuple(("relu" if name == layer else name, width) for name, width in layers)

        return replace(self, images=other(self.images), flat=other(self.flat))

    def net(self) -> Graph:
        """The net for a batch of two images."""
        net = Net(dtype="float64")
        x, label = net.data((2, *SHAPE))
        for number, (layer, width) in enumerate(self.images):
            x = _IMAGES[layer](x, width, f"image{number}")
        if self.heads:
            x = conv(x, 2 * self.heads, kernel=1, name="before")
            places = transpose(flatten(x, axis=2, name="places"), (0, 2, 1), name="turned")
            x = attention(places, heads=self.heads, name="attention")
        x = flatten(x, name="flat")
        for number, (layer, width) in enumerate(self.flat):
            x = _FLAT[layer](x, width, f"vector{number}")
        net.output(softmax_loss(inner_product(x, 10, name="scores"), label, name="loss"))
        return net.graph()


def _layers(names: dict[str, _Layer], most: int) -> st.SearchStrategy[tuple[tuple[str, int], ...]]:
    layer = st.tuples(st.sampled_from(sorted(names)), st.integers(1, 7))
    return st.lists(layer, min_size=1, max_size=most).map(tuple)


def recipes() -> st.SearchStrategy[Recipe]:
    """Recipes of up to nine layers."""
    return st.builds(
        Recipe,
        images=_layers(_IMAGES, 5),
        heads=st.sampled_from([0, 0, 0, 1, 2, 4]),
        flat=_layers(_FLAT, 3),
    )
