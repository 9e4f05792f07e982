"""The kinds of `purine.kinds.update` once more, each writing its results over its own inputs.

They compute what the pure kinds compute, to rounding, and leave the gradient as it is; only `clip`
and `add_scaled` write over it. On a CPU, torch's fused kernels take one pass over memory. They walk
the bytes of all tensors side by side, so they are used only where these are without gaps, in one
order and of one dtype; they are slow where memory has another order than the axes, so they get
views. Functions in the plural do the same for several parameters in one call, with the bits of one
call for each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "adadelta",
    "adagrad",
    "adam",
    "adams",
    "add_scaled",
    "clip",
    "clip_factor",
    "lars",
    "momentum_sgd",
    "momentum_sgds",
    "rmsprop",
    "scaled",
    "sgd",
    "trust_ratio",
]

_FUSED = (torch.float32, torch.float64)
_IMAGES = torch.channels_last


def scaled(lr: Tensor, lr_mult: float, like: Tensor) -> Tensor:
    """The rate for one weight; it keeps float64 where that cannot change the weight's dtype."""
    rate = lr if lr_mult == 1.0 else lr * lr_mult
    return rate if like.dim() else rate.to(like.dtype)


def sgd(
    weight: Tensor,
    gradient: Tensor,
    lr: Tensor,
    *,
    weight_decay: float = 0.0,
    lr_mult: float = 1.0,
) -> Tensor:
    if _fusable(weight, gradient):
        _fused_sgd([weight], [gradient], [], lr, lr_mult, weight_decay, 0.0, False)
        return weight
    rate = scaled(lr, lr_mult, weight)
    _decay(weight, rate, weight_decay)
    return weight.addcmul_(gradient.to(weight.dtype), rate, value=-1)


