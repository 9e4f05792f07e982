"""From a Caffe net to a graph: which layers a phase has, in today's form, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from purine.analysis.infer import check
from purine.errors import FormatError
from purine.graph import Graph
from purine.importers.caffe import layers, losses, recurrent, sources
from purine.importers.caffe.layer import Layer, Options, Scope, one_op, usable
from purine.importers.caffe.schema import Node
from purine.importers.caffe.tables import MESSAGES, V1_TYPES
from purine.importers.caffe.weights import StoredLayer
from purine.kinds.net import Net, Var
from purine.nearest import nearest_name

__all__ = ["LAYERS", "NetState", "build", "layers_of"]

Translate: TypeAlias = Callable[[Layer], None]
Counts: TypeAlias = tuple[int, int]
_MANY = 999
_VARIANCE, _ACROSS = ("normalize_variance", True), ("across_channels", False)

LAYERS: Mapping[str, tuple[Translate, Counts, Counts]] = {
    "AbsVal": (one_op("aten.abs"), (1, 1), (1, 1)),
    "Accuracy": (losses.accuracy, (2, 2), (1, 1)),
    "ArgMax": (layers.arg_max, (1, 1), (1, 1)),
    "BNLL": (one_op("aten.softplus"), (1, 1), (1, 1)),
    "BatchNorm": (layers.batch_norm, (1, 1), (1, 1)),
    "BatchReindex": (one_op("aten.index_select", dim=0), (2, 2), (1, 1)),
    "Bias": (layers.bias, (1, 2), (1, 1)),
    "Clip": (one_op("aten.clamp", "clip_param", min=0.0, max=0.0), (1, 1), (1, 1)),
    "Concat": (layers.concat, (1, _MANY), (1, 1)),
    "ContrastiveLoss": (losses.contrastive_loss, (3, 3), (0, 1)),
    "Convolution": (layers.convolution, (1, _MANY), (1, _MANY)),
    "Crop": (layers.crop, (2, 2), (1, 1)),
    "Data": (sources.data, (0, 0), (1, 2)),
    "Deconvolution": (layers.convolution, (1, _MANY), (1, _MANY)),
    "Dropout": (layers.dropout, (1, 1), (1, 1)),
    "DummyData": (sources.dummy_data, (0, 0), (1, _MANY)),
    "ELU": (one_op("Elu", "elu_param", alpha=1.0), (1, 1), (1, 1)),
    "Eltwise": (layers.eltwise, (2, _MANY), (1, 1)),
    "Embed": (layers.embed, (1, 1), (1, 1)),
    "EuclideanLoss": (losses.euclidean_loss, (2, 2), (0, 1)),
    "Exp": (layers.exp_or_log, (1, 1), (1, 1)),
    "Flatten": (one_op("Flatten", "flatten_param", axis=1, end=("end_axis", -1)), (1, 1), (1, 1)),
    "HDF5Data": (sources.hdf5_data, (0, 0), (1, _MANY)),
    "HDF5Output": (layers.hdf5_output, (1, _MANY), (0, 0)),
    "HingeLoss": (losses.hinge_loss, (2, 2), (0, 1)),
    "ImageData": (sources.image_data, (0, 0), (1, 2)),
    "InfogainLoss": (losses.infogain_loss, (2, 3), (0, 2)),
    "InnerProduct": (layers.inner_product, (1, 1), (1, 1)),
    "Input": (sources.input_layer, (0, 0), (1, _MANY)),
    "LRN": (layers.lrn, (1, 1), (1, 1)),
    "LSTM": (recurrent.recurrent, (2, 5), (1, 3)),
    "Log": (layers.exp_or_log, (1, 1), (1, 1)),
    "MVN": (
        one_op("MVN", "mvn_param", variance=_VARIANCE, across=_ACROSS, eps=1e-9),
        (1, 1),
        (1, 1),
    ),
    "MemoryData": (sources.memory_data, (0, 0), (1, 2)),
    "MultinomialLogisticLoss": (losses.multinomial_logistic_loss, (2, 2), (0, 1)),
    "PReLU": (layers.prelu, (1, 1), (1, 1)),
    "Parameter": (layers.parameter, (0, 0), (1, 1)),
    "Pooling": (layers.pooling, (1, 1), (1, 1)),
    "Power": (one_op("Power", "power_param", power=1.0, scale=1.0, shift=0.0), (1, 1), (1, 1)),
    "RNN": (recurrent.recurrent, (2, 4), (1, 2)),
    "ReLU": (layers.relu, (1, 1), (1, 1)),
    "Reduction": (layers.reduction, (1, 1), (1, 1)),
    "Reshape": (layers.reshape, (1, 1), (1, 1)),
    "SPP": (layers.spatial_pyramid, (1, 1), (1, 1)),
    "Scale": (layers.scale, (1, 2), (1, 1)),
    "Sigmoid": (one_op("Sigmoid"), (1, 1), (1, 1)),
    "SigmoidCrossEntropyLoss": (losses.sigmoid_cross_entropy_loss, (2, 2), (0, 1)),
    "Silence": (layers.silence, (1, _MANY), (0, 0)),
    "Slice": (layers.slice_layer, (1, 1), (1, _MANY)),
    "Softmax": (one_op("Softmax", "softmax_param", axis=1), (1, 1), (1, 1)),
    "SoftmaxWithLoss": (losses.softmax_loss, (2, 2), (0, 2)),
    "Split": (layers.split, (1, 1), (1, _MANY)),
    "Swish": (layers.swish, (1, 1), (1, 1)),
    "TanH": (one_op("Tanh"), (1, 1), (1, 1)),
    "Threshold": (one_op("Threshold", "threshold_param", threshold=0.0), (1, 1), (1, 1)),
    "Tile": (layers.tile, (1, 1), (1, 1)),
}
"""How each type of layer is translated, and how many bottoms and tops it may have."""

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

_LABELLED = ("Accuracy", "HingeLoss", "InfogainLoss", "MultinomialLogisticLoss", "SoftmaxWithLoss")
_KEEPING = ("Flatten", "Reshape", "Slice", "Split")


@dataclass(frozen=True, slots=True)
class NetState:
    """What decides which layers of a definition a net has."""

    phase: str
    level: int = 0
    stages: frozenset[str] = frozenset()

    def merged(self, given: Node) -> NetState:
        """The state with the level and the stages that a message adds; its phase stays."""
        stages = self.stages | set(given.all("stage"))
        return replace(self, level=given.get("level", self.level), stages=stages)


def layers_of(net: Node, state: NetState) -> list[Node]:
    """The layers that a net has in a state, all in today's form."""
    if "layers" in net and "layer" in net:
        what, expected = "the net has layers in both forms", "either layer { } or layers { }"
        raise net.error(what, "layers", expected, "both", "write all of them as layer { }")
    every = [*net.all("layer"), *map(_upgraded, net.all("layers"))]
    return [layer for layer in every if _included(layer, state)]


