"""The loss scale of training in float16: states of the graph, and the kinds that use them.

Gradients below 6e-8 are 0 in float16, so the loss is multiplied by the largest scale with which
gradients stay finite. In a net with the state `loss_scale`, `backward` starts from the scale and
divides the gradients of parameters by it; solvers skip an update if `loss_scale/finite` is false.
The host decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from purine.graph import NOTHING, Builder, Filler, Graph, Location, Origin
from purine.graph.names import gradient_of, update_of
from purine.registry.facts import Facts, Role
from purine.registry.kind import kind

__all__ = ["FINITE", "LOSS_SCALE", "UPDATES", "add_loss_scale", "scaled_of", "unscale"]

LOSS_SCALE = "loss_scale"
FINITE = "loss_scale/finite"
"""The blob that says whether every gradient of an iteration is finite."""

UPDATES = "loss_scale/updates"
"""The state that counts the updates so far: what solvers that correct by a number of steps read."""

_GOOD = "loss_scale/good"
_INTERVAL = "loss_scale/interval"
_LARGEST = 2.0**24


@kind(facts=Facts(role=Role.ELEMENTWISE))
def Unscale(gradient: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the loss from that of the scaled loss, and whether all of it is finite.

    >>> Unscale(torch.tensor([4.0, 8.0]), torch.tensor(4.0))
    (tensor([1., 2.]), tensor(True))
    """
    return gradient / scale.to(gradient.dtype), torch.isfinite(gradient).all()


@kind(facts=Facts(role=Role.COMBINATION))
def AllTrue(*flags: Tensor) -> Tensor:
    """Whether all flags are true."""
    return torch.stack(flags).all()


@kind
def CountGood(good: Tensor, interval: Tensor, finite: Tensor) -> Tensor:
    """How many iterations in a row were good since the loss scale last changed."""
    return torch.where(finite, (good + 1) % interval, 0)


@kind
def CountUpdates(updates: Tensor, finite: Tensor) -> Tensor:
    """How many updates there were, with that of this iteration, if it counts."""
    return updates + finite


@kind
def LossScaleUpdate(scale: Tensor, good: Tensor, interval: Tensor, finite: Tensor) -> Tensor:
    """The next loss scale: halved if not `finite`, doubled after `interval` good iterations.

    It stays between 1 and 2 ** 24.

    >>> good, interval = torch.tensor(1999), torch.tensor(2000)
    >>> LossScaleUpdate(torch.tensor(8.0), good, interval, torch.tensor(True))
    tensor(16.)
    >>> LossScaleUpdate(torch.tensor(8.0), good, interval, torch.tensor(False))
    tensor(4.)
    """
    grown = torch.where(good + 1 >= interval, scale * 2, scale)
    return torch.where(finite, grown, scale / 2).clamp(1.0, _LARGEST)


def add_loss_scale(builder: Builder, *, scale: float, interval: int, location: Location) -> None:
    """Add the states of a loss scale; `backward` adds what works with them."""
    first: dict[str, tuple[str, float | int]] = {
        LOSS_SCALE: ("float32", scale),
        _GOOD: ("int64", 0),
        _INTERVAL: ("int64", interval),
        UPDATES: ("int64", 0),
    }
    for name, (dtype, value) in first.items():
        builder.blob(name, (), dtype, location)
        builder.state(name, filler=Filler("constant", {"value": value}))


def scaled_of(gradient: str) -> str:
    """The name of the gradient of the scaled loss that a gradient is computed from."""
    return f"{gradient}/scaled"


def unscale(graph: Graph, parameters: Sequence[str], others: Sequence[str] = ()) -> Graph:
    """The graph with the gradients of the scaled loss divided by the scale.

    An update counts if the gradients of all `parameters` are finite; `others` are not checked.
    """
    builder = Builder(graph)
    owner_of = {gradient_of(name): name for name in (*parameters, *others)}
    renamed = {name: scaled_of(name) for name in owner_of}
    for old, new in renamed.items():
        builder.add(replace(builder.blobs[old], name=new))
    for op in graph.ops.values():
        builder.ops[op.name] = op.renamed(renamed)
    flags = []
    for name, scaled in renamed.items():
        location, flag = builder.blobs[name].location, NOTHING
        if owner_of[name] in parameters:
            flag = builder.blob(builder.fresh(f"{name}/finite"), (), "bool", location)
            flags.append(flag)
        op_name, origin = builder.fresh(f"{name}/unscale"), Origin(owner_of[name], "update")
        inputs, outputs = [scaled, LOSS_SCALE], [name, flag]
        builder.op(op_name, "Unscale", inputs, outputs, location=location, origin=origin)
    if not flags:
        return builder.graph()
    home = builder.blobs[LOSS_SCALE].location
    builder.blob(FINITE, (), "bool", home)
    builder.op(FINITE, "AllTrue", flags, [FINITE], location=home, origin=Origin(FINITE, "update"))
    for name, update, inputs in (
        (LOSS_SCALE, "LossScaleUpdate", [LOSS_SCALE, _GOOD, _INTERVAL, FINITE]),
        (_GOOD, "CountGood", [_GOOD, _INTERVAL, FINITE]),
        (UPDATES, "CountUpdates", [UPDATES, FINITE]),
    ):
        following = builder.blob(f"{name}/next", (), builder.blobs[name].dtype, home)
        builder.states[name] = replace(builder.states[name], next=following)
        origin = Origin(name, "update")
        builder.op(update_of(name), update, inputs, [following], location=home, origin=origin)
    if LOSS_SCALE not in builder.outputs:
        builder.outputs.append(LOSS_SCALE)
    return builder.graph()
