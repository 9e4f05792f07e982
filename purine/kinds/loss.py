"""Losses and measures of a batch.

A loss is a mean over the samples of its batch, so the mean of the losses of equal parts of a batch
is the loss of the whole (unless labels are ignored: the mean is then over those that count).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from purine.analysis.shapes import axis_of, checked_axis
from purine.arguments import checked
from purine.graph import Attribute
from purine.kinds.net import Var
from purine.registry.facts import Facts, Precision, SampleRule, ShardRule, with_labels
from purine.registry.kind import kind
from purine.registry.spec import Settings, Shape, Shapes

__all__ = [
    "accuracy",
    "euclidean_loss",
    "hinge_loss",
    "sigmoid_cross_entropy_loss",
    "softmax",
    "softmax_loss",
]

Norm = Literal[1, 2]
Normalization = Literal["valid", "full", "batch", "none"]
"""What a sum of losses is divided by: labels that count, all labels, samples, or nothing."""

# No label has this value; torch's own default would ignore the label -100 silently.
_NO_LABEL = -(2**63)


def _softmax_shape(settings: Settings, shapes: Shapes) -> Shape | None:
    (x,) = shapes
    return None if axis_of(settings["axis"], x) is None else x


def _labels_shape(settings: Settings, shapes: Shapes) -> Shape | None:
    x, labels = shapes
    axis = axis_of(settings["axis"], x)
    if axis is None or len(x) < 2 or labels != (*x[:axis], *x[axis + 1 :]):
        return None
    return () if 1 <= settings.get("top_k", 1) <= x[axis] else None


_LABELS = Facts(Precision.WIDE, samples=SampleRule.LABELS, shape=_labels_shape, dtypes=with_labels)


@kind(facts=Facts(Precision.WIDE, ShardRule.ALONG_AXIS, SampleRule.ROWS, shape=_softmax_shape))
def Softmax(x: Tensor, *, axis: int = 1) -> Tensor:
    """exp(x), scaled to sum to 1 along `axis`."""
    checked_axis(x, axis)
    return F.softmax(x, axis)


@kind(loss=True, facts=_LABELS)
def SoftmaxLoss(
    x: Tensor,
    label: Tensor,
    *,
    axis: int = 1,
    ignore_label: int | None = None,
    normalization: Normalization = "valid",
) -> Tensor:
    """The mean of -log softmax(x) at the label, over all labels but `ignore_label`.

    x has its classes along `axis`; label has the shape of x without that dimension.
    """
    label = class_labels(x, label, axis)
    before = x.shape[: axis % x.ndim]
    if axis % x.ndim == x.ndim - 1:
        x, label = x.flatten(0, -2), label.flatten()
    else:
        x = x.movedim(axis, 1)
    if ignore_label is None and normalization in ("valid", "full"):
        return F.cross_entropy(x, label, ignore_index=_NO_LABEL)
    ignored = _NO_LABEL if ignore_label is None else ignore_label
    total = F.cross_entropy(x, label, ignore_index=ignored, reduction="sum")
    return divided(total, label, ignore_label, normalization, before)


@kind(loss=True, facts=Facts(Precision.WIDE))
def SigmoidCrossEntropyLoss(
    x: Tensor,
    target: Tensor,
    *,
    ignore_label: int | None = None,
    normalization: Normalization = "batch",
) -> Tensor:
    """The cross entropy of sigmoid(x) and targets between 0 and 1, summed, per sample."""
    real = target.to(x.dtype)
    if ignore_label is None and normalization == "batch":
        return F.binary_cross_entropy_with_logits(x, real, reduction="sum") / x.shape[0]
    losses = F.binary_cross_entropy_with_logits(x, real, reduction="none")
    if ignore_label is not None:
        losses = losses * (target != ignore_label)
    return divided(losses.sum(), target, ignore_label, normalization, x.shape[:1])


@kind(loss=True, facts=Facts(Precision.WIDE))
def EuclideanLoss(x: Tensor, target: Tensor) -> Tensor:
    """Half of the squared distance of x and target, per sample."""
    same_shape(x, target)
    difference = x - target
    return (difference * difference).sum() / (2 * x.shape[0])


@kind(loss=True, facts=Facts(Precision.WIDE))
def HingeLoss(x: Tensor, label: Tensor, *, norm: Norm = 1) -> Tensor:
    """The one-against-all hinge loss of scores [N, K], per sample.

    Every score should be at least 1 at the label and at most -1 elsewhere; what is missing is
    summed (`norm` 1), or its square is (2).
    """
    label = class_labels(x, label, 1)
    signs = torch.ones_like(x).scatter(1, label.unsqueeze(1), -1.0)
    missing = F.relu(1 + signs * x)
    if norm == 2:
        missing = missing * missing
    return missing.sum() / x.shape[0]


@kind(loss=True, facts=Facts(Precision.WIDE))
def ScalarLoss(x: Tensor) -> Tensor:
    """A scalar as a loss."""
    if x.ndim != 0:
        raise ValueError(f"x has shape {list(x.shape)}: a loss is a scalar")
    return x.clone()


@kind(facts=_LABELS)
def Accuracy(
    x: Tensor,
    label: Tensor,
    *,
    top_k: int = 1,
    axis: int = 1,
    ignore_label: int | None = None,
    normalization: Literal["valid", "none"] = "valid",
) -> Tensor:
    """The share of labels that are among the `top_k` greatest scores along `axis`.

    Their number, without `normalization`.
    """
    label = class_labels(x, label, axis)
    if not 1 <= top_k <= x.shape[axis]:
        raise ValueError(f"top_k is {top_k}, but there are {x.shape[axis]} classes")
    best = x.detach().topk(top_k, axis).indices
    correct = (best == label.unsqueeze(axis)).any(axis)
    counts = torch.ones_like(correct) if ignore_label is None else label != ignore_label
    hits = (correct & counts).sum().to(x.dtype)
    return hits if normalization == "none" else hits / counts.sum().clamp(min=1)


@checked
def softmax(x: Var, *, axis: int = 1, name: str | None = None) -> Var:
    """A softmax layer."""
    return x.net.apply("Softmax", [x], {"axis": axis}, name=name)


@checked
def softmax_loss(
    x: Var,
    label: Var,
    *,
    axis: int = 1,
    ignore_label: int | None = None,
    loss_weight: float = 1.0,
    name: str | None = None,
) -> Var:
    """The softmax loss of scores and labels.

    >>> from purine.kinds import Net
    >>> net = Net()
    >>> softmax_loss(net.input("x", (8, 10)), net.input("label", (8,), "int64")).shape
    ()
    """
    settings = {"axis": axis, "ignore_label": ignore_label, "loss_weight": loss_weight}
    return x.net.apply("SoftmaxLoss", [x, label], settings, name=name or "softmax_loss")


@checked
def sigmoid_cross_entropy_loss(
    x: Var, target: Var, *, loss_weight: float = 1.0, name: str | None = None
) -> Var:
    """The cross entropy loss of independent yes-or-no targets."""
    name = name or "sigmoid_cross_entropy_loss"
    settings = {"loss_weight": loss_weight}
    return x.net.apply("SigmoidCrossEntropyLoss", [x, target], settings, name=name)


@checked
def euclidean_loss(
    x: Var, target: Var, *, loss_weight: float = 1.0, name: str | None = None
) -> Var:
    """The Euclidean loss of values and targets."""
    settings = {"loss_weight": loss_weight}
    return x.net.apply("EuclideanLoss", [x, target], settings, name=name or "euclidean_loss")


@checked
def hinge_loss(
    x: Var, label: Var, *, norm: Norm = 1, loss_weight: float = 1.0, name: str | None = None
) -> Var:
    """The one-against-all hinge loss of scores and labels."""
    settings: dict[str, Attribute] = {"norm": norm, "loss_weight": loss_weight}
    return x.net.apply("HingeLoss", [x, label], settings, name=name or "hinge_loss")


@checked
def accuracy(
    x: Var,
    label: Var,
    *,
    top_k: int = 1,
    axis: int = 1,
    ignore_label: int | None = None,
    name: str | None = None,
) -> Var:
    """The share of labels that are among the greatest scores."""
    settings: dict[str, Attribute] = {"top_k": top_k, "axis": axis, "ignore_label": ignore_label}
    return x.net.apply("Accuracy", [x, label], settings, name=name)


def divided(
    total: Tensor,
    label: Tensor,
    ignore_label: int | None,
    normalization: Normalization,
    before: tuple[int, ...],
) -> Tensor:
    """A sum of losses, divided as asked; the dimensions `before` the classes count as samples."""
    if normalization == "none":
        return total
    if normalization == "batch":
        return total / max(math.prod(before), 1)
    if normalization == "full" or ignore_label is None:
        return total / max(label.numel(), 1)
    return total / (label != ignore_label).sum().clamp(min=1)


def class_labels(x: Tensor, label: Tensor, axis: int) -> Tensor:
    """The labels as int64, if they are one whole number for each row of scores."""
    axis = checked_axis(x, axis)
    expected = [*x.shape[:axis], *x.shape[axis + 1 :]]
    if list(label.shape) != expected:
        raise ValueError(f"label has shape {list(label.shape)}: scores like x need {expected}")
    if label.dtype.is_floating_point:
        raise ValueError(f"label is of {label.dtype}: labels are whole numbers")
    return label.long()


def same_shape(x: Tensor, target: Tensor) -> None:
    if x.shape != target.shape:
        raise ValueError(f"x has shape {list(x.shape)}, target has {list(target.shape)}")
