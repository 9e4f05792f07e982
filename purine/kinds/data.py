"""Batches, copies to other locations, and values that pass unless a condition fails."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from purine.graph import Op
from purine.registry.aten import device_of
from purine.registry.facts import Facts, Precision, Role, SampleRule, ShardRule
from purine.registry.gradient import RULES, Emit, Pull, Rule, lower_unchanged
from purine.registry.kind import Attr, Kernel, Kind, PerOp, kind, register

__all__ = ["Copy", "Data", "Expect", "StopGradient"]

Data = register(
    Kind(
        "Data",
        None,
        ("seed", "iteration"),
        attributes={
            "source": Attr(str, "train"),
            "shuffle": Attr(bool, True),
            "offset": Attr(int, 0),
            "whole": Attr(int | None, None),
        },
        facts=Facts(Precision.WIDE),
    )
)
"""The next batch of a source, or a part of it: the samples from `offset` on of a `whole` batch."""


def _copy(op: Op) -> Kernel:
    device = device_of(op.location)

    def copy(x: Tensor) -> Tensor:
        local = brought(x, device)
        return x.clone() if local is x else local

    return copy


def brought(x: Tensor, device: torch.device) -> Tensor:
    """x on a device; the host does not wait for a copy to a GPU."""
    if x.device == device or x.is_meta:
        return x
    return x.to(device, non_blocking=device.type != "cpu")


Copy = register(
    Kind(
        "Copy",
        Tensor.clone,
        ("x",),
        attributes={"alias": Attr(bool, False), "board": Attr(bool, False)},
        facts=Facts(Precision.FOLLOW, samples=SampleRule.IDENTITY, role=Role.COPY),
        per_op=PerOp(bind=_copy),
    )
)
"""The same value at another location: the only kind whose two ends differ in location.

With `alias` both ends are one piece of memory, and the run does nothing. With `board` the value
goes to all other hosts through memory that they share.
"""


@kind(view=True, facts=Facts(Precision.FOLLOW, ShardRule.ELEMENTWISE, SampleRule.IDENTITY))
def StopGradient(x: Tensor) -> Tensor:
    """The same value; no gradient passes."""
    return x.view_as(x)


@kind
def Expect(x: Tensor, *conditions: Tensor, expected: str) -> Tensor:
    """x if all conditions hold, else NaN, and so are gradients through it.

    An imported module would branch differently than it was traced; `expected` says where. The check
    is part of the numbers because a GPU is not waited for.
    """
    holds = torch.stack(conditions).all().to(x.dtype)
    return x * (holds / holds)  # 1 / 1, or 0 / 0


def _pull_copy(emit: Emit, pull: Pull) -> Sequence[str | None]:
    """The gradient of what was copied goes back to where that came from."""
    source = emit.blob(pull.op.inputs[0])
    return emit("Copy", [pull.cotangent], pull.op.attributes, location=source.location)


RULES["Copy"] = Rule(lower_unchanged, _pull_copy)
