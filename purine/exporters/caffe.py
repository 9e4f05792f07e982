"""A trained net for Caffe: a deploy definition (prototxt) and its weights (caffemodel).

`LAYERS` has a function for each kind that Caffe has layers for. It returns the layers of one op, in
the order in which they run. What Caffe cannot compute is refused by the name of the op.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from purine.errors import GraphError
from purine.exporters.net import TrainedNet
from purine.graph import NOTHING, Graph, Op
from purine.importers.caffe.layers import pooled
from purine.importers.caffe.weights import Slot, StoredLayer, weights_bytes
from purine.registry.lookup import lookup
from purine.registry.spec import Settings

__all__ = ["LAYERS", "caffe_files"]

Message: TypeAlias = dict[str, Any]
"""Fields of a message: numbers, booleans, texts, `Word`s, messages, and lists of these."""


class Word(str):
    """A text that is written without quotes: a value of an enum."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of Caffe; `blobs` are its weights, in the shapes that Caffe gives them."""

    type: str
    settings: Message = field(default_factory=dict)
    blobs: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """An op to translate: its attributes with their defaults, and the values it reads."""

    op: Op
    graph: Graph
    settings: Settings
    values: Mapping[str, Tensor]

    def shape(self, index: int = 0) -> tuple[int, ...]:
        return self.graph.blobs[self.op.inputs[index]].shape or ()

    def weights(self) -> tuple[Tensor, ...]:
        """The values of the inputs behind the first, all of which have to be known."""
        names = [name for name in self.op.inputs[1:] if name != NOTHING]
        for name in names:
            if name not in self.values:
                raise self.refused(f"{name!r}, which is computed from the samples, as a weight")
        return tuple(self.values[name] for name in names)

    def refused(self, what: str) -> GraphError:
        op, remedy = self.op, "export it with --format onnx or --format torch"
        expected = f"what Caffe has a layer for: {', '.join(LAYERS)}"
        text = f"Caffe has no layer for op {op.name!r} of kind {op.kind}: {what}"
        return GraphError(text, expected, what, remedy, op=op)


Translate: TypeAlias = Callable[[Source], Sequence[Layer]]


def _pair(value: object) -> tuple[int, int]:
    sizes = tuple(value) if isinstance(value, tuple | list) else (value,)
    return int(sizes[0]), int(sizes[-1])


def _window(kernel: object, stride: object, pad: object) -> Message:
    """The settings of windows: one number for both sides where they agree."""
    settings: Message = {}
    for name, value in (("kernel_size", kernel), ("stride", stride), ("pad", pad)):
        (high, wide), short = _pair(value), name.removesuffix("_size")
        settings |= {name: high} if high == wide else {f"{short}_h": high, f"{short}_w": wide}
    return settings


def _convolution(source: Source) -> Sequence[Layer]:
    """A convolution or its transpose, of a kind of ours or of ATen's."""
    get, forward = source.settings, source.op.kind != "Deconv"
    if _pair(get.get("output_pad", 0)) != (0, 0):
        raise source.refused(f"output_pad {get['output_pad']}")
    weight, *bias = source.weights()
    pad, groups = get.get("pad", get.get("padding", 0)), get.get("groups", 1)
    if weight.ndim != 4 or isinstance(pad, str):
        raise source.refused("a convolution of other than images, or with a named padding")
    outputs = weight.shape[0] if forward else weight.shape[1] * groups
    stride, dilation = get.get("stride", 1), _pair(get.get("dilation", 1))
    settings: Message = {"num_output": outputs, **_window(tuple(weight.shape[2:]), stride, pad)}
    if dilation != (1, 1):
        settings["dilation"] = list(dilation)
    if groups != 1:
        settings["group"] = groups
    if not bias:
        settings["bias_term"] = False
    kind = "Convolution" if forward else "Deconvolution"
    return [Layer(kind, {"convolution_param": settings}, (weight, *bias))]


