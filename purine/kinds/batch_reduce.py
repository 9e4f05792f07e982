"""Reductions over the parts of a batch, as ops: identities until a scheme cuts the batch.

`backward` adds a `BatchReduce` where a value of the whole batch is needed: after a sum over samples
that is reported or minimised, or before a nonlinear op, such as the division of a weighted mean. A
scheme that cuts the batch (`accumulate`, `replicate`, `pipeline`) makes an all-reduce of it.

The gradients of the parts are averaged by the parts' shares of the batch, so the gradients of a
part are scaled by one over its share: a sum multiplies its gradient by that, a mean passes it on.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from purine.registry.aten import dtype_of
from purine.registry.gradient import RULES, Rule, lower_unchanged
from purine.registry.kind import kind

Reduction = Literal["sum", "mean"]


@kind(view=True)
def BatchReduce(x: Tensor, *, operation: Reduction, shared: bool = False) -> Tensor:
    """The sum or mean of x over the parts of the batch; x itself where there is one part.

    With `shared`, no later op depends on single samples, so all parts have the same gradient.
    """
    return x.view_as(x)


@kind
def BatchReduceGradient(
    gradient: Tensor, *, operation: Reduction, shared: bool = False, scale: float = 1.0
) -> Tensor:
    """The gradient of what a `BatchReduce` reads, times `scale`: one over the share of the part."""
    return gradient * scale


@kind
def CountSum(*parts: Tensor) -> Tensor:
    """The sum of whole numbers that parts of a batch counted."""
    return torch.stack(parts).sum(0, dtype=parts[0].dtype)


@kind(view=True)
def WholeBatch(x: Tensor, *, op: str, because: str, line: str = "") -> Tensor:
    """x itself; schemes that cut the batch refuse it, since its reader `op` needs the whole."""
    return x.view_as(x)


@kind
def LabelCount(
    label: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_label: int | None = None,
    dtype: str = "float32",
) -> Tensor:
    """The number of labels other than `ignore_label`, or the sum of their classes' weights."""
    real = dtype_of(dtype)
    everyone = torch.ones_like(label, dtype=torch.bool)
    counts = everyone if ignore_label is None else label != ignore_label
    if weight is None:
        return counts.sum(dtype=real)
    return (weight.to(real)[label.where(counts, 0).long()] * counts).sum()


RULES["BatchReduce"] = Rule(
    lower_unchanged,
    lambda emit, pull: emit("BatchReduceGradient", [pull.cotangent], pull.op.attributes),
)
RULES["WholeBatch"] = Rule(lower_unchanged, lambda emit, pull: pull.cotangents)
