"""Updates of solvers that give each element a step of its own size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from purine.kinds.update._arithmetic import Arithmetic, Term
from purine.kinds.update._declare import update
from purine.kinds.update.sgd import decayed, rate_of

__all__ = ["AdaDeltaUpdate", "AdaGradUpdate", "AdamUpdate", "RmsPropUpdate"]


def _fused_adagrad(*lists: list[Tensor], **settings: Any) -> bool:
    weights, gradients, totals = lists
    steps = [torch.ones(())] * len(weights)
    settings |= {"lr_decay": 0.0, "maximize": False}
    torch._fused_adagrad_(weights, gradients, totals, steps, **settings)
    return True


@update(slots=1, fused=_fused_adagrad)
def AdaGradUpdate(
    ops: Arithmetic,
    weight: Tensor,
    gradient: Tensor,
    total: Tensor,
    lr: Tensor,
    *,
    eps: float = 1e-10,
    weight_decay: float = 0.0,
    lr_mult: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """A step divided by the root of the sum of all squared gradients."""
    gradient = ops.total(decayed(ops, weight, gradient, weight_decay))
    total = ops.add_square(total, gradient)
    step = ops.divide(gradient, ops.add(ops.root(total), eps))
    rate = ops.scalar(rate_of(lr, lr_mult), weight)
    return ops.descend(weight, [Term(step)], rate), total


@update(slots=1)
def RmsPropUpdate(
    ops: Arithmetic,
    weight: Tensor,
    gradient: Tensor,
    square: Tensor,
    lr: Tensor,
    *,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    lr_mult: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """A step divided by the root of a decaying mean of squared gradients."""
    gradient = ops.total(decayed(ops, weight, gradient, weight_decay))
    square = ops.mean_square(square, gradient, alpha)
    step = ops.divide(gradient, ops.add(ops.root(square), eps))
    rate = ops.scalar(rate_of(lr, lr_mult), weight)
    return ops.descend(weight, [Term(step)], rate), square


@update(slots=2)
def AdaDeltaUpdate(
    ops: Arithmetic,
    weight: Tensor,
    gradient: Tensor,
    square: Tensor,
    delta: Tensor,
    lr: Tensor,
    *,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    lr_mult: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """As RmsProp, with steps also scaled by the root of a decaying mean of squared steps."""
    gradient = ops.total(decayed(ops, weight, gradient, weight_decay))
    square = ops.mean_square(square, gradient, rho)
    ratio = ops.divide(ops.root(delta, eps=eps), ops.root(square, eps=eps))
    step = ops.multiply(ratio, gradient)
    delta = ops.mean_square(delta, step, rho)
    rate = ops.scalar(rate_of(lr, lr_mult), weight)
    return ops.descend(weight, [Term(step)], rate), square, delta


def _fused_adam(
    *lists: list[Tensor], iteration: Tensor, decoupled: bool, correct_eps: bool, **settings: Any
) -> bool:
    if correct_eps:
        return False
    fused = torch._fused_adamw_ if decoupled else torch._fused_adam_
    weights, gradients, means, squares = lists
    steps = [(iteration + 1).float()] * len(weights)
    settings |= {"amsgrad": False, "maximize": False}
    fused(weights, gradients, means, squares, [], steps, **settings)
    return True


@update(slots=2, fused=_fused_adam, many=True)
def AdamUpdate(
    ops: Arithmetic,
    weight: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    lr: Tensor,
    iteration: Tensor,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    correct_eps: bool = False,
    lr_mult: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """A step along the mean gradient, divided by the root of the mean squared gradient.

    Both means start at 0; the number of the iteration corrects this bias. `decoupled` applies the
    weight decay to the weight alone, as AdamW does. `correct_eps` adds eps before the correction,
    as Caffe does.
    """
    rate = rate_of(lr, lr_mult)
    count = (iteration + 1).double()
    if decoupled and weight_decay:
        weight = ops.shrink(weight, rate, weight_decay)
    gradient = ops.total(decayed(ops, weight, gradient, 0.0 if decoupled else weight_decay))
    mean = ops.mean(mean, gradient, beta1)
    square = ops.mean_square(square, gradient, beta2)
    correction = ops.scalar(torch.rsqrt(1.0 - beta2**count), weight)
    if correct_eps:
        divisor = ops.multiply(ops.add(ops.root(square), eps), correction)
    else:
        divisor = ops.add(ops.multiply(ops.root(square), correction), eps)
    step = ops.divide(mean, divisor)
    rate = ops.scalar(rate / (1.0 - beta1**count), weight)
    return ops.descend(weight, [Term(step)], rate), mean, square
