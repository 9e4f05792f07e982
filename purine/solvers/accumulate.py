"""Gradient accumulation: one iteration reads several micro-batches and makes one update.

The micro-batches together are the one batch `times` as large: they read the same samples in the
same order and draw the same random numbers. What sees a whole batch at once, such as batch norm,
sees a micro-batch at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import purine.ops.update  # noqa: F401  (registers the kinds)
from purine.autodiff import gradient_of
from purine.graph import NOTHING, Attribute, Blob, Builder, Graph, Op
from purine.ops.clock import ITERATION
from purine.ops.registry import lookup
from purine.solvers._attach import parameters
from purine.solvers._options import at_least

__all__ = ["accumulate"]


def accumulate(graph: Graph, times: int) -> Graph:
    """Forward and backward of `times` micro-batches, with the mean of their gradients.

    To be used between `backward` and a solver. Ops and blobs are copied under `micro0/`, `micro1/`
    and so on; gradients of parameters and scalar outputs are means under their own names, other
    outputs are those of each micro-batch. States that ops of the net update pass from one
    micro-batch to the next.
    """
    at_least("times", times, 1)
    if times == 1:
        return graph
    gradients = [gradient_of(name) for name in parameters(graph)]
    clock = _clock(graph)
    builder = Builder()
    for op in clock:
        builder.add(op)
    counted = {name for op in clock for name in op.outputs}
    for name in (*graph.states, *sorted(counted)):
        builder.add(graph.blobs[name])
    parts = _parts(graph)
    current = {name: name for name in graph.states}
    for number in range(times):
        names = {name: _micro(number, name) for name in graph.blobs}
        names |= {name: name for name in (*counted, NOTHING)} | current
        _copy(builder, graph, names, number, times=times, parts=parts)
        current = {
            name: name if state.next in counted else names[state.next]
            for name, state in graph.states.items()
        }
    for name, state in graph.states.items():
        following = state.next if state.next in counted else current[name]
        builder.add(replace(state, next=following))
    averaged = dict.fromkeys(gradients)
    for name in graph.outputs:
        if name in builder.blobs:
            builder.outputs.append(name)
        elif name in averaged or _is_scalar(graph.blobs[name]):
            averaged[name] = None
            builder.outputs.append(name)
        else:
            builder.outputs += [_micro(number, name) for number in range(times)]
    for name in averaged:
        _average(builder, graph, name, times)
    return builder.graph()


def _clock(graph: Graph) -> tuple[Op, ...]:
    """The op that counts iterations: it runs once, however many micro-batches there are."""
    state = graph.states.get(ITERATION)
    return () if state is None else (graph.producers[state.next],)


def _parts(graph: Graph) -> int:
    """How many ops read a stream side by side already."""
    found = (op.attributes.get("parts", 1) for op in graph.ops.values() if op.kind == "Data")
    return max((value for value in found if isinstance(value, int)), default=1)


def _copy(
    builder: Builder,
    graph: Graph,
    names: Mapping[str, str],
    number: int,
    *,
    times: int,
    parts: int,
) -> None:
    """Add one micro-batch."""
    for name, blob in graph.blobs.items():
        if names[name] == _micro(number, name):
            builder.add(replace(blob, name=names[name]))
    clock = _clock(graph)
    ops = {
        op.name: op.name if op in clock else _micro(number, op.name) for op in graph.ops.values()
    }
    for op in graph.ops.values():
        if op not in clock:
            builder.add(
                replace(
                    op,
                    name=ops[op.name],
                    inputs=tuple(names[name] for name in op.inputs),
                    outputs=tuple(names[name] for name in op.outputs),
                    attributes=_shifted(graph, op, number, times=times, parts=parts),
                )
            )
    builder.control |= {(ops[before], ops[after]) for before, after in graph.control}


def _shifted(
    graph: Graph, op: Op, number: int, *, times: int, parts: int
) -> Mapping[str, Attribute]:
    """The attributes of an op, moved to the samples of one micro-batch."""
    if op.kind == "Data":
        part, own = op.attributes.get("part", 0), op.attributes.get("parts", 1)
        assert isinstance(part, int)
        assert isinstance(own, int)
        return {**op.attributes, "part": number * own + part, "parts": own * times}
    if {"offset", "stream"} <= lookup(op).attributes.keys():
        offset = op.attributes.get("offset", 0)
        shape = graph.blobs[op.outputs[0]].shape
        assert isinstance(offset, int)
        if shape and number:
            return {**op.attributes, "offset": offset + number * parts * shape[0]}
    return op.attributes


def _average(builder: Builder, graph: Graph, name: str, times: int) -> None:
    """Add the mean of a blob over the micro-batches, under the blob's own name."""
    blob = graph.blobs[name]
    total = _micro(0, name)
    for number in range(1, times):
        last = number == times - 1
        result = name if last else f"{name}/sum{number}"
        builder.add(replace(blob, name=result))
        builder.op(
            result,
            "AddScaled",
            [total, _micro(number, name)],
            [result],
            {"scale": 1.0 / times} if last else {},
            location=blob.location,
        )
        total = result


def _is_scalar(blob: Blob) -> bool:
    return blob.shape == () and "float" in blob.dtype


def _micro(number: int, name: str) -> str:
    return f"micro{number}/{name}"
