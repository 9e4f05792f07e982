"""LARS: momentum with a rate for every layer, for training with large batches."""

from __future__ import annotations

from purine.arguments import checked, fraction, not_negative, positive
from purine.graph import Graph
from purine.solvers._attach import attach
from purine.solvers.rates import Rate

__all__ = ["lars"]


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
        graph,
        "LarsUpdate",
        lr=lr,
        slots=["momentum"],
        weight_decay=weight_decay,
        attributes={"momentum": momentum, "eta": eta, "eps": eps},
    )
