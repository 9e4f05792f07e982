"""Layers that measure: losses and accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence

from purine.graph import Attribute
from purine.importers.caffe.layer import Layer
from purine.importers.caffe.schema import Node
from purine.kinds.net import Var

_NORMALIZATIONS = {"FULL": "full", "VALID": "valid", "BATCH_SIZE": "batch", "NONE": "none"}


def softmax_loss(layer: Layer) -> None:
    x, axis = _scores(layer, layer.settings("softmax_param"))
    attributes = {"axis": axis, **_normalised(layer, "valid")}
    _emit(layer, "SoftmaxLoss", [x, _labels(layer, x, axis)], attributes)
    if len(layer.tops) > 1:
        layer.emit("Softmax", [x], {"axis": axis})


def infogain_loss(layer: Layer) -> None:
    settings = layer.settings("infogain_loss_param")
    if len(layer.bottoms) < 3:
        raise layer.unsupported("a matrix in a file", settings, "source")
    x, axis = _scores(layer, settings)
    attributes = {"axis": axis, **_normalised(layer, "valid")}
    inputs = [x, _labels(layer, x, axis), layer.bottoms[2]]
    _emit(layer, "InfogainLoss", inputs, attributes)
    if len(layer.tops) > 1:
        layer.emit("Softmax", [x], {"axis": axis})


def multinomial_logistic_loss(layer: Layer) -> None:
    x = layer.bottoms[0]
    _emit(layer, "MultinomialLogisticLoss", [x, _labels(layer, x, 1)], {})


def hinge_loss(layer: Layer) -> None:
    x = layer.bottoms[0]
    norm = 2 if layer.settings("hinge_loss_param").get("norm", "L1") == "L2" else 1
    _emit(layer, "HingeLoss", [x, _labels(layer, x, 1)], {"norm": norm})


def euclidean_loss(layer: Layer) -> None:
    x, target = layer.bottoms
    _emit(layer, "EuclideanLoss", [x, _shaped(layer, target, x.shape)], {})


def sigmoid_cross_entropy_loss(layer: Layer) -> None:
    x, target = layer.bottoms
    inputs = [x, _shaped(layer, target, x.shape)]
    _emit(layer, "SigmoidCrossEntropyLoss", inputs, _normalised(layer, "batch"))


def contrastive_loss(layer: Layer) -> None:
    settings = layer.settings("contrastive_loss_param")
    attributes: dict[str, Attribute] = {
        "margin": settings.get("margin", 1.0),
        "legacy": settings.get("legacy_version", False),
    }
    _emit(layer, "ContrastiveLoss", layer.bottoms, attributes)


def accuracy(layer: Layer) -> None:
    settings = layer.settings("accuracy_param")
    x, axis = _scores(layer, settings)
    attributes: dict[str, Attribute] = {
        "top_k": settings.positive("top_k", 1),
        "axis": axis,
        "ignore_label": settings.get("ignore_label"),
    }
    layer.emit("Accuracy", [x, _labels(layer, x, axis)], attributes)


def _emit(layer: Layer, kind: str, inputs: Sequence[Var], attributes: dict[str, Attribute]) -> None:
    loss = layer.emit(kind, inputs, {**attributes, "loss_weight": layer.loss_weight()})
    layer.scope.losses.append(loss.name)


def _scores(layer: Layer, settings: Node) -> tuple[Var, int]:
    x = layer.bottoms[0]
    return x, layer.axis(settings, "axis", 1, x)


def _labels(layer: Layer, x: Var, axis: int) -> Var:
    """The labels, with a dimension for each of x but that of the classes."""
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return _shaped(layer, layer.bottoms[1], shape)


def _shaped(layer: Layer, value: Var, shape: Sequence[int]) -> Var:
    """Caffe looks at the number of values only; a graph says what is meant."""
    shape = tuple(shape)
    if value.shape == shape or math.prod(value.shape) != math.prod(shape):
        return value
    same = bool(shape and value.shape) and shape[0] == value.shape[0]
    # Written as 0, the number of samples is free to change with the batch.
    wanted = (0, *shape[1:]) if same else shape
    return layer.step("Reshape", [value], {"shape": wanted}, label="target")


def _normalised(layer: Layer, default: str) -> dict[str, Attribute]:
    settings = layer.settings("loss_param")
    mode = default
    if "normalization" in settings:
        mode = _NORMALIZATIONS[settings.get("normalization")]
    elif "normalize" in settings:
        mode = "valid" if settings.get("normalize") else "batch"
    return {"ignore_label": settings.get("ignore_label"), "normalization": mode}
