"""Kinds of `kinds.update` once more, for many parameters in one call and without overwriting.

They compute what the kinds compute for one parameter each. They consist of calls on lists, which a
compiler turns into a few kernels for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["adam_each", "momentum_each"]

_Lists = tuple[Sequence[Tensor], ...]


def momentum_each(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    velocities: Sequence[Tensor],
    rates: Sequence[Tensor],
    *,
    momentum: float,
    nesterov: bool = False,
    lr_in_momentum: bool = False,
    weight_decay: float = 0.0,
    lr_mult: float = 1.0,
) -> _Lists:
    rate = _scalar(rates[0] * lr_mult, weights)
    gradients = _decayed(weights, gradients, weight_decay)
    if lr_in_momentum:
        gradients = torch._foreach_mul(gradients, rate)
    velocities = torch._foreach_add(torch._foreach_mul(velocities, momentum), gradients)
    steps = velocities
    if nesterov:
        steps = torch._foreach_add(gradients, torch._foreach_mul(velocities, momentum))
    if not lr_in_momentum:
        steps = torch._foreach_mul(steps, rate)
    return torch._foreach_sub(weights, steps), velocities


def adam_each(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    rates: Sequence[Tensor],
    iterations: Sequence[Tensor],
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    correct_eps: bool = False,
    lr_mult: float = 1.0,
) -> _Lists:
    rate, count = rates[0] * lr_mult, (iterations[0] + 1).double()
    gradients = _decayed(weights, gradients, 0.0 if decoupled else weight_decay)
    if decoupled and weight_decay:
        lost = torch._foreach_mul(weights, _scalar(rate * weight_decay, weights))
        weights = torch._foreach_sub(weights, lost)
    means = _mean(means, gradients, beta1)
    squares = _mean(squares, torch._foreach_mul(gradients, gradients), beta2)
    correction = _scalar(torch.rsqrt(1.0 - beta2**count), weights)
    roots = torch._foreach_sqrt(squares)
    if correct_eps:
        roots = torch._foreach_mul(torch._foreach_add(roots, eps), correction)
    else:
        roots = torch._foreach_add(torch._foreach_mul(roots, correction), eps)
    steps = torch._foreach_div(means, roots)
    steps = torch._foreach_mul(steps, _scalar(rate / (1.0 - beta1**count), weights))
    return torch._foreach_sub(weights, steps), means, squares


def _mean(means: Sequence[Tensor], values: Sequence[Tensor], beta: float) -> Sequence[Tensor]:
    """Decaying means with one value more."""
    new, kept = torch._foreach_mul(values, 1.0 - beta), torch._foreach_mul(means, beta)
    return list(torch._foreach_add(kept, new))


def _scalar(value: Tensor, weights: Sequence[Tensor]) -> Tensor:
    return value.to(weights[0].dtype)


def _decayed(
    weights: Sequence[Tensor], gradients: Sequence[Tensor], weight_decay: float
) -> Sequence[Tensor]:
    """The gradients in the dtype of the weights, with that of the decay added."""
    wide = [gradient.to(weight.dtype) for weight, gradient in zip(weights, gradients, strict=True)]
    if not weight_decay:
        return wide
    return list(torch._foreach_add(wide, torch._foreach_mul(weights, weight_decay)))
