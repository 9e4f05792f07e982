"""Gradient accumulation: one iteration reads several micro-batches and makes one update.

The micro-batches together are the one batch `times` as large: they read the same samples in the
same order and draw the same random numbers. What sees a whole batch at once, such as batch norm,
sees a micro-batch at a time.
"""

from __future__ import annotations

from dataclasses import replace

import purine.ops.update  # noqa: F401  (registers the kinds)
from purine.graph import Builder, Graph
from purine.ops.custom_gradient import refuse_parts
from purine.parallel._halves import batch_of, halve
from purine.parallel._parts import Part, add_part, is_scalar
from purine.solvers._options import at_least

__all__ = ["accumulate"]


def accumulate(graph: Graph, times: int) -> Graph:
    """Forward and backward of `times` micro-batches, with the mean of their gradients.

    To be used behind `backward`, before or after a solver. Ops and blobs are copied under
    `micro0/`, `micro1/` and so on; gradients of parameters and scalar outputs are means under their
    own names, other outputs are those of each micro-batch. States that ops of the net update pass
    from one micro-batch to the next.
    """
    at_least("times", times, 1)
    if times == 1:
        return graph
    refuse_parts(graph, "micro-batches")
    halves = halve(graph)
    made, own = halves.made(), batch_of(graph)
    builder = Builder(graph)
    for op in halves.batch:
        del builder.ops[op.name]
    for name in made:
        del builder.blobs[name]
    ops = {op.name for op in halves.batch}
    builder.control = {edge for edge in graph.control if ops.isdisjoint(edge)}
    current: dict[str, str] = {}
    parts = [Part(f"micro{number}", number * own, times * own) for number in range(times)]
    for part in parts:
        add_part(builder, graph, halves, part, current)
        current = {
            name: part.name(state.next)
            for name, state in graph.states.items()
            if state.next in made
        }
    for name, following in current.items():
        builder.states[name] = replace(builder.states[name], next=following)
    averaged = dict.fromkeys(halves.gradients.values())
    builder.outputs = []
    for name in graph.outputs:
        if name not in made:
            builder.outputs.append(name)
        elif name in averaged or is_scalar(graph.blobs[name]):
            averaged[name] = None
            builder.outputs.append(name)
        else:
            builder.outputs += [part.name(name) for part in parts]
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
        builder.op(
            result,
            "AddScaled",
            [total, part.name(name)],
            [result],
            {"scale": 1.0 / len(parts)} if last else {},
            location=blob.location,
        )
        total = result