def build(net: Node, state: NetState, options: Options) -> tuple[Graph, Scope]:
    """The graph of a net in one state, checked."""
    chosen = layers_of(net, state)
    tops = frozenset(top for layer in chosen for top in layer.all("top"))
    scope = Scope(Net(dtype=options.dtype), state.phase, tops, frozenset(_whole(chosen)), options)
    _inputs(net, scope)
    for node in chosen:
        type = node.get("type")
        if type not in LAYERS:
            raise _unknown_type(node, type)
        translate, bottoms, tops_allowed = LAYERS[type]
        layer = Layer(scope, node)
        layer.check_counts(bottoms, tops_allowed)
        translate(layer)
        layer.check_parameters()
        if layer.slots:
            scope.stored.append(StoredLayer(node.get("name", ""), layer.type, tuple(layer.slots)))
        _weigh(layer)
    scope.net.builder.outputs = list(dict.fromkeys([*scope.losses, *scope.unread.values()]))
    return check(scope.net.builder.graph()), scope


def _inputs(net: Node, scope: Scope) -> None:
    """Inputs that are declared at the top of the net."""
    names, shapes = net.all("input"), [node.all("dim") for node in net.all("input_shape")]
    dims = net.all("input_dim")
    if dims:
        shapes = [dims[at : at + 4] for at in range(0, len(dims), 4)]
    if len(names) != len(shapes) or any(dim < 1 for shape in shapes for dim in shape):
        what = f"the net has {len(names)} inputs and {len(shapes)} shapes of inputs"
        expected = "an input_shape for each input, or 4 input_dim, of 1 or more"
        raise net.error(what, "input", expected, str(shapes), "add input_shape { dim: ... }")
    for name, shape in zip(names, shapes, strict=True):
        size, dtype = scope.shape(name, shape), scope.dtype(name)
        blob = scope.net.builder.blob(usable(name), size, dtype, where=net.place("input"))
        scope.place(name, Var(scope.net, blob), report=False)


