"""Updates of solvers whose step is linear in the gradient: SGD, momentum and LARS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from purine.kinds.update._arithmetic import Term
from purine.kinds.update._declare import Step, update

__all__ = ["LarsUpdate", "MomentumUpdate", "SgdUpdate"]


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
def SgdUpdate(step: Step) -> Tensor:
    """A step against the gradient.

    >>> SgdUpdate(torch.ones(2), torch.tensor([1.0, -1.0]), torch.tensor(0.5).double())
    tensor([0.5000, 1.5000])
    """
    return step.descend(step.terms)


@update(slots=1, fused=_fused, many=True)
def MomentumUpdate(
    step: Step,
    velocity: Tensor,
    *,
    momentum: float,
    nesterov: bool = False,
    lr_in_momentum: bool = False,
) -> tuple[Tensor, Tensor]:
    """A step against the velocity, a decaying sum of gradients; with `nesterov` one step ahead.

    `lr_in_momentum` sums gradients times their rates, as Caffe does.
    """
    ops, terms = step.ops, step.terms
    if lr_in_momentum:
        terms = [ops.scaled(ops.total(terms), step.rate)]
    velocity = ops.accumulate(velocity, momentum, terms)
    summed = [*terms, Term(velocity, momentum)] if nesterov else [Term(velocity)]
    return ops.descend(step.weight, summed, None if lr_in_momentum else step.rate), velocity


@update(slots=1, elementwise=False)
def LarsUpdate(
    step: Step, velocity: Tensor, *, momentum: float = 0.9, eta: float = 0.001, eps: float = 1e-8
) -> tuple[Tensor, Tensor]:
    """As Momentum, with each gradient scaled by its trust ratio.

    The ratio is eta |w| / (|g| + weight_decay |w| + eps), and 1 where either norm is 0.
    """
    terms, length = step.terms, torch.linalg.vector_norm(step.weight)
    slope = torch.linalg.vector_norm(terms[0].value)
    ratio = eta * length / (slope + step.weight_decay * length + eps)
    ratio = torch.where((length > 0) & (slope > 0), ratio, 1.0)
    velocity = step.ops.accumulate(velocity, momentum, terms, ratio)
    return step.descend([Term(velocity)]), velocity
