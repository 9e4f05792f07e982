"""Updates of solvers whose step is linear in the gradient: SGD, momentum and LARS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from purine.kinds.update._arithmetic import Arithmetic, Term
from purine.kinds.update._declare import update

__all__ = ["LarsUpdate", "MomentumUpdate", "SgdUpdate", "decayed", "rate_of"]


def rate_of(lr: Tensor, lr_mult: float) -> Tensor:
    return lr if lr_mult == 1.0 else lr * lr_mult


def decayed(ops: Arithmetic, weight: Tensor, gradient: Tensor, weight_decay: float) -> list[Term]:
    """The gradient in the weight's dtype, plus that of the weight decay."""
    gradient = gradient.to(weight.dtype)
    return [Term(gradient), Term(weight, weight_decay)] if weight_decay else [Term(gradient)]


def _fused(
    weights: list[Tensor],
    gradients: list[Tensor],
    velocities: Sequence[Tensor] = (),
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    lr_in_momentum: bool = False,
    **settings: Any,
) -> bool:
    if lr_in_momentum:
        return False
    settings |= {"momentum": momentum, "dampening": 0.0, "nesterov": nesterov}
    settings |= {"maximize": False, "is_first_step": False}
    torch._fused_sgd_(weights, gradients, list(velocities), **settings)
    return True


@update(slots=0, fused=_fused)
def SgdUpdate(
    ops: Arithmetic,
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
    rate = ops.scalar(rate_of(lr, lr_mult), weight)
    return ops.descend(weight, decayed(ops, weight, gradient, weight_decay), rate)


@update(slots=1, fused=_fused, many=True)
def MomentumUpdate(
    ops: Arithmetic,
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

    `lr_in_momentum` sums gradients times their rates, as Caffe does.
    """
    rate: Tensor | None = ops.scalar(rate_of(lr, lr_mult), weight)
    terms = decayed(ops, weight, gradient, weight_decay)
    if lr_in_momentum:
        assert rate is not None
        terms, rate = [ops.scaled(ops.total(terms), rate)], None
    velocity = ops.accumulate(velocity, momentum, terms)
    step = [*terms, Term(velocity, momentum)] if nesterov else [Term(velocity)]
    return ops.descend(weight, step, rate), velocity


@update(slots=1, elementwise=False)
def LarsUpdate(
    ops: Arithmetic,
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
    """As Momentum, with each gradient scaled by its trust ratio.

    The ratio is eta |w| / (|g| + weight_decay |w| + eps), and 1 where either norm is 0.
    """
    terms = decayed(ops, weight, gradient, weight_decay)
    length = torch.linalg.vector_norm(weight)
    slope = torch.linalg.vector_norm(terms[0].value)
    ratio = eta * length / (slope + weight_decay * length + eps)
    ratio = torch.where((length > 0) & (slope > 0), ratio, 1.0)
    velocity = ops.accumulate(velocity, momentum, terms, ratio)
    rate = ops.scalar(rate_of(lr, lr_mult), weight)
    return ops.descend(weight, [Term(velocity)], rate), velocity
