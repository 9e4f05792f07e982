"""The kinds at the edge of a graph: where batches come in and where blobs change location."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from purine.graph import Op
from purine.registry.aten import device_of
from purine.registry.facts import Facts, Precision, Role, SampleRule, ShardRule
from purine.registry.gradient import RULES, Emit, Rule
from purine.registry.kind import Attr, Kernel, Kind, PerOp, kind, register

__all__ = ["Copy", "Data", "StopGradient"]

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
    """A copy on the device of the op, which a GPU makes while its host goes on."""
    device = device_of(op.location)

    def copy(x: Tensor) -> Tensor:
        same = x.device == device or x.is_meta
        return x.clone() if same else x.to(device, non_blocking=device.type != "cpu")

    return copy


Copy = register(
    Kind(
        "Copy",
        Tensor.clone,
        ("x",),
        attributes={"alias": Attr(bool, False)},
        facts=Facts(Precision.FOLLOW, samples=SampleRule.IDENTITY, role=Role.COPY),
        per_op=PerOp(bind=_copy),
    )
)
"""The same value at another location: the only kind whose two ends differ in location.

With `alias` both ends are one piece of memory, and the run does nothing.
"""


@kind(view=True, facts=Facts(Precision.FOLLOW, ShardRule.ELEMENTWISE, SampleRule.IDENTITY))
def StopGradient(x: Tensor) -> Tensor:
    """The same value; no gradient passes."""
    return x.view_as(x)


def _lower_copy(emit: Emit, op: Op) -> tuple[str, ...]:
    emit("Copy", op.inputs, op.attributes, outputs=op.outputs)
    return ()


def _pull_copy(
    emit: Emit,
    op: Op,
    saved: Sequence[str],
    cotangents: Sequence[str | None],
    wanted: Sequence[bool],
) -> Sequence[str | None]:
    """The gradient of what was copied goes back to where that came from."""
    (cotangent,) = cotangents
    assert cotangent is not None
    return emit("Copy", [cotangent], op.attributes, location=emit.blob(op.inputs[0]).location)


RULES["Copy"] = Rule(_lower_copy, _pull_copy)
