"""Norms as Caffe has them: batch norm without scale and shift, whose running sums a factor divides,
and the mean and variance of each sample.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from purine.registry.facts import Facts, Precision, SampleRule
from purine.registry.kind import kind

__all__ = ["MVN", "CaffeBatchNorm", "CaffeBatchNormAlways", "CaffeBatchNormTest"]

_LEAST = 1e-30  # a variance, so that its root has a gradient


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
    return (
        y,
        mean * fraction + centre,
        variance * fraction + spread,
        factor * fraction + 1.0,
    )


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
    return centred / (spread.clamp(min=_LEAST).sqrt() + eps)
