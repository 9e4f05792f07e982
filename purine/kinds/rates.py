"""Learning-rate policies as kinds: each makes the rate from the number of the iteration.

A rate is a float64 scalar, computed by tensor ops on any device. Iterations count from 0. The
formulas are Caffe's. `purine.solvers.rates` has the same policies as values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from purine.registry.kind import kind


@kind
def FixedRate(iteration: Tensor, *, lr: float) -> Tensor:
    """The same rate for ever.

    >>> FixedRate(torch.tensor(7), lr=0.5)
    tensor(0.5000, dtype=torch.float64)
    """
    return torch.full_like(iteration, lr, dtype=torch.float64)


@kind
def StepRate(iteration: Tensor, *, lr: float, step: int, gamma: float = 0.1) -> Tensor:
    """lr * gamma ^ floor(iteration / step)."""
    steps = torch.div(iteration, step, rounding_mode="floor")
    return torch.pow(gamma, steps.double()) * lr


@kind
def MultiStepRate(
    iteration: Tensor, *, lr: float, steps: tuple[int, ...], gamma: float = 0.1
) -> Tensor:
    """lr times gamma for every one of `steps` that the iteration has reached."""
    rate = torch.full_like(iteration, lr, dtype=torch.float64)
    for step in steps:
        rate = torch.where(iteration >= step, rate * gamma, rate)
    return rate


@kind
def ExpRate(iteration: Tensor, *, lr: float, gamma: float) -> Tensor:
    """lr * gamma ^ iteration."""
    return torch.pow(gamma, iteration.double()) * lr


@kind
def InvRate(iteration: Tensor, *, lr: float, gamma: float, power: float) -> Tensor:
    """lr * (1 + gamma * iteration) ^ -power."""
    return torch.pow(1.0 + gamma * iteration.double(), -power) * lr


@kind
def PolyRate(iteration: Tensor, *, lr: float, max_iterations: int, power: float = 1.0) -> Tensor:
    """lr * (1 - iteration / max_iterations) ^ power, and 0 from there on."""
    return torch.pow(1.0 - _progress(iteration, max_iterations), power) * lr


@kind
def SigmoidRate(iteration: Tensor, *, lr: float, gamma: float, step: int) -> Tensor:
    """lr / (1 + exp(-gamma * (iteration - step)))."""
    return torch.sigmoid(gamma * (iteration - step).double()) * lr


@kind
def CosineRate(iteration: Tensor, *, lr: float, max_iterations: int, floor: float = 0.0) -> Tensor:
    """Half a cosine from lr down to `floor` at max_iterations, and `floor` from there on."""
    wave = 1.0 + torch.cos(_progress(iteration, max_iterations) * math.pi)
    return floor + 0.5 * (lr - floor) * wave


@kind
def WarmupRate(rate: Tensor, iteration: Tensor, *, iterations: int, start: float = 0.0) -> Tensor:
    """Another rate times a factor that grows from `start` to 1 over the first iterations."""
    return rate * (start + (1.0 - start) * _progress(iteration, iterations))


def _progress(iteration: Tensor, whole: int) -> Tensor:
    """The part of `whole` that is done, at most 1."""
    return (iteration.double() / whole).clamp(max=1.0)
