"""What is exported of a net: the graph that computes its outputs, and the values of its states.

The graph has test-time kinds and is fed, so no data source, loss or solver is left in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from purine.errors import GraphError
from purine.graph import NOTHING, Graph
from purine.nearest import unknown_name
from purine.optimize import inference
from purine.registry.clock import ITERATION, SEED
from purine.registry.lookup import lookup

__all__ = ["TrainedNet", "outputs_of", "trained_net", "whole_net"]

_CLOCK = (SEED, ITERATION)


@dataclass(frozen=True)
class TrainedNet:
    """A net to export. `values` are those of all states of the net, also if `graph` reads fewer."""

    name: str
    net: Graph
    graph: Graph
    values: Mapping[str, Tensor]


def trained_net(
    name: str, net: Graph, values: Mapping[str, Tensor], outputs: Sequence[str] = ()
) -> TrainedNet:
    """The net with what it computes from samples; `outputs` name blobs other than its answers."""
    for output in outputs:
        if output not in net.blobs:
            raise unknown_name(GraphError, "output", output, [*net.producers])
    return replace(whole_net(name, net, values), graph=inference(net, outputs or outputs_of(net)))


def whole_net(name: str, net: Graph, values: Mapping[str, Tensor]) -> TrainedNet:
    """The net as it is, for its values alone."""
    own = {state: values[state] for state in net.states if state not in _CLOCK and state in values}
    return TrainedNet(name, net, net, own)


def outputs_of(net: Graph) -> list[str]:
    """The answers of a net: what its losses and accuracies compare with the targets in its data."""
    fields = [name for op in net.ops.values() if op.kind == "Data" for name in op.outputs]
    known = {*fields, *net.states, NOTHING, *_CLOCK}
    targets = set(fields[1:])
    answers: dict[str, None] = {}
    for op in net.ops.values():
        if targets & set(op.inputs) or (lookup(op).loss and fields[:1] == [*op.inputs[1:2]]):
            answers |= dict.fromkeys(name for name in op.inputs if name not in known)
    if answers:
        return list(answers)
    what, expected = "it is not clear what this net computes", "an op that compares it with targets"
    found = f"ops of {len({op.kind for op in net.ops.values()})} kinds, and none that does"
    remedy = f"name what to export: --output {next(iter(net.sinks), 'BLOB')}"
    raise GraphError(what, expected, found, remedy)
