"""Updates of solvers that give each element a step of its own size."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from purine.kinds.update._arithmetic import Term
from purine.kinds.update._declare import Step, update

__all__ = ["AdaDeltaUpdate", "AdaGradUpdate", "AdamUpdate", "RmsPropUpdate"]


def _fused_adagrad(*lists: list[Tensor], lr: float, weight_decay: float, eps: float) -> bool:
    weights, gradients, totals = lists
    steps, fused = [torch.ones(())] * len(weights), torch._fused_adagrad_
    plain = partial(fused, weights, gradients, totals, steps, lr_decay=0.0, maximize=False)
    plain(lr=lr, weight_decay=weight_decay, eps=eps)
    return True


@update(slots=1, fused=_fused_adagrad)
def AdaGradUpdate(step: Step, total: Tensor, *, eps: float = 1e-10) -> tuple[Tensor, Tensor]:
    """A step divided by the root of the sum of all squared gradients."""
    ops, gradient = step.ops, step.ops.total(step.terms)
    total = ops.add_square(total, gradient)
    scaled = ops.divide(gradient, ops.add(ops.root(total), eps))
    return step.descend([Term(scaled)]), total


@update(slots=1)
def RmsPropUpdate(
    step: Step, square: Tensor, *, alpha: float = 0.99, eps: float = 1e-8
) -> tuple[Tensor, Tensor]:
    """A step divided by the root of a decaying mean of squared gradients."""
    ops, gradient = step.ops, step.ops.total(step.terms)
    square = ops.mean_square(square, gradient, alpha)
    scaled = ops.divide(gradient, ops.add(ops.root(square), eps))
    return step.descend([Term(scaled)]), square


@update(slots=2)
def AdaDeltaUpdate(
    step: Step, square: Tensor, delta: Tensor, *, rho: float = 0.9, eps: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """As RmsProp, with steps also scaled by the root of a decaying mean of squared steps."""
    ops, gradient = step.ops, step.ops.total(step.terms)
    square = ops.mean_square(square, gradient, rho)
    ratio = ops.divide(ops.root(delta, eps=eps), ops.root(square, eps=eps))
    scaled = ops.multiply(ratio, gradient)
    delta = ops.mean_square(delta, scaled, rho)
    return step.descend([Term(scaled)]), square, delta


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
    step: Step,
    mean: Tensor,
    square: Tensor,
    iteration: Tensor,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    decoupled: bool = False,
    correct_eps: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """A step along the mean gradient, divided by the root of the mean squared gradient.

    Both means start at 0; the number of the iteration corrects this bias. `decoupled` applies the
    weight decay to the weight alone, as AdamW does. `correct_eps` adds eps before the correction,
    as Caffe does.
    """
    ops, weight, count = step.ops, step.weight, (iteration + 1).double()
    if decoupled and step.weight_decay:
        weight = ops.shrink(weight, step.lr, step.weight_decay)
    gradient = ops.total(step.terms[:1] if decoupled else step.terms)
    mean = ops.mean(mean, gradient, beta1)
    square = ops.mean_square(square, gradient, beta2)
    correction = ops.scalar(torch.rsqrt(1.0 - beta2**count), weight)
    if correct_eps:
        divisor = ops.multiply(ops.add(ops.root(square), eps), correction)
    else:
        divisor = ops.add(ops.multiply(ops.root(square), correction), eps)
    rate = ops.scalar(step.lr / (1.0 - beta1**count), weight)
    return ops.descend(weight, [Term(ops.divide(mean, divisor))], rate), mean, square
