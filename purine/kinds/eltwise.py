"""Sums, products and maxima of several blobs, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from purine.arguments import at_least, checked
from purine.kinds.net import Var
from purine.registry.facts import Facts, Precision, SampleRule, ShardRule
from purine.registry.kind import kind
from purine.registry.spec import Settings, Shape, Shapes

__all__ = ["eltwise"]

Operation = Literal["sum", "product", "max"]


def _eltwise_shape(settings: Settings, shapes: Shapes) -> Shape | None:
    factors = settings["coefficients"]
    fit = factors is None or (settings["operation"] == "sum" and len(factors) == len(shapes))
    return shapes[0] if fit and len(shapes) > 1 and len(set(shapes)) == 1 else None


@kind(facts=Facts(Precision.FOLLOW, ShardRule.ELEMENTWISE, SampleRule.ROWS, shape=_eltwise_shape))
def Eltwise(
    x: Tensor,
    y: Tensor,
    *more: Tensor,
    operation: Operation = "sum",
    coefficients: tuple[float, ...] | None = None,
) -> Tensor:
    """The sum (each input times its coefficient, if given), product or maximum of the inputs."""
    inputs = (x, y, *more)
    if operation == "product":
        combined = reduce(torch.mul, inputs)
    elif operation == "max":
        combined = reduce(torch.maximum, inputs)
    elif coefficients is None:
        combined = reduce(torch.add, inputs)
    else:
        if len(coefficients) != len(inputs):
            raise ValueError(f"{len(coefficients)} coefficients for {len(inputs)} inputs")
        first, *others = coefficients
        combined = x * first
        for value, factor in zip(inputs[1:], others, strict=True):
            combined = torch.add(combined, value, alpha=factor)
    if coefficients is not None and operation != "sum":
        raise ValueError(f"coefficients are for sums, not for operation {operation}")
    return combined


@checked
def eltwise(
    inputs: Sequence[Var],
    *,
    operation: Operation = "sum",
    coefficients: Sequence[float] | None = None,
    name: str | None = None,
) -> Var:
    """The sum, product or maximum of two or more blobs."""
    at_least("the number of inputs", len(inputs), 1)
    factors = None if coefficients is None else tuple(coefficients)
    settings = {"operation": operation, "coefficients": factors}
    return inputs[0].net.apply("Eltwise", inputs, settings, name=name)
