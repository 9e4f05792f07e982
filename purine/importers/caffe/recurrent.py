"""Recurrent layers. As in Caffe, a layer goes on from where the batch before ended."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from purine.graph import Filler
from purine.importers.caffe.layer import Layer, filler_of
from purine.importers.caffe.schema import Node
from purine.kinds.net import Var


def lstm(layer: Layer) -> None:
    settings = layer.settings("recurrent_param")
    size = settings.positive("num_output")
    begun = _begun(layer, settings, ("hidden", "cell"), size)
    x = _input(layer, settings, 4 * size, len(begun))
    weight = layer.parameter("hidden_weight", (4 * size, size), _filler(settings))
    _emit(layer, settings, "CaffeLstm", [x, layer.bottoms[1], weight], begun)


def rnn(layer: Layer) -> None:
    settings = layer.settings("recurrent_param")
    size = settings.positive("num_output")
    begun = _begun(layer, settings, ("hidden",), size)
    x = _input(layer, settings, size, len(begun))
    weight = layer.parameter("hidden_weight", (size, size), _filler(settings))
    output = [
        layer.parameter("output_weight", (size, size), _filler(settings)),
        layer.parameter("output_bias", (size,), filler_of(settings.get("bias_filler"))),
    ]
    _emit(layer, settings, "CaffeRnn", [x, layer.bottoms[1], weight], begun, output)


def _input(layer: Layer, settings: Node, width: int, states: int) -> Var:
    """What the inputs give to each step, [T, N, width]; one bottom may be the same at all steps."""
    x, marks, *others = layer.bottoms
    if len(x.shape) < 3 or marks.shape != x.shape[:2]:
        shapes = f"{list(x.shape)} and {list(marks.shape)}"
        what = f"layer {layer.name!r} ({layer.type}) reads {shapes}"
        expected = "[T, N, ...] and [T, N], which is 0 where a sequence begins"
        remedy = "put the steps first, then the streams"
        raise layer.node.error(what, "bottom", expected, shapes, remedy)
    exposed = states if settings.get("expose_hidden", False) else 0
    if len(others) not in (exposed, exposed + 1):
        what = f"layer {layer.name!r} ({layer.type}) has {len(layer.bottoms)} bottoms"
        expected = f"{2 + exposed} or {3 + exposed}"
        remedy = "change the bottoms or expose_hidden"
        raise layer.node.error(what, "bottom", expected, str(len(layer.bottoms)), remedy=remedy)
    weight = layer.parameter("weight", (width, prod(x.shape[2:])), _filler(settings))
    bias = layer.parameter("bias", (width,), filler_of(settings.get("bias_filler")))
    inputs = layer.step("InnerProduct", [x, weight, bias], {"axis": 2}, label="input")
    if len(others) == exposed:
        return inputs
    same = others[0]
    factor = layer.parameter("static_weight", (width, prod(same.shape[1:])), _filler(settings))
    every = layer.step("InnerProduct", [same, factor], {"axis": 1}, label="static")
    return layer.step("aten.add.Tensor", [inputs, every], label="inputs")


def _begun(layer: Layer, settings: Node, names: Sequence[str], size: int) -> list[Var]:
    """The states before the first step: bottoms, or what the batch before left."""
    if settings.get("expose_hidden", False):
        return layer.bottoms[-len(names) :]
    streams = layer.bottoms[0].shape[1] if len(layer.bottoms[0].shape) > 1 else 1
    builder, states = layer.scope.net.builder, []
    for name in names:
        # The nets of both phases have streams of their own, of which there may be more or fewer.
        label = name if layer.scope.phase == "TRAIN" else f"{name}_test"
        blob = builder.fresh(f"{layer.name}/{label}")
        builder.blob(blob, (1, streams, size), layer.scope.net.dtype, where=layer.node.where)
        builder.state(blob, filler=Filler(), where=layer.node.where)
        states.append(Var(layer.scope.net, blob))
    return states


def _emit(
    layer: Layer,
    settings: Node,
    kind: str,
    inputs: Sequence[Var],
    begun: Sequence[Var],
    output: Sequence[Var] = (),
) -> None:
    """Add the recurrence, what makes its result from `output`, and what becomes of its states."""
    net = layer.scope.net
    exposed: bool = settings.get("expose_hidden", False)
    tops = 1 + (len(begun) if exposed else 0)
    layer.check_counts((2, 999), (tops, tops))
    labels = ("hidden_next", "cell_next")[: len(begun)]
    if output:
        name = net.builder.fresh(f"{layer.name}/steps")
        names = [name, *(f"{name}/{label}" for label in labels)]
        results = layer.scope.op(name, kind, [*inputs, *begun], {}, names, layer.node.where)
        result = layer.step("InnerProduct", [results[0], *output], {"axis": 2}, label="output")
        layer.emit("Tanh", [result])
    else:
        name = net.builder.fresh(layer.name) if layer.name in net.builder.ops else layer.name
        layer.emit(kind, [*inputs, *begun], more=labels)
    for index, (state, label) in enumerate(zip(begun, labels, strict=True)):
        following = Var(net, f"{name}/{label}")
        if exposed:
            layer.put(layer.tops[1 + index], following)
        else:
            net.carry(state, following)


def _filler(settings: Node) -> Filler:
    return filler_of(settings.get("weight_filler"))
