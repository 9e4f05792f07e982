"""Layers that few nets have, and those that a graph cannot hold."""

from __future__ import annotations

from collections.abc import Mapping

from purine.graph import Attribute, Filler
from purine.importers.caffe.layer import Layer, one_op

__all__ = [
    "REFUSED",
    "batch_reindex",
    "hdf5_output",
    "mvn",
    "parameter",
    "spatial_pyramid",
    "swish",
    "threshold",
]

REFUSED: Mapping[str, str] = {
    "Filter": "the sizes of its tops depend on the data, and those of a graph are known before",
    "Im2col": "convolutions need no such step here",
    "LSTMUnit": "it is a part of an LSTM layer",
    "Python": "it is a program, which a definition does not hold",
    "RNNUnit": "it is a part of an RNN layer",
    "Recurrent": "only LSTM and RNN, which are of its kind, have a definition",
    "WindowData": "windows of images cannot be read from files",
}
"""Types of Caffe's that cannot be imported, and why."""


def mvn(layer: Layer) -> None:
    settings = layer.settings("mvn_param")
    attributes: dict[str, Attribute] = {
        "variance": settings.get("normalize_variance", True),
        "across": settings.get("across_channels", False),
        "eps": settings.get("eps", 1e-9),
    }
    layer.emit("MVN", layer.bottoms, attributes)


def spatial_pyramid(layer: Layer) -> None:
    """Pooling to 1, 4, 16, ... windows whatever the size of the image, side by side."""
    settings, x = layer.settings("spp_param"), layer.bottoms[0]
    height = settings.positive("pyramid_height")
    method = {"MAX": "max", "AVE": "average"}.get(settings.get("pool", "MAX"))
    if method is None:
        raise layer.unsupported("stochastic pooling", settings, "pool")
    if len(x.shape) != 4:
        raise layer.unsupported("a pyramid of other than [N, C, H, W]", settings, "pyramid_height")
    parts = []
    for level in range(min(height, 32)):
        bins = 2**level
        kernel = tuple(-(-extent // bins) for extent in x.shape[2:])
        spare = (k * bins - extent for k, extent in zip(kernel, x.shape[2:], strict=True))
        pad = tuple((rest + 1) // 2 for rest in spare)
        if any(p >= k for p, k in zip(pad, kernel, strict=True)):
            raise settings.error(
                f"an image of {list(x.shape[2:])} has no {bins} x {bins} windows",
                "pyramid_height",
                expected=f"at most {level}",
                found=str(height),
            )
        attributes: dict[str, Attribute] = {
            "method": method,
            "kernel": kernel,
            "stride": kernel,
            "pad": pad,
            "ceil": True,
        }
        pooled = layer.step("Pool", [x], attributes, label=f"pool{level}")
        if height == 1:
            layer.emit("Flatten", [pooled])
            return
        parts.append(layer.step("Flatten", [pooled], label=f"level{level}"))
    layer.emit("Concat", parts, {"axis": 1})


def parameter(layer: Layer) -> None:
    """A parameter as a blob."""
    settings = layer.settings("parameter_param")
    dims = settings.message("shape").all("dim")
    if any(dim < 1 for dim in dims):
        raise settings.wrong("shape", dims, "dimensions of 1 or more")
    layer.put(layer.tops[0], layer.parameter("weight", dims, Filler()), report=False)


def batch_reindex(layer: Layer) -> None:
    """Samples of the first bottom in the order that the second gives, some of them twice."""
    layer.emit("aten.index_select", layer.bottoms, {"dim": 0})


threshold = one_op("Threshold", "threshold_param", threshold=0.0)


def swish(layer: Layer) -> None:
    """x * sigmoid(beta * x)."""
    (x,) = layer.bottoms
    scaled = layer.step(
        "Power", [x], {"scale": layer.settings("swish_param").get("beta", 1.0)}, label="scaled"
    )
    gate = layer.step("Sigmoid", [scaled], label="gate")
    layer.emit("Eltwise", [x, gate], {"operation": "product"})


def hdf5_output(layer: Layer) -> None:
    layer.scope.notes.append(f"{layer.node.where}: layer {layer.name!r} writes no file")
