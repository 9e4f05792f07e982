"""Kinds that only nets of Caffe have: losses, norms, reductions and recurrent layers.

Recurrent layers have time first, [T, N, ...]. An op of its own computes what all steps get from
their inputs; the kinds here compute what depends on the step before. `go_on` [T, N] is 0 where a
sequence begins, which resets the state of that stream. The last results are the final states.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from purine.analysis.shapes import checked_axis
from purine.kinds.loss import Normalization, class_labels, divided, same_shape
from purine.registry.facts import Facts, Precision, SampleRule
from purine.registry.kind import kind

_LEAST_PROBABILITY = 1e-20
"""Smaller ones would have an infinite logarithm."""
_LEAST_VARIANCE = 1e-30
"""The root of smaller ones would have an infinite gradient."""
_STEPS = 4096
"""Most steps in time: each becomes several ops, so more would take too long to trace."""


@kind(loss=True, facts=Facts(Precision.WIDE))
def SumLoss(x: Tensor) -> Tensor:
    """The sum of all elements of x: any blob as a loss."""
    return x.sum()


@kind(loss=True, facts=Facts(Precision.WIDE))
def MultinomialLogisticLoss(probabilities: Tensor, label: Tensor) -> Tensor:
    """The mean of -log of the probability [N, K] of the label."""
    label = class_labels(probabilities, label, 1)
    chosen = probabilities.gather(1, label.unsqueeze(1))
    return -chosen.clamp(min=_LEAST_PROBABILITY).log().sum() / probabilities.shape[0]


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
    if ignore_label is not None:
        losses = losses * (label != ignore_label)
    return divided(losses.sum(), label, ignore_label, normalization, x.shape[: axis % x.ndim])


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
        apart = F.relu(margin - square.clamp(min=_LEAST_PROBABILITY).sqrt()).square()
    return (alike * square + (1.0 - alike) * apart).sum() / (2 * x.shape[0])


@kind(evaluation="CaffeBatchNormTest", facts=Facts(Precision.WIDE, samples=SampleRule.BATCH_NORM))
def CaffeBatchNorm(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    factor: Tensor,
    *,
    fraction: float = 0.999,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalise over the batch; the results are y and the three sums carried on.

    Each sum is `fraction` of the one before plus this batch's; `factor` sums ones, so that a sum
    divided by it is an average.
    """
    y = F.batch_norm(x, None, None, None, None, True, 0.0, eps)
    channels = [dim for dim in range(x.ndim) if dim != 1]
    unbiased = 1 if x.numel() > x.shape[1] else 0
    spread, centre = torch.var_mean(x.detach(), channels, correction=unbiased)
    return (y, mean * fraction + centre, variance * fraction + spread, factor * fraction + 1.0)


