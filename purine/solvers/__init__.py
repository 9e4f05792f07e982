"""Solvers and what goes with them: functions that add updates of the parameters to a graph."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from purine.graph import Graph
from purine.solvers.adaptive import adadelta, adagrad, adam, adamw, rmsprop
from purine.solvers.clip import clip_by_norm
from purine.solvers.rates import (
    POLICIES,
    Cosine,
    Exp,
    Fixed,
    Inv,
    MultiStep,
    Poly,
    Rate,
    Sigmoid,
    Step,
    Warmup,
    add_rate,
    parse_rate,
)
from purine.solvers.sgd import lars, sgd

__all__ = [
    "POLICIES",
    "SOLVERS",
    "Cosine",
    "Exp",
    "Fixed",
    "Inv",
    "MultiStep",
    "Poly",
    "Rate",
    "Sigmoid",
    "Step",
    "Warmup",
    "adadelta",
    "adagrad",
    "adam",
    "adamw",
    "add_rate",
    "clip_by_norm",
    "lars",
    "parse_rate",
    "rmsprop",
    "sgd",
]

SOLVERS: Mapping[str, Callable[..., Graph]] = MappingProxyType(
    {f.__name__: f for f in (adadelta, adagrad, adam, adamw, lars, rmsprop, sgd)}
)
"""The solvers by name."""