def _weigh(layer: Layer) -> None:
    """Make losses of the tops of any layer that have a loss_weight."""
    weights: Sequence[float] = layer.node.all("loss_weight")
    if len(weights) > max(1, len(layer.tops)):
        what = f"layer {layer.name!r} has {len(weights)} loss weights"
        raise layer.node.error(what, "loss_weight", "at most one for each top", str(weights))
    done = set(layer.scope.losses)
    for var, weight in zip(layer.written, weights, strict=False):
        if weight and var.name not in done:
            name = layer.scope.net.builder.fresh(f"{var.name}/loss")
            layer.op(name, [name], "SumLoss", [var], loss_weight=weight)
            layer.scope.losses.append(name)


def _included(layer: Node, state: NetState) -> bool:
    include, exclude = layer.all("include"), layer.all("exclude")
    if include and exclude:
        what = f"layer {layer.get('name')!r} has include and exclude"
        raise layer.error(what, "exclude", "one of the two", "both", "remove one of them")
    if include:
        return any(_met(rule, state) for rule in include)
    return not any(_met(rule, state) for rule in exclude)


def _met(rule: Node, state: NetState) -> bool:
    return (
        rule.get("phase", state.phase) == state.phase
        and rule.get("min_level", state.level) <= state.level
        and rule.get("max_level", state.level) >= state.level
        and state.stages.issuperset(rule.all("stage"))
        and state.stages.isdisjoint(rule.all("not_stage"))
    )


def _whole(chosen: Sequence[Node]) -> set[str]:
    """Names of blobs that hold labels or indices, from what is done with them."""
    labels: set[str] = set()
    for layer in reversed(chosen):
        bottoms, type = layer.all("bottom"), layer.get("type")
        if type in _LABELLED or type == "BatchReindex":
            labels.update(bottoms[1:2])
        elif type == "Embed":
            labels.update(bottoms[:1])
        elif type in _KEEPING and not labels.isdisjoint(layer.all("top")):
            labels.update(bottoms)
    return labels


def _upgraded(old: Node) -> Node:
    """A layer of the older form in today's."""
    fields = {
        name: values
        for name, values in old.fields.items()
        if name in MESSAGES["LayerParameter"] and name not in ("type", "param")
    }
    if "type" in old:
        type, line = old.fields["type"][0]
        fields["type"] = [(V1_TYPES[type], line)]
    columns = {
        "name": old.fields.get("param", []),
        "share_mode": old.fields.get("blob_share_mode", []),
        "lr_mult": old.fields.get("blobs_lr", []),
        "decay_mult": old.fields.get("weight_decay", []),
    }
    specs = []
    for index in range(max(map(len, columns.values()))):
        entries = {key: [column[index]] for key, column in columns.items() if index < len(column)}
        line = next(iter(entries.values()))[0][1]
        specs.append((Node("ParamSpec", old.file, line, entries), line))
    if specs:
        fields["param"] = specs
    return replace(old, type="LayerParameter", fields=fields)


def _unknown_type(node: Node, type: str | None) -> FormatError:
    what = f"layer {node.get('name')!r} is of unknown type {type!r}"
    remedy = nearest_name(type or "", LAYERS, "use one of " + ", ".join(LAYERS), cutoff=0.5)
    if not type:
        what = "a layer has no type"
    elif type in REFUSED:
        what = f"layer {node.get('name')!r} ({type}) cannot be imported: {REFUSED[type]}"
        remedy = "take it out, or replace what it does"
    return node.error(what, "type", "a type of layer that can be imported", repr(type), remedy)