def _inner_product(source: Source) -> Sequence[Layer]:
    axis = source.settings.get("axis", -1 if source.op.kind == "aten.linear" else 1)
    weight, *bias = source.weights()
    settings: Message = {"num_output": weight.shape[0]}
    if axis % len(source.shape()) != 1:
        settings["axis"] = axis
    if not bias:
        settings["bias_term"] = False
    return [Layer("InnerProduct", {"inner_product_param": settings}, (weight, *bias))]


def _pool(source: Source) -> Sequence[Layer]:
    """Pooling over windows, of a kind of ours or of ATen's."""
    get = source.settings
    method = get.get("method", "average" if source.op.kind == "aten.avg_pool2d" else "max")
    kernel, pad = get.get("kernel", get.get("kernel_size")), get.get("pad", get.get("padding", 0))
    stride, ceil = get.get("stride") or kernel, get.get("ceil", get.get("ceil_mode", False))
    counted = get.get("count_pad", get.get("count_include_pad", True))
    if method == "average" and not counted and _pair(pad) != (0, 0):
        raise source.refused("averages that do not count the padding")
    if _pair(get.get("dilation", 1)) != (1, 1):
        raise source.refused("pooling with a dilation")
    settings: Message = {"pool": Word("MAX" if method == "max" else "AVE")}
    settings |= _window(kernel, stride, pad)
    extents = zip(source.shape()[-2:], *map(_pair, (kernel, stride, pad)), strict=True)
    caffe = tuple(pooled(*each, ceil=True) for each in extents)
    if not ceil and caffe != (source.graph.blobs[source.op.outputs[0]].shape or ())[-2:]:
        settings["round_mode"] = Word("FLOOR")
    return [Layer("Pooling", {"pooling_param": settings})]


def _global_pool(source: Source) -> Sequence[Layer]:
    if _pair(source.settings.get("output_size", 1)) != (1, 1):
        raise source.refused("adaptive pooling to more than one value")
    method = source.settings.get("method", "average")
    pool = {"pool": Word("MAX" if method == "max" else "AVE"), "global_pooling": True}
    return [Layer("Pooling", {"pooling_param": pool})]


def _batch_norm(source: Source) -> Sequence[Layer]:
    """Caffe's BatchNorm divides, and a Scale layer behind it has the weight and the bias."""
    weight, bias, mean, variance = source.weights()
    settings = {"use_global_stats": True, "eps": source.settings["eps"]}
    norm = Layer("BatchNorm", {"batch_norm_param": settings}, (mean, variance, torch.ones(1)))
    return [norm, Layer("Scale", {"scale_param": {"bias_term": True}}, (weight, bias))]


def _caffe_batch_norm(source: Source) -> Sequence[Layer]:
    settings = {"use_global_stats": True, "eps": source.settings["eps"]}
    return [Layer("BatchNorm", {"batch_norm_param": settings}, source.weights())]


def _scale(source: Source) -> Sequence[Layer]:
    weights = source.weights()
    settings: Message = {"axis": source.settings["axis"], "num_axes": weights[0].ndim}
    kind = source.op.kind
    if kind == "Scale" and len(weights) > 1:
        settings["bias_term"] = True
    return [Layer(kind, {f"{kind.lower()}_param": settings}, weights)]


def _prelu(source: Source) -> Sequence[Layer]:
    weights = source.weights()
    return [Layer("PReLU", {"prelu_param": {"channel_shared": weights[0].numel() == 1}}, weights)]


def _eltwise(source: Source) -> Sequence[Layer]:
    operation = source.settings.get("operation", "sum")
    names = {"sum": "SUM", "product": "PROD", "max": "MAX"}
    if source.settings.get("alpha", 1) != 1 or operation not in names:
        raise source.refused("a weighted sum, or an operation that Caffe lacks")
    shapes = {source.shape(index) for index in range(len(source.op.inputs))}
    if len(shapes) > 1:
        raise source.refused(f"operands of shapes {' and '.join(map(str, map(list, shapes)))}")
    settings: Message = {"operation": Word(names[operation])}
    if source.settings.get("coefficients"):
        settings["coeff"] = list(source.settings["coefficients"])
    return [Layer("Eltwise", {"eltwise_param": settings})]


