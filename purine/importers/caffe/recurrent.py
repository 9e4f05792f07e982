"""Recurrent layers. As in Caffe, a layer goes on from where the batch before ended."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from purine.graph import Filler
from purine.importers.caffe.layer import Layer
from purine.importers.caffe.schema import Node
from purine.kinds.net import Var


def recurrent(layer: Layer) -> None:
    """LSTM and RNN: the recurrence, and what becomes of its states."""
    settings, net = layer.settings("recurrent_param"), layer.scope.net
    size = settings.positive("num_output")
    lstm, exposed = layer.type == "LSTM", bool(settings.get("expose_hidden", False))
    names, width = (("hidden", "cell"), 4 * size) if lstm else (("hidden",), size)
    begun = _begun(layer, names, size, exposed)
    x = _input(layer, settings, width, len(begun) if exposed else 0)
    weight = layer.parameter("hidden_weight", (width, size), settings.get("weight_filler"))
    inputs = [x, layer.bottoms[1], weight, *begun]
    labels = [f"{name}_next" for name in names]
    tops = 1 + (len(begun) if exposed else 0)
    layer.check_counts((2, 999), (tops, tops))
    if lstm:
        _, *following = layer.emit_many(labels, "CaffeLstm", inputs)
    else:
        output = [
            layer.parameter("output_weight", (size, size), settings.get("weight_filler")),
            layer.parameter("output_bias", (size,), settings.get("bias_filler")),
        ]
        name = net.builder.fresh(f"{layer.name}/steps")
        results = [name, *(f"{name}/{label}" for label in labels)]
        steps, *following = layer.op(name, results, "CaffeRnn", inputs)
        layer.emit("Tanh", [layer.step("output", "InnerProduct", [steps, *output], axis=2)])
    for index, (state, value) in enumerate(zip(begun, following, strict=True)):
        if exposed:
            layer.put(layer.tops[1 + index], value)
        else:
            net.carry(state, value)


def _input(layer: Layer, settings: Node, width: int, exposed: int) -> Var:
    """What the inputs give to each step, [T, N, width]; one bottom may be the same at all steps.

    The last `exposed` bottoms are states.
    """
    x, marks, *others = layer.bottoms
    if len(x.shape) < 3 or marks.shape != x.shape[:2]:
        shapes = f"{list(x.shape)} and {list(marks.shape)}"
        what = f"layer {layer.name!r} ({layer.type}) reads {shapes}"
        expected = "[T, N, ...] and [T, N], which is 0 where a sequence begins"
        remedy = "put the steps first, then the streams"
        raise layer.node.error(what, "bottom", expected, shapes, remedy)
    if len(others) not in (exposed, exposed + 1):
        what = f"layer {layer.name!r} ({layer.type}) has {len(layer.bottoms)} bottoms"
        expected, remedy = f"{2 + exposed} or {3 + exposed}", "change the bottoms or expose_hidden"
        raise layer.node.error(what, "bottom", expected, str(len(layer.bottoms)), remedy)
    filler = settings.get("weight_filler")
    weight = layer.parameter("weight", (width, prod(x.shape[2:])), filler)
    bias = layer.parameter("bias", (width,), settings.get("bias_filler"))
    inputs = layer.step("input", "InnerProduct", [x, weight, bias], axis=2)
    if len(others) == exposed:
        return inputs
    factor = layer.parameter("static_weight", (width, prod(others[0].shape[1:])), filler)
    every = layer.step("static", "InnerProduct", [others[0], factor], axis=1)
    return layer.step("inputs", "aten.add.Tensor", [inputs, every])


def _begun(layer: Layer, names: Sequence[str], size: int, exposed: bool) -> list[Var]:
    """The states before the first step: bottoms, or what the batch before left."""
    if exposed:
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