@kind(facts=Facts(Precision.WIDE, samples=SampleRule.ROWS))
def CaffeBatchNormTest(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    factor: Tensor,
    *,
    fraction: float = 0.999,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise with the running averages; all are 0 while nothing has been summed."""
    share = torch.where(factor == 0, torch.zeros_like(factor), 1.0 / factor)
    return F.batch_norm(x, mean * share, variance * share, None, None, False, 0.0, eps)


@kind(facts=Facts(Precision.WIDE, samples=SampleRule.BATCH_NORM))
def CaffeBatchNormAlways(x: Tensor, *, eps: float = 1e-5) -> Tensor:
    """Normalise over the batch, at test time too, and remember nothing."""
    return F.batch_norm(x, None, None, None, None, True, 0.0, eps)


@kind(facts=Facts(Precision.WIDE, samples=SampleRule.ROWS))
def MVN(x: Tensor, *, variance: bool = True, across: bool = False, eps: float = 1e-9) -> Tensor:
    """x less its mean over each channel of each sample, divided by the deviation plus `eps`.

    `across` takes all channels of a sample together; without `variance` nothing is divided.
    """
    if x.ndim < 2:
        raise ValueError(f"x has {x.ndim} dimensions: at least [N, C]")
    dims = list(range(1 if across else min(2, x.ndim - 1), x.ndim))
    centred = x - x.mean(dims, keepdim=True)
    if not variance:
        return centred
    spread = centred.square().mean(dims, keepdim=True)
    return centred / (spread.clamp(min=_LEAST_VARIANCE).sqrt() + eps)


@kind(facts=Facts(Precision.WIDE))
def Reduction(
    x: Tensor,
    *,
    operation: Literal["sum", "absolute", "square", "mean"] = "sum",
    axis: int = 0,
    coefficient: float = 1.0,
) -> Tensor:
    """The sum over all dimensions from `axis` on, of x, |x| or x squared, or the mean of x."""
    flat = x.flatten(checked_axis(x, axis))
    if operation == "mean":
        reduced = flat.mean(-1)
    elif operation == "sum":
        reduced = flat.sum(-1)
    else:
        reduced = (flat.abs() if operation == "absolute" else flat * flat).sum(-1)
    return reduced if coefficient == 1.0 else reduced * coefficient


@kind(facts=Facts(Precision.WIDE))
def ArgMax(x: Tensor, *, top_k: int = 1, axis: int | None = None, values: bool = False) -> Tensor:
    """The indices of the `top_k` greatest values of each sample, in the dtype of x.

    With an `axis`, the indices along it, or with `values` the values there. Without one the result
    is [N, 1, top_k], or with `values` indices and values, [N, 2, top_k].
    """
    if axis is not None:
        best = x.detach().topk(top_k, axis)
        return best.values if values else best.indices.to(x.dtype)
    best = x.detach().flatten(1).topk(top_k, 1)
    indices = best.indices.to(x.dtype)
    return torch.stack([indices, best.values] if values else [indices], 1)


@kind(facts=Facts(Precision.WIDE))
def CaffeLstm(
    x: Tensor, go_on: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Long short-term memory over x [T, N, 4 D], the gates' inputs in the order i, f, o, g.

    `weight` is [4 D, D], `hidden` and `cell` are [1, N, D]; the results are the outputs [T, N, D],
    the last hidden state and the last cell.
    """
    keep = _keep(x, go_on)
    size = _size(x, weight, 4, hidden, cell)
    h, c, outputs = hidden[0], cell[0], []
    for step in range(x.shape[0]):
        gates = x[step] + F.linear(keep[step] * h, weight)
        inner, forget, out, new = torch.split(gates, size, 1)
        c = keep[step] * torch.sigmoid(forget) * c + torch.sigmoid(inner) * torch.tanh(new)
        h = torch.sigmoid(out) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs), h.unsqueeze(0).clone(), c.unsqueeze(0).clone()


@kind(facts=Facts(Precision.WIDE))
def CaffeRnn(x: Tensor, go_on: Tensor, weight: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """tanh(x + weight h) of each step of x [T, N, D], where h is the result of the step before.

    `weight` is [D, D], `hidden` is [1, N, D]; the results are all h, and the last one by itself.
    """
    keep = _keep(x, go_on)
    _size(x, weight, 1, hidden)
    h, outputs = hidden[0], []
    for step in range(x.shape[0]):
        h = torch.tanh(x[step] + F.linear(keep[step] * h, weight))
        outputs.append(h)
    return torch.stack(outputs), h.unsqueeze(0).clone()


def _keep(x: Tensor, go_on: Tensor) -> Tensor:
    if x.ndim != 3 or tuple(go_on.shape) != tuple(x.shape[:2]):
        raise ValueError(f"go_on has shape {list(go_on.shape)}: x of {list(x.shape)} is [T, N, ..]")
    if x.shape[0] > _STEPS:
        raise ValueError(f"x has {x.shape[0]} steps in time: at most {_STEPS} can be unrolled")
    return go_on.to(x.dtype).unsqueeze(2)


def _size(x: Tensor, weight: Tensor, gates: int, *states: Tensor) -> int:
    """The size of the hidden state, if everything agrees on it."""
    size = int(x.shape[2]) // gates
    if tuple(weight.shape) != (x.shape[2], size):
        raise ValueError(f"weight has shape {list(weight.shape)}: x has {list(x.shape)}")
    for state in states:
        if tuple(state.shape) != (1, x.shape[1], size):
            raise ValueError(f"a state has shape {list(state.shape)}: [1, {x.shape[1]}, {size}]")
    return size
