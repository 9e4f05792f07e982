"""What solvers do with a gradient, as kinds: one op makes the next value of one parameter.

Every kind is a pure function with the conventions of `torch.optim`, so a run can be compared with
torch number by number. A variant that writes over the weight and the solver's own states is
registered along with it; the gradient is left as it is. The learning rate is a float64 scalar and
everything else is computed in the weight's dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purine.kinds import update_in_place as over
from purine.kinds.update_each import adam_each, momentum_each
from purine.kinds.update_in_place import clip_factor, scaled, trust_ratio
from purine.registry.kind import kind

__all__ = [
    "AdaDeltaUpdate",
    "AdaGradUpdate",
    "AdamUpdate",
    "AddScaled",
    "ClipGradient",
    "GlobalNorm",
    "LarsUpdate",
    "MomentumUpdate",
    "RmsPropUpdate",
    "SgdUpdate",
]


@kind(overwrite=over.sgd, over=(0,))
def SgdUpdate(
    weight: Tensor,
    gradient: Tensor,
    lr: Tensor,
    *,
    weight_decay: float = 0.0,
    lr_mult: float = 1.0,
) -> Tensor:
    """A step against the gradient.

    >>> SgdUpdate(torch.ones(2), torch.tensor([1.0, -1.0]), torch.tensor(0.5).double())
    tensor([0.5000, 1.5000])
    """
    return weight - scaled(lr, lr_mult, weight) * _decayed(weight, gradient, weight_decay)


@kind(overwrite=over.momentum_sgd, over=(0, 2), many=over.momentum_sgds, each=momentum_each)
def MomentumUpdate(
    weight: Tensor,
    gradient: Tensor,
    velocity: Tensor,
    lr: Tensor,
    *,
    momentum: float,
    nesterov: bool = False,
    lr_in_momentum: bool = False,
    weight_decay: float = 0.0,
    lr_mult: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """A step against the velocity, a decaying sum of gradients; with `nesterov` one step ahead.

    `lr_in_momentum` sums gradients times their rates: a rate that falls then does not shorten the
    steps of gradients before it, as in Caffe.
    """
    gradient = _decayed(weight, gradient, weight_decay)
    if lr_in_momentum:
        gradient = scaled(lr, lr_mult, weight) * gradient
        velocity = momentum * velocity + gradient
        return weight - (gradient + momentum * velocity if nesterov else velocity), velocity
    velocity = momentum * velocity + gradient
    step = gradient + momentum * velocity if nesterov else velocity
    return weight - scaled(lr, lr_mult, weight) * step, velocity


@kind(overwrite=over.adagrad, over=(0, 2))
def AdaGradUpdate(
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
    gradient = _decayed(weight, gradient, weight_decay)
    total = total + gradient * gradient
    return weight - scaled(lr, lr_mult, weight) * (gradient / (total.sqrt() + eps)), total


@kind(overwrite=over.rmsprop, over=(0, 2))
def RmsPropUpdate(
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
    gradient = _decayed(weight, gradient, weight_decay)
    square = alpha * square + (1.0 - alpha) * gradient * gradient
    return weight - scaled(lr, lr_mult, weight) * (gradient / (square.sqrt() + eps)), square


@kind(overwrite=over.adadelta, over=(0, 2, 3))
def AdaDeltaUpdate(
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
    gradient = _decayed(weight, gradient, weight_decay)
    square = rho * square + (1.0 - rho) * gradient * gradient
    step = (delta + eps).sqrt() / (square + eps).sqrt() * gradient
    delta = rho * delta + (1.0 - rho) * step * step
    return weight - scaled(lr, lr_mult, weight) * step, square, delta


@kind(overwrite=over.adam, over=(0, 2, 3), many=over.adams, each=adam_each)
def AdamUpdate(
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

    Both means start at 0, which the number of the iteration corrects. `decoupled` lets the decay
    act on the weight alone and not pass through the means: AdamW. `correct_eps` adds eps before
    that correction, as Caffe does, and not after it.
    """
    rate = lr * lr_mult
    gradient = _decayed(weight, gradient, 0.0 if decoupled else weight_decay)
    if decoupled and weight_decay:
        weight = weight - scaled(rate * weight_decay, 1.0, weight) * weight
    count = (iteration + 1).double()
    mean = beta1 * mean + (1.0 - beta1) * gradient
    square = beta2 * square + (1.0 - beta2) * gradient * gradient
    correction = scaled(torch.rsqrt(1.0 - beta2**count), 1.0, weight)
    if correct_eps:
        step = mean / ((square.sqrt() + eps) * correction)
    else:
        step = mean / (square.sqrt() * correction + eps)
    return weight - scaled(rate / (1.0 - beta1**count), 1.0, weight) * step, mean, square


@kind(overwrite=over.lars, over=(0, 2))
def LarsUpdate(
    weight: Tensor,
    gradient: Tensor,
    velocity: Tensor,
    lr: Tensor,
    *,
    momentum: float = 0.9,
    eta: float = 0.001,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    lr_mult: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """As Momentum, with each gradient scaled to a length that suits that of the weight."""
    gradient = gradient.to(weight.dtype)
    ratio = trust_ratio(weight, gradient, eta=eta, eps=eps, weight_decay=weight_decay)
    velocity = momentum * velocity + ratio * _decayed(weight, gradient, weight_decay)
    return weight - scaled(lr, lr_mult, weight) * velocity, velocity


@kind
def GlobalNorm(*gradients: Tensor) -> Tensor:
    """The norm of all gradients taken as one long vector, a float64 scalar.

    >>> GlobalNorm(torch.tensor([3.0]), torch.tensor([[4.0]]))
    tensor(5., dtype=torch.float64)
    """
    norms = [torch.linalg.vector_norm(gradient).double() for gradient in gradients]
    return torch.linalg.vector_norm(torch.stack(norms))


@kind(overwrite=over.clip, over=(0,))
def ClipGradient(gradient: Tensor, norm: Tensor, *, max_norm: float, eps: float = 1e-6) -> Tensor:
    """The gradient, scaled down where the norm of all gradients is above `max_norm`."""
    return gradient * clip_factor(gradient, norm, max_norm=max_norm, eps=eps)


@kind(overwrite=over.add_scaled, over=(0,))
def AddScaled(total: Tensor, part: Tensor, *, scale: float = 1.0) -> Tensor:
    """(total + part) * scale: one more part of a sum, or with a scale the last of a mean."""
    return total + part if scale == 1.0 else (total + part) * scale


def _decayed(weight: Tensor, gradient: Tensor, weight_decay: float) -> Tensor:
    """The gradient in the weight's dtype, with that of the decay added."""
    gradient = gradient.to(weight.dtype)
    return gradient + weight_decay * weight if weight_decay else gradient