def _lrn(source: Source) -> Sequence[Layer]:
    get = source.settings
    settings: Message = {"local_size": get["size"], "alpha": get["alpha"], "beta": get["beta"]}
    if get["region"] == "within":
        settings["norm_region"] = Word("WITHIN_CHANNEL")
    else:
        settings["k"] = get["k"]
    return [Layer("LRN", {"lrn_param": settings})]


def _slice(source: Source) -> Sequence[Layer]:
    """A Slice layer gives all parts: those that nobody reads are tops without a reader."""
    get = source.settings
    extent = source.shape()[get["axis"]]
    start, end, _ = slice(get["start"], get["end"]).indices(extent)
    points = [point for point in (start, end) if 0 < point < extent]
    if not points:
        return [Layer("Split")]
    return [Layer("Slice", {"slice_param": {"axis": get["axis"], "slice_point": points}})]


def _reshape(source: Source) -> Sequence[Layer]:
    dims = list(source.settings["shape"])
    before, after = source.shape(), source.graph.blobs[source.op.outputs[0]].shape or ()
    if before[:1] == after[:1]:
        dims[0] = 0  # whatever the size of the batch is
        if source.op.kind != "Reshape":
            dims[1:] = after[1:]
    return [Layer("Reshape", {"reshape_param": {"shape": {"dim": dims}}})]


def _clip(**fixed: float) -> Translate:
    def translate(source: Source) -> Sequence[Layer]:
        bounds = {name: fixed.get(name, source.settings.get(name)) for name in ("min", "max")}
        if None in bounds.values():
            raise source.refused("a bound on one side alone")
        return [Layer("Clip", {"clip_param": bounds})]

    return translate


def _one(type: str, message: str = "", /, **names: str) -> Translate:
    """A layer with the attributes of the op as settings, under Caffe's `names`."""

    def translate(source: Source) -> Sequence[Layer]:
        pairs = ((field, source.settings[name]) for field, name in names.items())
        settings = {field: value for field, value in pairs if value is not None}
        return [Layer(type, {message: settings} if settings else {})]

    return translate


LAYERS: Mapping[str, Translate] = {
    "Bias": _scale,
    "BatchNormTest": _batch_norm,
    "CaffeBatchNormTest": _caffe_batch_norm,
    "Concat": _one("Concat", "concat_param", axis="axis"),
    "Conv": _convolution,
    "Deconv": _convolution,
    "Eltwise": _eltwise,
    "Elu": _one("ELU", "elu_param", alpha="alpha"),
    "Exp": _one("Exp", "exp_param", base="base", scale="scale", shift="shift"),
    "Flatten": _one("Flatten", "flatten_param", axis="axis", end_axis="end"),
    "GlobalPool": _global_pool,
    "InnerProduct": _inner_product,
    "LRN": _lrn,
    "LeakyRelu": _one("ReLU", "relu_param", negative_slope="slope"),
    "Log": _one("Log", "log_param", base="base", scale="scale", shift="shift"),
    "PRelu": _prelu,
    "Pool": _pool,
    "Power": _one("Power", "power_param", power="power", scale="scale", shift="shift"),
    "Relu": _one("ReLU"),
    "Relu6": _clip(min=0.0, max=6.0),
    "Reshape": _reshape,
    "Scale": _scale,
    "Sigmoid": _one("Sigmoid"),
    "Slice": _slice,
    "Softmax": _one("Softmax", "softmax_param", axis="axis"),
    "Split": _one("Slice", "slice_param", axis="axis"),
    "StopGradient": _one("Split"),
    "Tanh": _one("TanH"),
    "aten.abs": _one("AbsVal"),
    "aten.adaptive_avg_pool2d": _global_pool,
    "aten.add.Tensor": _eltwise,
    "aten.avg_pool2d": _pool,
    "aten.clamp": _clip(),
    "aten.conv2d": _convolution,
    "aten.linear": _inner_product,
    "aten.max_pool2d": _pool,
    "aten.relu": _one("ReLU"),
    "aten.reshape": _reshape,
    "aten.sigmoid": _one("Sigmoid"),
    "aten.softmax.int": _one("Softmax", "softmax_param", axis="dim"),
    "aten.softplus": _one("BNLL"),
    "aten.tanh": _one("TanH"),
}
"""How ops of each kind are written."""


