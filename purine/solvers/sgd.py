"""Stochastic gradient descent, plain or with momentum, and LARS."""

from __future__ import annotations

from purine.arguments import checked, fraction, not_negative, positive
from purine.errors import ConfigError
from purine.graph import Graph
from purine.solvers.attach import attach
from purine.solvers.rates import Rate

__all__ = ["lars", "sgd"]


@checked
def sgd(
    graph: Graph,
    *,
    lr: float | Rate = 0.01,
    momentum: float = 0.0,
    nesterov: bool = False,
    lr_in_momentum: bool = False,
    weight_decay: float = 0.0,
) -> Graph:
    """The graph with an update of every parameter, as `torch.optim.SGD` does it.

    `lr_in_momentum` sums gradients times their rates, as Caffe does.

    >>> from purine.autodiff import backward
    >>> from purine.zoo import mlp
    >>> step = sgd(backward(mlp(batch=8)), lr=0.1, momentum=0.9)
    >>> step.states["fc1/weight"].next
    'fc1/weight/next'
    """
    fraction("momentum", momentum)
    if nesterov and momentum == 0:
        what, remedy = "nesterov needs momentum", "pass momentum=0.9, or leave nesterov out"
        raise ConfigError(what, "a momentum above 0", "momentum=0.0", remedy)
    if momentum == 0:
        return attach(graph, "SgdUpdate", [], lr, weight_decay)
    flags = {"nesterov": nesterov, "lr_in_momentum": lr_in_momentum}
    slots = ["momentum"]
    return attach(graph, "MomentumUpdate", slots, lr, weight_decay, momentum=momentum, **flags)


@checked
def lars(
    graph: Graph,
    *,
    lr: float | Rate = 0.01,
    momentum: float = 0.9,
    eta: float = 0.001,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Graph:
    """Momentum where the gradient of each parameter is scaled by its trust ratio.

    The ratio is eta |w| / (|g| + weight_decay |w| + eps), and 1 where either norm is 0. The rate
    is applied to the velocity, as in `sgd`.
    """
    fraction("momentum", momentum)
    positive("eta", eta)
    not_negative("eps", eps)
    return attach(
        graph, "LarsUpdate", ["momentum"], lr, weight_decay, momentum=momentum, eta=eta, eps=eps
    )
