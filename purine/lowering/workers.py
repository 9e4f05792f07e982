"""The graph of each worker of a graph; workers have only shared states in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from purine.graph import Graph

__all__ = ["alone", "has_workers", "here", "worker_parts"]


def has_workers(graph: Graph) -> bool:
    """Whether parts of a graph count iterations of their own, or share states."""
    states = graph.states.values()
    return any(op.worker for op in graph.ops.values()) or any(s.shared for s in states)


def worker_parts(graph: Graph) -> Mapping[int, Graph]:
    """The graph of each worker, by its number. A state that no worker uses belongs to the first.

    >>> import purine as pu
    >>> step = pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=8)), lr=0.1)
    >>> parts = worker_parts(pu.parallel.serve(step, "cpu:0-1"))
    >>> list(parts), parts[1].outputs
    ([0, 1], ('worker1/loss', 'worker1/accuracy', 'worker1/lr'))
    """
    numbers = sorted({op.worker for op in graph.ops.values()})
    used = {number: set[str]() for number in numbers}
    for op in graph.ops.values():
        used[op.worker].update((*op.inputs, *op.results))
    everywhere = set().union(*used.values())
    parts = {}
    for number, blobs in used.items():
        for ends in ({name, state.next} for name, state in graph.states.items()):
            unused = number == numbers[0] and everywhere.isdisjoint(ends)
            if unused or not blobs.isdisjoint(ends):
                blobs |= ends
        ops = {name: op for name, op in graph.ops.items() if op.worker == number}
        parts[number] = graph.only(blobs, ops)
    return parts


def alone(part: Graph) -> Graph:
    """The graph of one worker as a graph without workers, which can be cut into parts of hosts."""
    ops = {name: replace(op, worker=0) for name, op in part.ops.items()}
    return replace(part, ops=ops)


def here(graph: Graph, host: str) -> Graph:
    """The part of a graph with workers on several hosts that is on one host, without ends of
    transfers."""
    blobs = {name for name, blob in graph.blobs.items() if blob.location.host == host}
    ops = {name: op for name, op in graph.ops.items() if op.location.host == host}
    return graph.only(blobs, ops)
