"""The two halves of a training step: ops that run for every part of a batch, and ops that run once.

Schemes that cut a batch (replicas, micro-batches) repeat the first half and keep the second. The
border is where gradients leave the backward. After it come unscaling, clipping, updates and rates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from purine.errors import GraphError
from purine.graph import NOTHING, Graph, Location, Op
from purine.graph.names import gradient_of, origin_of
from purine.kinds.fused import refuse_fused
from purine.registry.clock import ITERATION

T = TypeVar("T")

__all__ = ["Halves", "follow", "halve", "samples_of", "shared_out"]


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
            # The border is before updates, which unscale, clip or decay their first input.
            while origin_of(graph.producers[gradient]).role == "update":
                gradient = graph.producers[gradient].inputs[0]
            gradients[name] = gradient
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


def samples_of(graph: Graph) -> int:
    """The number of samples that an iteration of the graph reads."""
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
    what, remedy = "the graph reads no batches", "build the net with Net.data or Net.source"
    found = "kinds " + ", ".join(sorted({op.kind for op in graph.ops.values()}))
    raise GraphError(what, expected="at least one Data op or input", found=found, remedy=remedy)


def follow(
    graph: Graph, halves: Halves, homes: Mapping[str, Location], known: set[str]
) -> dict[str, Location]:
    """`homes` of all blobs: ops that belong to a parameter are at the home of the parameter.

    An op of the update half that reads `known` blobs of one home is at that home. So are its
    outputs and the states that only it reads.
    """
    homes, known = dict(homes), set(known)
    once = {op.name for op in halves.once}
    read = {name for op in halves.batch for name in op.inputs}
    for name in graph.order:
        op = graph.ops[name]
        if name not in once:
            continue
        locations = {homes[item] for item in op.inputs if item in known}
        if len(locations) != 1 or op.kind == "GlobalNorm":
            continue
        slots = [item for item in op.inputs if item in graph.states and item not in read]
        shared = [item for item in slots if len(graph.consumers[item]) > 1]
        owned = {*op.outputs, *slots}.difference(shared, {NOTHING})
        homes.update(dict.fromkeys(owned, *locations))
        known |= owned
    batch = halves.made()
    for state in graph.states.values():
        if state.next not in batch:
            homes[state.next] = homes[state.read]
    return homes


def shared_out(sizes: Mapping[str, int], choices: Callable[[str], Sequence[T]]) -> dict[str, T]:
    """An owner for each state, the largest first: the choice that owns the least so far."""
    load: Counter[T] = Counter()
    owners: dict[str, T] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owners[name] = owner = min(choices(name), key=load.__getitem__)
        load[owner] += sizes[name]
    return owners
