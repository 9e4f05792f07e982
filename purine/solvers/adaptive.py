"""Solvers that give every element of a parameter a step of its own size.

Names and defaults of the options are those of `torch.optim`, and so are the numbers.
"""

from __future__ import annotations

from purine.arguments import checked, fraction, not_negative, pair
from purine.graph import Graph
from purine.solvers.attach import attach
from purine.solvers.rates import Rate

__all__ = ["adadelta", "adagrad", "adam", "adamw", "rmsprop"]


@checked
def adagrad(
    graph: Graph, *, lr: float | Rate = 0.01, eps: float = 1e-10, weight_decay: float = 0.0
) -> Graph:
    """Steps divided by the root of the sum of all squared gradients."""
    not_negative("eps", eps)
    return attach(graph, "AdaGradUpdate", ["total"], lr, weight_decay, eps=eps)


@checked
def rmsprop(
    graph: Graph,
    *,
    lr: float | Rate = 0.01,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Graph:
    """Steps divided by the root of a decaying mean of squared gradients."""
    fraction("alpha", alpha)
    not_negative("eps", eps)
    return attach(graph, "RmsPropUpdate", ["square"], lr, weight_decay, alpha=alpha, eps=eps)


@checked
def adadelta(
    graph: Graph,
    *,
    lr: float | Rate = 1.0,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
) -> Graph:
    """As `rmsprop`, with steps also scaled by the root of a decaying mean of squared steps."""
    fraction("rho", rho)
    not_negative("eps", eps)
    return attach(graph, "AdaDeltaUpdate", ["square", "delta"], lr, weight_decay, rho=rho, eps=eps)


@checked
def adam(
    graph: Graph,
    *,
    lr: float | Rate = 0.001,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    correct_eps: bool = False,
    weight_decay: float = 0.0,
) -> Graph:
    """Steps along the mean gradient divided by the root of the mean squared gradient.

    `correct_eps` lets the correction of the means apply to eps too, as Caffe does it.
    """
    return _adam(graph, lr, betas, eps, weight_decay, decoupled=False, correct_eps=correct_eps)


@checked
def adamw(
    graph: Graph,
    *,
    lr: float | Rate = 0.001,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> Graph:
    """As `adam`, with a decay that acts on the weights alone, not through the means."""
    return _adam(graph, lr, betas, eps, weight_decay, decoupled=True)


def _adam(
    graph: Graph,
    lr: float | Rate,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    **flags: bool,
) -> Graph:
    beta1, beta2 = pair("betas", betas)
    fraction("the first of betas", beta1)
    fraction("the second of betas", beta2)
    not_negative("eps", eps)
    numbers = {"beta1": beta1, "beta2": beta2, "eps": eps}
    return attach(graph, "AdamUpdate", ["mean", "square"], lr, weight_decay, **numbers, **flags)
