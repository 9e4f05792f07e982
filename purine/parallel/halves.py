"""A training step in two halves: what is done for every part of a batch, and what is done once.

Schemes that cut a batch (replicas, micro-batches) repeat the first half and keep the second. The
border is where gradients leave the backward. Behind it are unscaling, clipping, updates and rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from purine.errors import GraphError
from purine.graph import NOTHING, Graph, Op
from purine.graph.names import gradient_of, origin_of
from purine.kinds.fused import refuse_fused
from purine.registry.clock import ITERATION

__all__ = ["Halves", "halve", "samples_of"]


@dataclass(frozen=True, slots=True)
class Halves:
    """The ops of a step by half, and the gradients that cross from the first to the second."""

    batch: tuple[Op, ...]
    once: tuple[Op, ...]
    gradients: Mapping[str, str]
    """By parameter, the blob at the border."""
    fed: tuple[str, ...]
    """The graph's inputs: each part of a batch is fed its own."""

    def made(self) -> frozenset[str]:
        """The blobs that belong to the batch half."""
        written = (name for op in self.batch for name in op.outputs if name != NOTHING)
        return frozenset((*written, *self.fed))


def halve(graph: Graph) -> Halves:
    """The two halves of a step, with or without a solver."""
    gradients = {}
    for name, state in graph.states.items():
        gradient = gradient_of(name)
        if state.trainable and gradient in graph.producers:
            gradients[name] = _before_updates(graph, gradient)
    if not gradients:
        refuse_fused(graph, "a scheme of parallelism")
        raise GraphError(
            "the graph has no gradients",
            expected="a training step: forward, backward and a solver",
            found=f"{len(graph.ops)} ops, none of which makes the gradient of a parameter",
            remedy="run backward and a solver first: sgd(backward(net))",
        )
    border = set(gradients.values())
    once: set[str] = set()
    clock = graph.states.get(ITERATION)
    if clock is not None and clock.next in graph.producers:
        once.add(graph.producers[clock.next].name)
    behind = set(border)
    for name in graph.order:
        if not behind.isdisjoint(graph.ops[name].inputs):
            once.add(name)
            behind.update(graph.ops[name].outputs)
    asked = set(graph.outputs)
    for name in reversed(graph.order):
        op = graph.ops[name]
        readers = {reader.name for blob in op.outputs for reader in graph.consumers.get(blob, ())}
        plain = op.kind != "Data" and all(blob in graph.states for blob in op.inputs)
        if readers and readers <= once and border.isdisjoint(op.outputs):
            once.add(name)
        elif plain and not readers and asked.issuperset(op.outputs):
            once.add(name)  # a rate that is only shown
    return Halves(
        tuple(op for op in graph.ops.values() if op.name not in once),
        tuple(op for op in graph.ops.values() if op.name in once),
        gradients,
        graph.inputs,
    )


def _before_updates(graph: Graph, gradient: str) -> str:
    """The gradient as the backward makes it: updates unscale, clip or decay their first input."""
    while True:
        maker = graph.producers[gradient]
        if origin_of(maker).role != "update":
            return gradient
        gradient = maker.inputs[0]


def samples_of(graph: Graph) -> int:
    """How many samples an iteration of the graph reads."""
    for op in graph.ops.values():
        if op.kind == "Data":
            whole = op.attributes.get("whole")
            shape = graph.blobs[next(name for name in op.outputs if name != NOTHING)].shape
            assert shape
            return whole if isinstance(whole, int) else shape[0]
    for name in graph.inputs:
        shape = graph.blobs[name].shape
        if shape:
            return shape[0]
    raise GraphError(
        "the graph reads no batches",
        expected="at least one Data op or input",
        found="kinds " + ", ".join(sorted({op.kind for op in graph.ops.values()})),
        remedy="build the net with Net.data or Net.source",
    )
