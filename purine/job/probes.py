"""Small nets whose ops `purine calibrate` times: kinds and sizes over the range that nets use.

None of them is a net of the zoo. A probe is trained for some steps, so every kind is timed as a run
executes it: forward, backward and update, in its place among others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from purine.graph import Filler, Graph
from purine.kinds import (
    Net,
    Var,
    accuracy,
    attention,
    batch_norm,
    concat,
    conv,
    dropout,
    eltwise,
    flatten,
    gelu,
    global_pool,
    inner_product,
    layer_norm,
    lrn,
    pool,
    relu,
    softmax_loss,
)

__all__ = ["Probe", "probes"]


@dataclass(frozen=True)
class Probe:
    """A net, and the data that it reads."""

    name: str
    net: Graph
    data: str


def probes(*, large: bool) -> tuple[Probe, ...]:
    """The probes of a device; `large` ones have the batches that GPUs are given.

    >>> [probe.name for probe in probes(large=False)][:2]
    ['small images, batch 16', 'small images, batch 64']
    """
    nets = [_small_images(batch) for batch in ((64, 512) if large else (16, 64))]
    nets += [_perceptron(batch) for batch in ((64, 512) if large else (16, 128))]
    for batch in (32, 128) if large else (2, 8):
        nets += [_entry(batch), _squeezed(batch), _bottlenecks(batch)]
    nets += [_plain(batch) for batch in ((32, 128) if large else (2,))]
    nets += [_depthwise(batch) for batch in ((64,) if large else (2,))]
    sizes = (
        ((8, 512, 512, 8), (4, 1024, 1024, 16)) if large else ((2, 64, 384, 6), (1, 192, 640, 10))
    )
    nets += [_transformer(*size) for size in sizes]
    return tuple(nets)


def _images(batch: int, channels: int, size: int, classes: int) -> tuple[Net, Var, Var, str]:
    net = Net()
    x, label = net.data((batch, channels, size, size))
    data = f"synthetic:image={channels}x{size}x{size},classes={classes},count={2 * batch}"
    return net, x, label, data


def _probe(name: str, batch: int, net: Net, x: Var, label: Var, classes: int, data: str) -> Probe:
    x = inner_product(flatten(x), classes, name="scores")
    net.output(softmax_loss(x, label, name="loss"), accuracy(x, label, name="accuracy"))
    return Probe(f"{name}, batch {batch}", net.graph(), data)


def _unit(x: Var, width: int, kernel: int, *, stride: int = 1, norm: bool = True) -> Var:
    x = conv(x, width, kernel=kernel, stride=stride, pad=kernel // 2, bias=not norm)
    return relu(batch_norm(x) if norm else x)


def _small_images(batch: int) -> Probe:
    net, x, label, data = _images(batch, 1, 28, 10)
    x = pool(conv(x, 16, kernel=5), kernel=2, stride=2)
    x = pool(relu(conv(x, 64, kernel=5, pad=2)), kernel=3, stride=2, ceil=True, method="average")
    x = relu(conv(x, 128, kernel=1))
    x = dropout(relu(conv(x, 128, kernel=3, pad=1)))
    x = relu(inner_product(flatten(x), 384))
    return _probe("small images", batch, net, x, label, 10, data)


def _perceptron(batch: int) -> Probe:
    net, x, label, data = _images(batch, 1, 28, 10)
    x = flatten(x)
    for width in (256, 1024, 3072, 512, 128):
        x = dropout(relu(inner_product(x, width)))
    return _probe("perceptron", batch, net, x, label, 10, data)


def _entry(batch: int) -> Probe:
    """Large images with few channels."""
    net, x, label, data = _images(batch, 3, 192, 100)
    x = _unit(x, 48, 7, stride=2)
    x = pool(x, kernel=3, stride=2, ceil=True)
    x = _unit(_unit(x, 80, 1), 176, 3, norm=False)
    x = lrn(x)
    x = pool(x, kernel=3, stride=2, pad=1)
    x = global_pool(_unit(x, 224, 3, stride=2))
    return _probe("large images", batch, net, x, label, 100, data)


def _branches(x: Var, widths: Sequence[int], norm: bool) -> Var:
    direct, reduced, wide, thin, far, pooled = widths
    return concat(
        [
            _unit(x, direct, 1, norm=norm),
            _unit(_unit(x, reduced, 1, norm=norm), wide, 3, norm=norm),
            _unit(_unit(x, thin, 1, norm=norm), far, 5, norm=norm),
            _unit(pool(x, kernel=3, stride=1, pad=1), pooled, 1, norm=norm),
        ]
    )


def _squeezed(batch: int) -> Probe:
    """Branches of several kernels, on 24, 12 and 6 rows."""
    net, x, label, data = _images(batch, 3, 96, 100)
    x = _unit(x, 160, 7, stride=4)
    x = _branches(x, (56, 88, 120, 20, 40, 32), True)
    x = _branches(x, (120, 112, 176, 24, 72, 56), False)
    x = pool(x, kernel=3, stride=2, ceil=True)
    x = _branches(x, (144, 120, 240, 24, 56, 64), True)
    x = _branches(x, (208, 144, 288, 32, 112, 112), True)
    x = pool(x, kernel=3, stride=2, ceil=True)
    x = _branches(x, (320, 176, 352, 40, 120, 120), False)
    x = dropout(global_pool(x), ratio=0.4)
    return _probe("branches", batch, net, x, label, 100, data)


def _block(x: Var, width: int, *, stride: int = 1) -> Var:
    y = _unit(_unit(x, width, 1), width, 3, stride=stride)
    y = batch_norm(conv(y, 4 * width, kernel=1, bias=False))
    if stride > 1 or x.extent(1) != 4 * width:
        x = batch_norm(conv(x, 4 * width, kernel=1, stride=stride, bias=False))
    return relu(eltwise([x, y]))


def _bottlenecks(batch: int) -> Probe:
    """Narrow 3x3 convolutions between wide 1x1 ones, added to their input."""
    net, x, label, data = _images(batch, 3, 208, 100)
    x = _unit(x, 64, 5, stride=4)
    for width, stride in ((56, 1), (56, 1), (120, 2), (120, 1), (240, 2), (240, 1), (480, 2)):
        x = _block(x, width, stride=stride)
    return _probe("bottlenecks", batch, net, global_pool(x), label, 100, data)


def _plain(batch: int) -> Probe:
    """Wide 3x3 convolutions without normalisation, and large inner products."""
    net, x, label, data = _images(batch, 3, 176, 100)
    for width in (56, 112, 224, 448):
        x = pool(_unit(_unit(x, width, 3, norm=False), width, 3, norm=False), kernel=2, stride=2)
    x = pool(_unit(x, 256, 3, norm=False), kernel=2, stride=2)
    x = dropout(relu(inner_product(flatten(x), 3072)))
    return _probe("plain", batch, net, x, label, 100, data)


def _depthwise(batch: int) -> Probe:
    net, x, label, data = _images(batch, 3, 160, 100)
    x = _unit(x, 32, 3, stride=2)
    for width, stride in ((96, 1), (144, 2), (240, 2), (480, 2), (960, 1)):
        x = _unit(x, width, 1)
        x = relu(batch_norm(conv(x, width, kernel=3, stride=stride, pad=1, groups=width)))
    return _probe("depthwise", batch, net, global_pool(x), label, 100, data)


def _transformer(batch: int, length: int, width: int, heads: int) -> Probe:
    """Two layers of attention with dropout, a table of tokens, and a loss for each of them."""
    vocabulary = 32 * width
    net, small = Net(), Filler("gaussian", {"std": 0.02})
    tokens, targets = net.source(
        [("tokens", (batch, length), "int64"), ("targets", (batch, length), "int64")]
    )
    table = net.parameter("table", (vocabulary, width), small)
    x = net.apply("Embedding", [tokens, table])
    x = net.apply("Bias", [x, net.parameter("place", (length, width), small)], {"axis": 1})
    for _ in range(2):
        y = attention(layer_norm(x), heads=heads, causal=True)
        x = eltwise([x, dropout(y, ratio=0.1)])
        y = gelu(inner_product(layer_norm(x), 4 * width, axis=2), approximate="tanh")
        x = eltwise([x, dropout(inner_product(y, width, axis=2), ratio=0.1)])
    x = net.apply("InnerProduct", [layer_norm(x), table], {"axis": 2})
    net.output(softmax_loss(x, targets, axis=2, name="loss"))
    data = f"synthetic-tokens:length={length},vocabulary={vocabulary},count={4 * batch}"
    return Probe(f"transformer of {width}, batch {batch}", net.graph(), data)