def momentum_sgd(
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
    if lr_in_momentum:
        gradient = _decayed(weight, gradient, weight_decay)
        rate = scaled(lr, lr_mult, weight)
        velocity.mul_(momentum).addcmul_(gradient, rate)
        if not nesterov:
            return weight.sub_(velocity), velocity
        weight.addcmul_(gradient, rate, value=-1)
        return weight.sub_(velocity, alpha=momentum), velocity
    if _fusable(weight, gradient, velocity):
        _fused_sgd([weight], [gradient], [velocity], lr, lr_mult, weight_decay, momentum, nesterov)
        return weight, velocity
    gradient = gradient.to(weight.dtype)
    rate = scaled(lr, lr_mult, weight)
    velocity.mul_(momentum).add_(gradient)
    if weight_decay:
        velocity.add_(weight, alpha=weight_decay)
    if not nesterov:
        return weight.addcmul_(velocity, rate, value=-1), velocity
    _decay(weight, rate, weight_decay)
    weight.addcmul_(gradient, rate, value=-1)
    return weight.addcmul_(velocity, rate, value=-momentum), velocity


def momentum_sgds(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    velocities: Sequence[Tensor],
    lrs: Sequence[Tensor],
    *,
    momentum: float,
    nesterov: bool = False,
    lr_in_momentum: bool = False,
    weight_decay: float = 0.0,
    lr_mult: float = 1.0,
) -> tuple[Sequence[Tensor], ...]:
    rows = list(zip(weights, gradients, velocities, lrs, strict=True))
    if not lr_in_momentum and _are_one(lrs) and all(_fusable(*row[:-1]) for row in rows):
        _fused_sgd(
            weights, gradients, velocities, lrs[0], lr_mult, weight_decay, momentum, nesterov
        )
    else:
        for row in rows:
            momentum_sgd(
                *row,
                momentum=momentum,
                nesterov=nesterov,
                lr_in_momentum=lr_in_momentum,
                weight_decay=weight_decay,
                lr_mult=lr_mult,
            )
    return weights, velocities


def adagrad(
    weight: Tensor,
    gradient: Tensor,
    total: Tensor,
    lr: Tensor,
    *,
    eps: float = 1e-10,
    weight_decay: float = 0.0,
    lr_mult: float = 1.0,
) -> tuple[Tensor, Tensor]:
    if _fusable(weight, gradient, total):
        torch._fused_adagrad_(
            *(_in_order([item]) for item in (weight, gradient, total)),
            [torch.ones(())],
            lr=lr.item() * lr_mult,
            lr_decay=0.0,
            weight_decay=weight_decay,
            eps=eps,
            maximize=False,
        )
        return weight, total
    gradient = _decayed(weight, gradient, weight_decay)
    total.addcmul_(gradient, gradient)
    step = total.sqrt().add_(eps)
    torch.div(gradient, step, out=step)
    return weight.addcmul_(step, scaled(lr, lr_mult, weight), value=-1), total


def rmsprop(
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
    gradient = _decayed(weight, gradient, weight_decay)
    square.mul_(alpha).addcmul_(gradient, gradient, value=1.0 - alpha)
    step = square.sqrt().add_(eps)
    torch.div(gradient, step, out=step)
    return weight.addcmul_(step, scaled(lr, lr_mult, weight), value=-1), square


def adadelta(
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
    gradient = _decayed(weight, gradient, weight_decay)
    square.mul_(rho).addcmul_(gradient, gradient, value=1.0 - rho)
    step = delta.add(eps).sqrt_().div_(square.add(eps).sqrt_()).mul_(gradient)
    delta.mul_(rho).addcmul_(step, step, value=1.0 - rho)
    return weight.addcmul_(step, scaled(lr, lr_mult, weight), value=-1), square, delta


def adam(
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
    if _fusable(weight, gradient, mean, square) and not correct_eps:
        adams(
            [weight],
            [gradient],
            [mean],
            [square],
            [lr],
            [iteration],
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            weight_decay=weight_decay,
            decoupled=decoupled,
            lr_mult=lr_mult,
        )
        return weight, mean, square
    rate = lr * lr_mult
    if decoupled:
        _decay(weight, scaled(rate, 1.0, weight), weight_decay)
        gradient = gradient.to(weight.dtype)
    else:
        gradient = _decayed(weight, gradient, weight_decay)
    count = (iteration + 1).double()
    mean.lerp_(gradient, 1.0 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
    correction = scaled(torch.rsqrt(1.0 - beta2**count), 1.0, weight)
    step = square.sqrt()
    step = step.add_(eps).mul_(correction) if correct_eps else step.mul_(correction).add_(eps)
    torch.div(mean, step, out=step)
    weight.addcmul_(step, scaled(rate / (1.0 - beta1**count), 1.0, weight), value=-1)
    return weight, mean, square


def adams(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    lrs: Sequence[Tensor],
    iterations: Sequence[Tensor],
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    correct_eps: bool = False,
    lr_mult: float = 1.0,
) -> tuple[Sequence[Tensor], ...]:
    rows = list(zip(weights, gradients, means, squares, lrs, iterations, strict=True))
    together = _are_one(lrs) and _are_one(iterations) and all(_fusable(*row[:-2]) for row in rows)
    if correct_eps or not together:
        for row in rows:
            adam(
                *row,
                beta1=beta1,
                beta2=beta2,
                eps=eps,
                weight_decay=weight_decay,
                decoupled=decoupled,
                correct_eps=correct_eps,
                lr_mult=lr_mult,
            )
        return weights, means, squares
    fused = torch._fused_adamw_ if decoupled else torch._fused_adam_
    fused(
        *map(_in_order, (weights, gradients, means, squares)),
        [],
        [(iterations[0] + 1).float()] * len(rows),
        lr=lrs[0].item() * lr_mult,
        beta1=beta1,
        beta2=beta2,
        weight_decay=weight_decay,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )
    return weights, means, squares


def lars(
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
    gradient = gradient.to(weight.dtype)
    ratio = trust_ratio(weight, gradient, eta=eta, eps=eps, weight_decay=weight_decay)
    velocity.mul_(momentum).addcmul_(gradient, ratio)
    if weight_decay:
        velocity.addcmul_(weight, ratio, value=weight_decay)
    return weight.addcmul_(velocity, scaled(lr, lr_mult, weight), value=-1), velocity


def trust_ratio(
    weight: Tensor, gradient: Tensor, *, eta: float, eps: float, weight_decay: float
) -> Tensor:
    """How far LARS trusts a gradient: eta |w| / (|g| + decay |w| + eps), 1 where a norm is 0."""
    length = torch.linalg.vector_norm(weight)
    slope = torch.linalg.vector_norm(gradient)
    ratio = eta * length / (slope + weight_decay * length + eps)
    return torch.where((length > 0) & (slope > 0), ratio, 1.0)


def clip(gradient: Tensor, norm: Tensor, *, max_norm: float, eps: float = 1e-6) -> Tensor:
    return gradient.mul_(clip_factor(gradient, norm, max_norm=max_norm, eps=eps))


def clip_factor(gradient: Tensor, norm: Tensor, *, max_norm: float, eps: float) -> Tensor:
    """What a gradient is multiplied by so that the norm of all becomes at most `max_norm`."""
    return scaled((max_norm / (norm + eps)).clamp(max=1.0), 1.0, gradient)


def add_scaled(total: Tensor, part: Tensor, *, scale: float = 1.0) -> Tensor:
    total.add_(part)
    return total if scale == 1.0 else total.mul_(scale)


def _are_one(scalars: Sequence[Tensor]) -> bool:
    """Whether all parameters have one and the same rate, or count of iterations."""
    return all(value is scalars[0] for value in scalars)


def _fusable(*tensors: Tensor) -> bool:
    first = tensors[0]
    if first.dtype not in _FUSED or first.device.type != "cpu":
        return False
    plain = first.is_contiguous()
    if not plain and not (first.dim() == 4 and first.is_contiguous(memory_format=_IMAGES)):
        return False
    return all(
        tensor.dtype == first.dtype
        and (tensor.is_contiguous() if plain else tensor.stride() == first.stride())
        for tensor in tensors[1:]
    )


def _in_order(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Views whose axes are in the order of memory."""
    return [item if item.is_contiguous() else item.permute(0, 2, 3, 1) for item in tensors]


def _fused_sgd(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    velocities: Sequence[Tensor],
    lr: Tensor,
    lr_mult: float,
    weight_decay: float,
    momentum: float,
    nesterov: bool,
) -> None:
    torch._fused_sgd_(
        _in_order(weights),
        _in_order(gradients),
        _in_order(velocities),
        weight_decay=weight_decay,
        momentum=momentum,
        lr=lr.item() * lr_mult,
        dampening=0.0,
        nesterov=nesterov,
        maximize=False,
        is_first_step=False,
    )


def _decay(weight: Tensor, rate: Tensor, weight_decay: float) -> None:
    """Shrink the weight by rate * weight_decay of itself.

    Not as a factor 1 - rate * weight_decay, which float32 would round to a few digits of the decay.
    """
    if weight_decay:
        weight.addcmul_(weight, rate, value=-weight_decay)


def _decayed(weight: Tensor, gradient: Tensor, weight_decay: float) -> Tensor:
    """The gradient with that of the decay added; the gradient itself where there is no decay."""
    gradient = gradient.to(weight.dtype)
    return gradient.add(weight, alpha=weight_decay) if weight_decay else gradient
