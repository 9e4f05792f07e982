"""Batch norm over samples on several devices, in steps.

Each device computes the statistics of its samples (`BatchNormStatistics`), one device combines them
(`CombineStatistics`), and each normalises its samples with the result (`BatchNormTest`). Backward:
sums on each device (`BatchNormSums`), combined, then gradients (`BatchNormGradient`). Statistics
and sums of samples in low precision are float32. These kinds have no gradient.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from purine.registry.kind import kind


@kind
def BatchNormStatistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the variance (divided by the count) of each channel of x [N, C, ...].

    >>> BatchNormStatistics(torch.tensor([[1.0], [3.0]]))
    (tensor([2.]), tensor([1.]))
    """
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    mean, variance = torch.batch_norm_update_stats(wide, None, None, 0.0)
    return mean, variance


@kind
def CombineStatistics(
    mean: Tensor, variance: Tensor, *parts: Tensor, counts: tuple[int, ...], momentum: float = 0.1
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The statistics of all samples from those of each part, and the next running ones.

    `mean` and `variance` are the running statistics. `parts` are the mean and variance of each
    part in turn, and `counts` says of how many values. The running variance divides by one less.

    >>> zero, one = torch.zeros(1), torch.ones(1)
    >>> CombineStatistics(zero, one, zero, zero, one, zero, counts=(1, 1), momentum=1.0)
    (tensor([0.5000]), tensor([0.2500]), tensor([0.5000]), tensor([0.5000]))
    """
    if len(parts) != 2 * len(counts) or not counts:
        raise ValueError(f"{len(parts)} statistics are not those of {len(counts)} parts")
    total = sum(counts)
    means, variances = torch.stack(parts[::2]), torch.stack(parts[1::2])
    each = [[count / total] for count in counts]
    shares = torch.tensor(each, dtype=means.dtype, device=means.device)
    centre = (means * shares).sum(0)
    spread = ((variances + (means - centre).square_()) * shares).sum(0)
    unbiased = spread * (total / max(total - 1, 1))
    return (
        centre,
        spread,
        mean * (1.0 - momentum) + centre.to(mean.dtype) * momentum,
        variance * (1.0 - momentum) + unbiased.to(variance.dtype) * momentum,
    )


@kind
def BatchNormSums(
    gradient: Tensor, x: Tensor, mean: Tensor, variance: Tensor, *, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """By channel the sums of gradient times normalised x, and of gradient (for scale and shift)."""
    scale = None if x.dtype == mean.dtype else torch.ones_like(mean)  # gives the sums its dtype
    _, weight, bias = torch.ops.aten.native_batch_norm_backward(
        *(gradient, x, scale, mean, variance, None, None, False, eps, [False, True, True])
    )
    return weight, bias


@kind
def BatchNormGradient(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight_sum: Tensor,
    bias_sum: Tensor,
    *,
    eps: float = 1e-5,
) -> Tensor:
    """The gradient of x, given the sums of the whole batch as a share of this size has them."""
    count = x.numel() // x.shape[1]
    slope = weight * torch.rsqrt(variance + eps)
    per_value = slope / -count
    result = F.batch_norm(x, mean, variance, per_value * weight_sum, per_value * bias_sum, eps=eps)
    return result.addcmul_(gradient, slope.reshape(-1, *(1,) * (x.ndim - 2)))
