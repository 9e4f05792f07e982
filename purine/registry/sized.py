"""Kinds whose attributes follow the batch size, so that a net can be made for another one.

`sized.KIND` is KIND with one more input, `batch`, before the implied ones; only its number of
samples counts. In the attributes, texts stand for numbers: `batch`, `2*batch`, `batch-1`,
`1/batch`. `FixedBatch` is for nets that only take one size.

    {op_type: sized.aten.expand, inputs: [token, data], size: [batch, -1, -1]}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from torch import Tensor

from purine.errors import KindError
from purine.graph import Attribute, Op
from purine.registry import aten
from purine.registry.facts import Facts, Precision, SampleRule
from purine.registry.kind import (
    IMPLIED,
    REGISTERED,
    Attr,
    Kernel,
    Kind,
    PerOp,
    Results,
    Variants,
    kind,
)

__all__ = ["PREFIX", "FixedBatch", "counted", "kind_of", "sized"]

PREFIX = "sized."

_NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_COUNT = re.compile(rf"(?:({_NUMBER})\*)?batch([+-]\d+)?|({_NUMBER})/batch")


def kind_of(name: str) -> Kind | None:
    """The kind called `sized.KIND`, or None where there is no such KIND."""
    if not name.startswith(PREFIX):
        return None
    own = name.removeprefix(PREFIX)
    base = REGISTERED.get(own) or aten.kind_of(own)
    if base is None or base.function is None:
        return None
    implied = [name for name in base.inputs if name in IMPLIED]
    known = base  # for the binder, whose types do not remember the test above
    return replace(
        base,
        name=name,
        inputs=(*(name for name in base.inputs if name not in IMPLIED), "batch", *implied),
        attributes={key: Attr(Any, attr.default) for key, attr in base.attributes.items()},
        evaluation=None,
        # Rules read attributes as numbers, and here they are texts.
        facts=Facts(precision=base.facts.precision, role=base.facts.role),
        variants=Variants(),
        per_op=PerOp(bind=lambda op: _bind(known, op, len(implied))),
    )


def sized(op: Op, batch: str, attributes: Mapping[str, Attribute]) -> Op:
    """The op with attributes that are counted in the samples of the blob `batch`."""
    own = len(op.inputs) - sum(name in IMPLIED for name in op.inputs)
    inputs = (*op.inputs[:own], batch, *op.inputs[own:])
    return replace(op, kind=PREFIX + op.kind, inputs=inputs, attributes=attributes)


def counted(value: Attribute, batch: int) -> Attribute:
    """An attribute's value where the batch has `batch` samples.

    >>> counted(("batch", "2*batch", "batch-1", "0.5/batch", -1, "float32"), 4)
    (4, 8, 3, 0.125, -1, 'float32')
    """
    if isinstance(value, tuple):
        return tuple(counted(item, batch) for item in value)
    match = _COUNT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    times, plus, over = match.groups()
    if over is not None:
        return float(over) / batch
    times = times or "1"
    factor = int(times) if times.lstrip("-").isdigit() else float(times)
    total = factor * batch + int(plus or 0)
    if total < 0:
        raise ValueError(f"{value} is {total} for a batch of {batch}")
    return total


@kind(view=True, facts=Facts(Precision.FOLLOW, samples=SampleRule.IDENTITY))
def FixedBatch(x: Tensor, *, batch: int, because: str, holder: str = "", held: str = "") -> Tensor:
    """x itself if it has `batch` samples, as the op `holder` needs for its result `held`."""
    if x.shape[0] != batch:
        what = f"this net is for batches of {batch} only: {because}"
        expected, found = f"a batch of {batch}", f"a batch of {x.shape[0]}"
        remedy = "import the module with an example of the size that is needed, "
        remedy += "or write this part of it so that it takes any"
        raise KindError(what, expected, found, remedy, op=holder or None, blob=held or None)
    return x.view_as(x)


def _bind(base: Kind, op: Op, implied: int) -> Kernel:
    @cache
    def kernel(batch: int) -> Kernel:
        settings = {key: counted(value, batch) for key, value in op.attributes.items()}
        # Only the number of inputs matters to a kernel.
        return base.bind(Op(op.name, base.name, op.inputs[:-1], op.outputs, settings, op.location))

    def call(*tensors: Tensor) -> Results:
        own = len(tensors) - 1 - implied
        return kernel(tensors[own].shape[0])(*tensors[:own], *tensors[own + 1 :])

    return call