def caffe_files(trained: TrainedNet) -> tuple[str, bytes]:
    """The text of the definition, and the content of the caffemodel."""
    graph = trained.graph
    values = {name: trained.values[name] for name in graph.states}
    messages = [_input(graph, name) for name in graph.inputs]
    stored: list[StoredLayer] = []
    states: dict[str, Tensor] = {}
    for op in graph.in_order:
        kind = lookup(op)
        if op.inputs and all(item in values for item in op.inputs if item != NOTHING):
            results = kind.bind(op)(*(values[item] for item in op.inputs))  # of weights alone
            several = (results,) if isinstance(results, Tensor) else results
            values |= dict(zip(op.outputs, several, strict=True))
            continue
        source = Source(op, graph, kind.settings(op), values)
        if op.kind not in LAYERS:
            raise source.refused("a kind that Caffe does not have")
        for layer, message in _placed(source, LAYERS[op.kind](source)):
            messages.append(message)
            slots = []
            for number, blob in enumerate(layer.blobs):
                key = f"{message['name']}#{number}"
                states[key] = blob.float().contiguous()
                slots.append(Slot(key, tuple(blob.shape)))
            if slots:
                stored.append(StoredLayer(message["name"], layer.type, tuple(slots)))
    text = "\n".join(_lines({"name": trained.name, "layer": messages})) + "\n"
    return text, weights_bytes(trained.name, stored, states)


def _input(graph: Graph, name: str) -> Message:
    dims = list(graph.blobs[name].shape or ())
    return {"name": name, "type": "Input", "top": name, "input_param": {"shape": {"dim": dims}}}


def _placed(source: Source, layers: Sequence[Layer]) -> list[tuple[Layer, Message]]:
    """The layers with their names, bottoms and tops: each reads what the one before gives."""
    op = source.op
    bottoms = [name for name in op.inputs if name not in source.values and name != NOTHING]
    if len(layers[0].blobs) == 0 and len(bottoms) < len(op.inputs):
        raise source.refused("a value that is no weight of a layer")
    placed = []
    for number, layer in enumerate(layers):
        last = number == len(layers) - 1
        name = op.name if last else f"{op.name}/{layer.type.lower()}"
        tops = [f"{name}/unread{k}" if n == NOTHING else n for k, n in enumerate(op.outputs)]
        tops = _tops_of(source, layer, tops) if last else [name]
        message = {"name": name, "type": layer.type, "bottom": bottoms, "top": tops}
        placed.append((layer, message | layer.settings))
        bottoms = tops
    return placed


def _tops_of(source: Source, layer: Layer, tops: list[str]) -> list[str]:
    """The tops of a layer: of a Slice that stands for one part, also those of the other parts."""
    if source.op.kind != "Slice" or layer.type != "Slice":
        return tops
    parts = len(layer.settings["slice_param"]["slice_point"]) + 1
    names = [f"{source.op.name}/unread{number}" for number in range(parts)]
    names[1 if source.settings["start"] else 0] = tops[0]
    return names


def _lines(message: Message, indent: str = "") -> list[str]:
    lines = []
    for name, value in message.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                lines += [f"{indent}{name} {{", *_lines(item, f"{indent}  "), f"{indent}}}"]
            else:
                lines.append(f"{indent}{name}: {_scalar(item)}")
    return lines


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and not isinstance(value, Word):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
