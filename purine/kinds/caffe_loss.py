"""Losses that nets of Caffe use: of pairs, of weighted mistakes, of probabilities, and sums."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from purine.kinds.loss import Normalization, class_labels, divided, same_shape
from purine.registry.facts import Facts, Precision
from purine.registry.kind import kind

__all__ = ["ContrastiveLoss", "InfogainLoss", "MultinomialLogisticLoss", "SumLoss"]

_LEAST = 1e-20  # a probability, so that its logarithm is a number


@kind(loss=True, facts=Facts(Precision.WIDE))
def SumLoss(x: Tensor) -> Tensor:
    """The sum of all elements of x: any blob as a loss."""
    return x.sum()


@kind(loss=True, facts=Facts(Precision.WIDE))
def MultinomialLogisticLoss(probabilities: Tensor, label: Tensor) -> Tensor:
    """The mean of -log of the probability [N, K] of the label."""
    label = class_labels(probabilities, label, 1)
    chosen = probabilities.gather(1, label.unsqueeze(1))
    return -chosen.clamp(min=_LEAST).log().sum() / probabilities.shape[0]


@kind(loss=True, facts=Facts(Precision.WIDE))
def InfogainLoss(
    x: Tensor,
    label: Tensor,
    matrix: Tensor,
    *,
    axis: int = 1,
    ignore_label: int | None = None,
    normalization: Normalization = "valid",
) -> Tensor:
    """-log softmax(x), weighted by the label's row of a matrix of [K, K], and averaged."""
    label = class_labels(x, label, axis)
    classes = x.shape[axis]
    if matrix.numel() != classes * classes:
        raise ValueError(f"matrix has {list(matrix.shape)} values: {classes} classes need a square")
    scores = F.log_softmax(x, axis).movedim(axis, -1)
    counted = label if ignore_label is None else label.where(label != ignore_label, 0)
    losses = -(matrix.reshape(classes, classes)[counted] * scores).sum(-1)
    return divided(losses, label, ignore_label, normalization, tuple(x.shape[: axis % x.ndim]))


@kind(loss=True, facts=Facts(Precision.WIDE))
def ContrastiveLoss(
    x: Tensor, y: Tensor, similar: Tensor, *, margin: float = 1.0, legacy: bool = False
) -> Tensor:
    """Half the squared distance of similar pairs, and of others half that by which it is too small.

    `legacy` compares the margin with the squared distance and does not square the difference.
    """
    same_shape(x, y)
    square = (x - y).flatten(1).square().sum(1)
    alike = similar.reshape(-1).to(x.dtype)
    if legacy:
        apart = F.relu(margin - square)
    else:
        apart = F.relu(margin - square.clamp(min=_LEAST).sqrt()).square()
    return (alike * square + (1.0 - alike) * apart).sum() / (2 * x.shape[0])
