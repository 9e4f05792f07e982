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
    _softmax_loss(layer, "SoftmaxLoss", layer.settings("softmax_param"))


def infogain_loss(layer: Layer) -> None:
    settings = layer.settings("infogain_loss_param")
    if len(layer.bottoms) < 3:
        raise layer.unsupported("a matrix in a file", settings, "source")
    _softmax_loss(layer, "InfogainLoss", settings)


def multinomial_logistic_loss(layer: Layer) -> None:
    _emit(layer, "MultinomialLogisticLoss", _scores_and_labels(layer, 1))


def hinge_loss(layer: Layer) -> None:
    norm = 2 if layer.settings("hinge_loss_param").get("norm", "L1") == "L2" else 1
    _emit(layer, "HingeLoss", _scores_and_labels(layer, 1), norm=norm)


def euclidean_loss(layer: Layer) -> None:
    x, target = layer.bottoms
    _emit(layer, "EuclideanLoss", [x, _shaped(layer, target, x.shape)])


def sigmoid_cross_entropy_loss(layer: Layer) -> None:
    x, target = layer.bottoms
    inputs = [x, _shaped(layer, target, x.shape)]
    _emit(layer, "SigmoidCrossEntropyLoss", inputs, **_normalised(layer, "batch"))


def contrastive_loss(layer: Layer) -> None:
    settings = layer.settings("contrastive_loss_param")
    margin, legacy = settings.get("margin", 1.0), settings.get("legacy_version", False)
    _emit(layer, "ContrastiveLoss", layer.bottoms, margin=margin, legacy=legacy)


def accuracy(layer: Layer) -> None:
    settings = layer.settings("accuracy_param")
    axis, ignored = layer.axis(settings), settings.get("ignore_label")
    top_k, inputs = settings.positive("top_k", 1), _scores_and_labels(layer, axis)
    layer.emit("Accuracy", inputs, top_k=top_k, axis=axis, ignore_label=ignored)


def _softmax_loss(layer: Layer, kind: str, settings: Node) -> None:
    """A loss of the softmax of the first bottom, which a second top gives."""
    axis = layer.axis(settings)
    inputs = [*_scores_and_labels(layer, axis), *layer.bottoms[2:]]
    _emit(layer, kind, inputs, axis=axis, **_normalised(layer, "valid"))
    if len(layer.tops) > 1:
        layer.emit("Softmax", inputs[:1], axis=axis)


def _emit(layer: Layer, kind: str, inputs: Sequence[Var], **attributes: Attribute) -> None:
    weight = float([*layer.node.all("loss_weight"), 1.0][0])
    loss = layer.emit(kind, inputs, **attributes, loss_weight=weight)
    layer.scope.losses.append(loss.name)


def _scores_and_labels(layer: Layer, axis: int) -> list[Var]:
    """The first two bottoms; labels have a dimension for each of the scores but that of classes."""
    x, labels = layer.bottoms[:2]
    return [x, _shaped(layer, labels, (*x.shape[:axis], *x.shape[axis + 1 :]))]


def _shaped(layer: Layer, value: Var, shape: Sequence[int]) -> Var:
    """Caffe looks at the number of values only; a graph says what is meant."""
    shape = tuple(shape)
    if value.shape == shape or math.prod(value.shape) != math.prod(shape):
        return value
    same = bool(shape and value.shape) and shape[0] == value.shape[0]
    # Written as 0, the number of samples is free to change with the batch.
    return layer.step("target", "Reshape", [value], shape=(0, *shape[1:]) if same else shape)


def _normalised(layer: Layer, default: str) -> dict[str, Attribute]:
    settings = layer.settings("loss_param")
    mode = default
    if "normalization" in settings:
        mode = _NORMALIZATIONS[settings.get("normalization")]
    elif "normalize" in settings:
        mode = "valid" if settings.get("normalize") else "batch"
    return {"ignore_label": settings.get("ignore_label"), "normalization": mode}
