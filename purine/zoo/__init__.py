"""Networks to start from: one file each, a function that returns a graph."""

from collections.abc import Callable, Mapping

from purine.graph import Graph
from purine.zoo.lenet import lenet
from purine.zoo.mlp import mlp
from purine.zoo.nin import nin

__all__ = ["NETS", "lenet", "mlp", "nin"]

NETS: Mapping[str, Callable[..., Graph]] = {"lenet": lenet, "mlp": mlp, "nin": nin}
"""The nets by the names the command line knows."""
