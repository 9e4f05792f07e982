"""Layers that compute: each function adds the ops of one type of layer of `net.LAYERS`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from purine.graph import Attribute, Filler
from purine.importers.caffe.layer import Layer, filler_of
from purine.importers.caffe.schema import Node
from purine.kinds.net import Var

_ONE = Filler("constant", {"value": 1.0})
_REDUCTIONS = {"SUM": "sum", "ASUM": "absolute", "SUMSQ": "square", "MEAN": "mean"}


def convolution(layer: Layer) -> None:
    """Convolution and Deconvolution; every bottom has its own top and all share the weights."""
    settings = layer.settings("convolution_param")
    outputs, groups = settings.positive("num_output"), settings.positive("group", 1)
    x = layer.bottoms[0]
    if settings.get("axis", 1) != 1 or len(x.shape) != 4:
        raise layer.unsupported("a convolution of other than [N, C, H, W]", settings, "axis")
    kernel = _pair(settings, "kernel_size", "kernel", None)
    attributes: dict[str, Attribute] = {
        "stride": _short(_pair(settings, "stride", "stride", 1)),
        "pad": _short(_pair(settings, "pad", "pad", 0, least=0)),
        "dilation": _short(_pair(settings, "dilation", None, 1)),
        "groups": groups,
    }
    channels = x.shape[1]
    if channels % groups or outputs % groups:
        expected = f"a divisor of the {channels} channels and of num_output = {outputs}"
        raise settings.wrong("group", groups, expected)
    forward = layer.type == "Convolution"
    shape = (outputs, channels // groups) if forward else (channels, outputs // groups)
    parameters = _weight_and_bias(layer, settings, (*shape, *kernel), outputs)
    if len(layer.tops) != len(layer.bottoms):
        layer.check_counts((len(layer.tops), len(layer.tops)), (1, 999))
    for bottom in layer.bottoms:
        layer.emit("Conv" if forward else "Deconv", [bottom, *parameters], **attributes)


def inner_product(layer: Layer) -> None:
    settings, x = layer.settings("inner_product_param"), layer.bottoms[0]
    outputs, axis = settings.positive("num_output"), layer.axis(settings)
    width = math.prod(x.shape[axis:])
    turned = settings.get("transpose", False)
    shape = (width, outputs) if turned else (outputs, width)
    weight, *bias = _weight_and_bias(layer, settings, shape, outputs)
    if turned:
        weight = layer.step("turned", "Transpose", [weight], axes=(1, 0))
    layer.emit("InnerProduct", [x, weight, *bias], axis=axis)


def embed(layer: Layer) -> None:
    settings, x = layer.settings("embed_param"), layer.bottoms[0]
    outputs = settings.positive("num_output")
    shape = (settings.positive("input_dim"), outputs)
    weight, *bias = _weight_and_bias(layer, settings, shape, outputs)
    if bias:
        rows = layer.step("rows", "Embedding", [x, weight])
        layer.emit("Bias", [rows, *bias], axis=-1)
    else:
        layer.emit("Embedding", [x, weight])


def pooling(layer: Layer) -> None:
    settings, x = layer.settings("pooling_param"), layer.bottoms[0]
    method = _pool_method(layer, settings)
    if settings.get("global_pooling", False):
        layer.emit("GlobalPool", [x], method=method)
        return
    kernel = _pair(settings, "kernel_size", "kernel", None)
    stride = _pair(settings, "stride", "stride", 1)
    pad = _pair(settings, "pad", "pad", 0, least=0)
    ceil = settings.get("round_mode", "CEIL") == "CEIL"
    window = {"kernel": _short(kernel), "stride": _short(stride), "pad": _short(pad)}
    y = layer.emit("Pool", [x], method=method, **window, ceil=ceil)
    extents = zip(x.shape[-2:], kernel, stride, pad, strict=True)
    if y.shape[-2:] != tuple(pooled(*each, ceil=ceil) for each in extents):
        what = f"layer {layer.name!r} has windows that lie outside of the image"
        sizes = f"stride {list(stride)} with kernel {list(kernel)} on {list(x.shape[-2:])}"
        remedy = "take a smaller stride, or a kernel of the size of the stride"
        raise settings.error(what, "stride", "every window to touch the image", sizes, remedy)


def lrn(layer: Layer) -> None:
    settings = layer.settings("lrn_param")
    within = settings.get("norm_region", "ACROSS_CHANNELS") == "WITHIN_CHANNEL"
    size = settings.positive("local_size", 5)
    if size % 2 == 0:
        raise settings.wrong("local_size", size, "an odd number")
    alpha, beta = settings.get("alpha", 1.0), settings.get("beta", 0.75)
    k, region = (1.0, "within") if within else (settings.get("k", 1.0), "across")
    layer.emit("LRN", layer.bottoms, size=size, alpha=alpha, beta=beta, k=k, region=region)


def relu(layer: Layer) -> None:
    slope = layer.settings("relu_param").get("negative_slope", 0.0)
    if slope:
        layer.emit("LeakyRelu", layer.bottoms, slope=slope)
    else:
        layer.emit("Relu", layer.bottoms)


def prelu(layer: Layer) -> None:
    settings, x = layer.settings("prelu_param"), layer.bottoms[0]
    count = 1 if settings.get("channel_shared", False) else x.shape[1]
    filler = filler_of(settings.get("filler"), Filler("constant", {"value": 0.25}))
    layer.emit("PRelu", [x, layer.parameter("weight", (count,), filler)])


def exp_or_log(layer: Layer) -> None:
    """Exp and Log; a base of -1 means e."""
    settings = layer.settings(f"{layer.type.lower()}_param")
    scale, shift = settings.get("scale", 1.0), settings.get("shift", 0.0)
    base = settings.get("base", -1.0)
    based = {} if base == -1 else {"base": base}
    layer.emit(layer.type, layer.bottoms, **based, scale=scale, shift=shift)


def dropout(layer: Layer) -> None:
    settings = layer.settings("dropout_param")
    if not settings.get("scale_train", True):
        raise layer.unsupported("dropout that scales at test time", settings, "scale_train")
    ratio = settings.get("dropout_ratio", 0.5)
    layer.emit("Dropout", layer.bottoms, ratio=ratio, stream=layer.name)


def batch_norm(layer: Layer) -> None:
    settings, x = layer.settings("batch_norm_param"), layer.bottoms[0]
    size = (x.shape[1] if len(x.shape) > 1 else 1,)
    states = [
        layer.parameter(label, shape, Filler(), trainable=False)
        for label, shape in (("mean", size), ("variance", size), ("factor", (1,)))
    ]
    fraction, eps = settings.get("moving_average_fraction", 0.999), settings.get("eps", 1e-5)
    testing = layer.scope.phase == "TEST"
    fixed: bool = settings.get("use_global_stats", testing)
    if testing and not fixed:
        layer.emit("CaffeBatchNormAlways", [x], eps=eps)
    elif fixed and not testing:
        layer.emit("CaffeBatchNormTest", [x, *states], fraction=fraction, eps=eps)
    else:
        labels, inputs = ("mean_next", "variance_next", "factor_next"), [x, *states]
        results = layer.emit_many(labels, "CaffeBatchNorm", inputs, fraction=fraction, eps=eps)
        for state, following in zip(states, results[1:], strict=True):
            layer.scope.net.carry(state, following)


def scale(layer: Layer) -> None:
    settings, x = layer.settings("scale_param"), layer.bottoms[0]
    axis = layer.axis(settings)
    inputs = [x, _operand(layer, settings, "weight", axis, _ONE)]
    if settings.get("bias_term", False):
        inputs.append(layer.parameter("bias", inputs[1].shape, settings.get("bias_filler")))
    layer.emit("Scale", inputs, axis=axis)


def bias(layer: Layer) -> None:
    settings, x = layer.settings("bias_param"), layer.bottoms[0]
    axis = layer.axis(settings)
    layer.emit("Bias", [x, _operand(layer, settings, "bias", axis)], axis=axis)


def concat(layer: Layer) -> None:
    settings = layer.settings("concat_param")
    field = "concat_dim" if "concat_dim" in settings else "axis"
    layer.emit("Concat", layer.bottoms, axis=layer.axis(settings, name=field))


def slice_layer(layer: Layer) -> None:
    settings, x = layer.settings("slice_param"), layer.bottoms[0]
    field = "slice_dim" if "slice_dim" in settings else "axis"
    axis, count = layer.axis(settings, name=field), len(layer.tops)
    extent, points = x.shape[axis], settings.all("slice_point")
    if not points and extent % count == 0:
        points = [extent // count * part for part in range(1, count)]
    edges = [0, *points, extent]
    if len(points) != count - 1 or any(a >= b for a, b in pairwise(edges)):
        what = f"{extent} along axis {axis} cannot be cut into {count} tops"
        expected = f"{count - 1} rising slice points below {extent}, or equal parts"
        raise settings.error(what, "slice_point", expected, f"slice points {points}")
    for start, end in pairwise(edges):
        layer.emit("Slice", [x], axis=axis, start=start, end=end)


def split(layer: Layer) -> None:
    """A blob may have any number of readers: the tops are names for the bottom."""
    for top in layer.tops:
        layer.put(top, layer.bottoms[0])


def silence(layer: Layer) -> None:
    """Nothing to compute: the bottoms are read, so they are not reported."""
    assert not layer.tops


def eltwise(layer: Layer) -> None:
    settings = layer.settings("eltwise_param")
    operation = settings.get("operation", "SUM")
    coefficients = settings.all("coeff")
    if coefficients and (operation != "SUM" or len(coefficients) != len(layer.bottoms)):
        what = f"{len(coefficients)} coefficients for {operation} of {len(layer.bottoms)} bottoms"
        expected = "operation SUM, and one coefficient for each bottom"
        raise settings.error(what, "coeff", expected, str(coefficients))
    name = {"PROD": "product", "SUM": "sum", "MAX": "max"}[operation]
    layer.emit("Eltwise", layer.bottoms, operation=name, coefficients=tuple(coefficients) or None)


def reshape(layer: Layer) -> None:
    settings, x = layer.settings("reshape_param"), layer.bottoms[0]
    dims: list[int] = settings.message("shape").all("dim")
    count = len(x.shape)
    axis: int = settings.get("axis", 0)
    first = axis + count + 1 if axis < 0 else axis
    taken: int = settings.get("num_axes", -1)
    last = count if taken == -1 else first + taken
    if not 0 <= first <= last <= count or dims.count(-1) > 1 or any(dim < -1 for dim in dims):
        what = f"layer {layer.name!r} cannot give {list(x.shape)} this shape"
        expected = "dimensions of the bottom to replace, and at most one -1"
        raise settings.error(what, "shape", expected, f"dim {dims}, axis {axis}, num_axes {taken}")
    layer.emit("Reshape", [x], shape=(*[0] * first, *dims, *x.shape[last:]))


def reduction(layer: Layer) -> None:
    settings = layer.settings("reduction_param")
    operation = _REDUCTIONS[settings.get("operation", "SUM")]
    axis, factor = layer.axis(settings, 0), settings.get("coeff", 1.0)
    layer.emit("Reduction", layer.bottoms, operation=operation, axis=axis, coefficient=factor)


def crop(layer: Layer) -> None:
    """Cut the first bottom to the size of the second, dimension by dimension."""
    settings, (x, like) = layer.settings("crop_param"), layer.bottoms
    axis = layer.axis(settings, 2)
    offsets: list[int] = settings.all("offset") or [0]
    axes = range(axis, len(x.shape))
    if len(like.shape) != len(x.shape) or len(offsets) not in (1, len(axes)):
        what = f"layer {layer.name!r} cannot cut {list(x.shape)} to {list(like.shape)}"
        expected = f"equal dimensions, and one offset or {len(axes)}"
        raise settings.error(what, "offset", expected, f"offsets {offsets}")
    starts = offsets if len(offsets) > 1 else offsets * len(axes)
    whole = zip(axes, starts, like.shape[axis:], strict=True)
    cuts = [cut for cut in whole if cut[2] != x.shape[cut[0]] or cut[1]]
    for number, (dim, start, size) in enumerate(cuts):
        if number == len(cuts) - 1:
            layer.emit("Slice", [x], axis=dim, start=start, end=start + size)
        else:
            x = layer.step(f"axis{dim}", "Slice", [x], axis=dim, start=start, end=start + size)
    if not cuts:
        layer.put(layer.tops[0], x)


def tile(layer: Layer) -> None:
    settings, x = layer.settings("tile_param"), layer.bottoms[0]
    axis, tiles = layer.axis(settings), settings.positive("tiles")
    repeats = tuple(tiles if dim == axis else 1 for dim in range(len(x.shape)))
    layer.emit("aten.repeat", [x], repeats=repeats)


def arg_max(layer: Layer) -> None:
    settings = layer.settings("argmax_param")
    top_k, values = settings.positive("top_k", 1), settings.get("out_max_val", False)
    axis = layer.axis(settings) if "axis" in settings else None
    layer.emit("ArgMax", layer.bottoms, top_k=top_k, axis=axis, values=values)


def spatial_pyramid(layer: Layer) -> None:
    """Pooling to 1, 4, 16, ... windows whatever the size of the image, side by side."""
    settings, x = layer.settings("spp_param"), layer.bottoms[0]
    height = settings.positive("pyramid_height")
    method = _pool_method(layer, settings)
    if len(x.shape) != 4:
        raise layer.unsupported("a pyramid of other than [N, C, H, W]", settings, "pyramid_height")
    parts = []
    for level in range(min(height, 32)):
        bins = 2**level
        kernel = tuple(-(-extent // bins) for extent in x.shape[2:])
        spare = (k * bins - extent for k, extent in zip(kernel, x.shape[2:], strict=True))
        pad = tuple((rest + 1) // 2 for rest in spare)
        if any(p >= k for p, k in zip(pad, kernel, strict=True)):
            what = f"an image of {list(x.shape[2:])} has no {bins} x {bins} windows"
            raise settings.error(what, "pyramid_height", f"at most {level}", str(height))
        window = {"kernel": kernel, "stride": kernel, "pad": pad}
        pooled = layer.step(f"pool{level}", "Pool", [x], method=method, **window, ceil=True)
        if height == 1:
            layer.emit("Flatten", [pooled])
            return
        parts.append(layer.step(f"level{level}", "Flatten", [pooled]))
    layer.emit("Concat", parts, axis=1)


def parameter(layer: Layer) -> None:
    """A parameter as a blob."""
    settings = layer.settings("parameter_param")
    dims = settings.message("shape").all("dim")
    if any(dim < 1 for dim in dims):
        raise settings.wrong("shape", dims, "dimensions of 1 or more")
    layer.put(layer.tops[0], layer.parameter("weight", dims, Filler()), report=False)


def swish(layer: Layer) -> None:
    """x * sigmoid(beta * x)."""
    (x,), beta = layer.bottoms, layer.settings("swish_param").get("beta", 1.0)
    scaled = layer.step("scaled", "Power", [x], scale=beta)
    gate = layer.step("gate", "Sigmoid", [scaled])
    layer.emit("Eltwise", [x, gate], operation="product")


def hdf5_output(layer: Layer) -> None:
    layer.scope.notes.append(f"{layer.node.where}: layer {layer.name!r} writes no file")


def _pool_method(layer: Layer, settings: Node) -> str:
    if settings.get("pool", "MAX") == "STOCHASTIC":
        raise layer.unsupported("stochastic pooling", settings, "pool")
    return "max" if settings.get("pool", "MAX") == "MAX" else "average"


def _weight_and_bias(layer: Layer, settings: Node, shape: Sequence[int], outputs: int) -> list[Var]:
    """The weight of this shape and, unless it is switched off, a bias for each output."""
    parameters = [layer.parameter("weight", shape, settings.get("weight_filler"))]
    if settings.get("bias_term", True):
        parameters.append(layer.parameter("bias", (outputs,), settings.get("bias_filler")))
    return parameters


def _operand(
    layer: Layer, settings: Node, label: str, axis: int, default: Filler | None = None
) -> Var:
    """The factor of a Scale layer or the addend of a Bias layer: a bottom, or a parameter."""
    if len(layer.bottoms) > 1:
        return layer.bottoms[1]
    x, count = layer.bottoms[0], int(settings.get("num_axes", 1))
    if count < -1 or (count >= 0 and axis + count > len(x.shape)):
        expected = f"-1, or at most {len(x.shape) - axis} from axis {axis} on"
        raise settings.wrong("num_axes", count, expected)
    shape = x.shape[axis:] if count == -1 else x.shape[axis : axis + count]
    return layer.parameter(label, shape, filler_of(settings.get("filler"), default))


def _pair(
    settings: Node, name: str, short: str | None, default: int | None, *, least: int = 1
) -> tuple[int, int]:
    """A size as (height, width), from one field for both or one for each."""
    values: list[int] = settings.all(name)
    fields = [f"{short}_h", f"{short}_w"] if short else []
    apart = [settings.get(field) for field in fields if field in settings]
    if apart and not values and len(apart) == 2:
        values = apart
    elif apart or len(values) > 2 or (not values and default is None):
        what = f"{name} is not clear" if values or apart else f"{name} is missing"
        expected = name + (f", or both {' and '.join(fields)}" if fields else "")
        given = f"{name}: {values}, {', '.join(fields)}: {apart}"
        raise settings.error(what, name, expected, given)
    values = values or [default or 0]
    if min(values) < least:
        raise settings.error(f"{name} is {min(values)}", name, f"{least} or more", str(values))
    return values[0], values[-1]


def _short(pair: tuple[int, int]) -> int | tuple[int, int]:
    return pair[0] if pair[0] == pair[1] else pair


def pooled(extent: int, kernel: int, stride: int, pad: int, *, ceil: bool) -> int:
    """Caffe's size of a pooled image."""
    free = extent + 2 * pad - kernel
    size = (-(-free // stride) if ceil else free // stride) + 1
    return size - 1 if pad and (size - 1) * stride >= extent + pad else size
