"""Reductions over the parts of a batch, as ops: identities until a scheme cuts the batch.

`backward` puts a `BatchReduce` where a value of the whole batch is needed: behind a sum over
samples that is reported or minimised, or in front of an op that is not linear, such as the division
of a weighted mean. A graph that holds its batch in one part computes `x` there. A scheme that cuts
the batch (`accumulate`, `replicate`, `pipeline`) makes an all-reduce of it, forwards and backwards.

Gradients follow one convention. The gradients of the parts are averaged with the parts' shares of
the batch, so in a part every gradient is scaled by one over its share. A mean over the parts passes
its gradient as it is, a sum multiplies it by one over the share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from purine.graph import Op
from purine.registry.gradient import RULES, Emit, Rule
from purine.registry.kind import kind

__all__ = ["BatchReduce", "BatchReduceGradient", "CountSum", "LabelCount", "WholeBatch"]

Reduction = Literal["sum", "mean"]


@kind(view=True)
def BatchReduce(x: Tensor, *, operation: Reduction, shared: bool = False) -> Tensor:
    """The sum or mean of x over the parts of the batch; x itself where there is one part.

    `shared` says that nothing behind it depends on single samples, so that its gradient is the same
    in all parts.
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
    """x itself: the op called `op`, which reads it, works on the batch as a whole.

    Schemes that cut the batch refuse a graph with such an op.
    """
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
    real = getattr(torch, dtype)
    counts = torch.ones_like(label, dtype=torch.bool)
    if ignore_label is not None:
        counts = label != ignore_label
    if weight is None:
        return counts.sum(dtype=real)
    return (weight.to(real)[label.where(counts, 0).long()] * counts).sum()


def _lower(emit: Emit, op: Op) -> tuple[str, ...]:
    emit(op.kind, op.inputs, op.attributes, outputs=op.outputs)
    return ()


def _pull_reduce(
    emit: Emit,
    op: Op,
    saved: Sequence[str],
    cotangents: Sequence[str | None],
    wanted: Sequence[bool],
) -> Sequence[str | None]:
    (cotangent,) = cotangents
    assert cotangent is not None
    return emit("BatchReduceGradient", [cotangent], op.attributes)


def _pull_whole(
    emit: Emit,
    op: Op,
    saved: Sequence[str],
    cotangents: Sequence[str | None],
    wanted: Sequence[bool],
) -> Sequence[str | None]:
    return cotangents


RULES["BatchReduce"] = Rule(_lower, _pull_reduce)
RULES["WholeBatch"] = Rule(_lower, _pull_whole)
