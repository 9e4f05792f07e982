"""Gradient accumulation: one iteration reads several micro-batches and makes one update.

The micro-batches read the samples and draw the random numbers of one batch that is `times` as
large. Ops on a whole batch, such as batch norm, see one micro-batch at a time.
"""

from __future__ import annotations

from dataclasses import replace

import purine.kinds.update  # noqa: F401  (registers the kinds)
from purine.arguments import at_least, checked
from purine.graph import Attribute, Builder, Graph, Origin
from purine.graph.names import micro_batch
from purine.kinds.custom_gradient import refuse_parts
from purine.parallel._parts import NONE, Part, add_joined, add_next, add_part, is_scalar, joined_of
from purine.parallel.halves import halve, samples_of

__all__ = ["accumulate"]


@checked
def accumulate(graph: Graph, times: int, *, together: bool = True, chained: bool = True) -> Graph:
    """Run forward and backward of `times` micro-batches as one batch of their total size.

    Use it after `backward`, before or after a solver. Ops and blobs are copied under `micro0/`,
    `micro1/` and so on; gradients of parameters and scalar outputs are means under their own names,
    other outputs are those of each micro-batch. Sums and weighted means over the batch are those of
    all micro-batches. Running statistics of batch norm pass from one micro-batch to the next; with
    `chained=False` no micro-batch waits for another, and they are means, as over replicas.

    With `together=False` the gradient is the mean of the gradients of the micro-batches, whatever
    the loss, as with Caffe's `iter_size`.
    """
    at_least("times", times, 1)
    if times == 1:
        return graph
    refuse_parts(graph, "micro-batches")
    halves = halve(graph)
    joined = joined_of(graph, halves) if together else NONE
    copied, own = halves.made() - joined.blobs, samples_of(graph)
    builder = Builder(graph)
    for op in halves.batch:
        del builder.ops[op.name]
    for name in halves.made():
        del builder.blobs[name]
    ops = {op.name for op in halves.batch}
    builder.control = {edge for edge in graph.control if ops.isdisjoint(edge)}
    current: dict[str, str] = {}
    parts = [
        Part(micro_batch(number), number * own, own, times * own, micro=number)
        for number in range(times)
    ]
    carried = {name: state.next for name, state in graph.states.items() if state.next in copied}
    for part in parts:
        add_part(builder, graph, halves, part, current, joined)
        if chained:
            current |= {
                name: part.name(following)
                for name, following in carried.items()
                if joined.varies(following)
            }
    for name, following in carried.items():
        if chained or not joined.varies(following):
            next_value = current.get(name) or parts[0].name(following)
            builder.states[name] = replace(builder.states[name], next=next_value)
        else:
            add_next(builder, graph.blobs[following], parts)
    add_joined(builder, graph, joined, parts)
    averaged = dict.fromkeys(name for name in halves.gradients.values() if name in copied)
    builder.outputs = []
    for name in graph.outputs:
        alone = name in copied and name not in averaged and not is_scalar(graph.blobs[name])
        if name in copied and not alone:
            averaged[name] = None
        builder.outputs += [part.name(name) for part in parts] if alone else [name]
    for name in averaged:
        _add_up(builder, graph, name, parts)
    return builder.graph()


def _add_up(builder: Builder, graph: Graph, name: str, parts: list[Part]) -> None:
    """Add the mean of a blob over the micro-batches, one after the other, under its own name."""
    blob = graph.blobs[name]
    total = parts[0].name(name)
    for number, part in enumerate(parts[1:], 1):
        last = number == len(parts) - 1
        result = name if last else f"{name}/sum{number}"
        builder.add(replace(blob, name=result))
        scale: dict[str, Attribute] = {"scale": 1.0 / len(parts)} if last else {}
        origin = Origin(name, "reduce")
        ends = (total, part.name(name)), (result,)
        builder.op(result, "AddScaled", *ends, scale, location=blob.location, origin=origin)
        total = result
