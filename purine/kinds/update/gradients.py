"""What is done with gradients before an update: norms, clipping and accumulation."""

from __future__ import annotations

import torch
from torch import Tensor

from purine.registry.facts import Facts, Role
from purine.registry.kind import Variants, kind

__all__ = ["AddScaled", "ClipGradient", "GlobalNorm"]


@kind(facts=Facts(role=Role.COMBINATION))
def GlobalNorm(*gradients: Tensor) -> Tensor:
    """The norm of all gradients taken as one long vector, a float64 scalar.

    >>> GlobalNorm(torch.tensor([3.0]), torch.tensor([[4.0]]))
    tensor(5., dtype=torch.float64)
    """
    norms = [torch.linalg.vector_norm(gradient).double() for gradient in gradients]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def _clip_factor(gradient: Tensor, norm: Tensor, max_norm: float, eps: float) -> Tensor:
    factor = (max_norm / (norm + eps)).clamp(max=1.0)
    return factor if gradient.dim() else factor.to(gradient.dtype)


def _clip_in_place(gradient: Tensor, norm: Tensor, *, max_norm: float, eps: float = 1e-6) -> Tensor:
    return gradient.mul_(_clip_factor(gradient, norm, max_norm, eps))


@kind(variants=Variants(_clip_in_place, over=(0,)), facts=Facts(role=Role.ELEMENTWISE))
def ClipGradient(gradient: Tensor, norm: Tensor, *, max_norm: float, eps: float = 1e-6) -> Tensor:
    """The gradient, scaled down where the norm of all gradients is above `max_norm`."""
    return gradient * _clip_factor(gradient, norm, max_norm, eps)


def _add_in_place(total: Tensor, part: Tensor, *, scale: float = 1.0) -> Tensor:
    total.add_(part)
    return total if scale == 1.0 else total.mul_(scale)


@kind(variants=Variants(_add_in_place, over=(0,)))
def AddScaled(total: Tensor, part: Tensor, *, scale: float = 1.0) -> Tensor:
    """(total + part) * scale: one more part of a sum, or with a scale the last of a mean."""
    return total + part if scale == 1.0 else (total + part) * scale
