"""Stochastic gradient descent, plain or with momentum."""

from __future__ import annotations

from purine.arguments import checked, fraction
from purine.errors import ConfigError
from purine.graph import Graph
from purine.solvers._attach import attach
from purine.solvers.rates import Rate

__all__ = ["sgd"]


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

    `lr_in_momentum` sums gradients times their rates instead of gradients, as Caffe does it: the
    numbers are the same as long as the rate is.

    >>> from purine.autodiff import backward
    >>> from purine.zoo import mlp
    >>> step = sgd(backward(mlp(batch=8)), lr=0.1, momentum=0.9)
    >>> step.states["fc1/weight"].next
    'fc1/weight/next'
    """
    fraction("momentum", momentum)
    if nesterov and momentum == 0:
        raise ConfigError(
            "nesterov needs momentum",
            expected="a momentum above 0",
            found="momentum=0.0",
            remedy="pass momentum=0.9, or leave nesterov out",
        )
    if momentum == 0:
        return attach(graph, "SgdUpdate", lr=lr, weight_decay=weight_decay)
    return attach(
        graph,
        "MomentumUpdate",
        lr=lr,
        slots=["momentum"],
        weight_decay=weight_decay,
        attributes={
            "momentum": momentum,
            "nesterov": nesterov,
            "lr_in_momentum": lr_in_momentum,
        },
    )
