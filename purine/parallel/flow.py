"""The batch half of a step as a line, along which a pipeline is cut.

Forward ops have positions in an order in which each op comes right before the first that reads it.
A backward op has the position of its forward op, or of an earlier one. So wherever the line is cut,
values go to later stages only, and gradients to earlier ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from purine.graph import Graph
from purine.graph.names import gradient_of, origin_of
from purine.parallel.halves import Halves

__all__ = ["Flow", "flow_of", "weight_ops"]


@dataclass(frozen=True, slots=True)
class Flow:
    """The ops of the batch half in the order of execution, with the position of each."""

    forward: tuple[str, ...]
    backward: tuple[str, ...]
    owner: Mapping[str, str]
    """For each op the one of the net that it was lowered from, by its name in `forward`."""
    position: Mapping[str, int]
    """For each op, the place in `forward` that it is cut with."""


def flow_of(graph: Graph, halves: Halves) -> Flow:
    """The line of a step's batch half."""
    batch = {op.name for op in halves.batch}
    back: set[str] = set()
    for name in graph.order:
        if name in batch and (name in back or origin_of(graph.ops[name]).role == "backward"):
            back.add(name)
            back.update(batch.intersection(graph.successors[name]))
    forward = _lazy_order(graph, batch - back)
    backward = _lazy_order(graph, back)
    position = {name: number for number, name in enumerate(forward)}
    owner = {}
    for name in forward:
        origin = origin_of(graph.ops[name])
        lowered = origin.role == "forward" and origin.of in position
        owner[name] = origin.of if lowered else name
    before = _before(graph, back)
    for name in backward:
        own = _owner(graph, name, position)
        if own is None:
            earlier = (owner[other] for other in before[name])
            own = min(earlier, key=position.__getitem__, default=forward[-1])
        owner[name] = owner[own]
        position[name] = min([position[owner[own]], *(position[other] for other in before[name])])
    return Flow(forward, backward, owner, position)


def weight_ops(graph: Graph, flow: Flow, halves: Halves, stage: Mapping[str, int]) -> set[str]:
    """The backward ops whose results lead only to gradients of their own op's parameters."""
    borders = set(halves.gradients.values())
    back = set(flow.backward)
    alone: set[str] = set()
    for name in reversed(flow.backward):
        after = back.intersection(graph.successors[name])
        own = (stage[name], flow.owner[name])
        unread = after <= alone and all((stage[o], flow.owner[o]) == own for o in after)
        if unread and (after or not borders.isdisjoint(graph.ops[name].outputs)):
            alone.add(name)
    return alone


def _owner(graph: Graph, name: str, position: Mapping[str, int]) -> str | None:
    """The forward op of a backward op, or the one that makes or first reads its blob."""
    of = origin_of(graph.ops[name]).of
    readers = [op.name for op in graph.consumers.get(of, ()) if op.name in position]
    if of in graph.states and readers:
        return min(readers, key=position.__getitem__)
    if of in position:
        return of
    maker = graph.producers.get(of)
    return maker.name if maker is not None and maker.name in position else None


def _lazy_order(graph: Graph, names: set[str]) -> tuple[str, ...]:
    """A topological order in which ops come as late as their readers allow.

    An op without readers among `names` comes right after the op that it belongs to, as a value that
    a forward saves for its backward does; others without readers come in graph order.
    """
    before = _before(graph, names)
    read = {other for others in before.values() for other in others}
    behind: dict[str, list[str]] = {}
    ends = []
    for name in graph.order:
        if name in names and name not in read:
            of = origin_of(graph.ops[name]).of
            owner = next((o for o in (gradient_of(of), of) if o in names and o != name), None)
            if owner is None:
                ends.append(name)
            else:
                behind.setdefault(owner, []).append(name)
    order: dict[str, None] = {}
    stack = list(reversed([*ends, *(name for group in behind.values() for name in group)]))
    while stack:
        name = stack[-1]
        waiting = [other for other in before[name] if other not in order]
        if name in order or not waiting:
            stack.pop()
            if name not in order:
                order[name] = None
                stack += reversed(behind.get(name, []))
        else:
            stack += reversed(waiting)
    return tuple(order)


def _before(graph: Graph, names: set[str]) -> Mapping[str, Sequence[str]]:
    """For each op of `names` those of them that it waits for: what it reads first."""
    before: dict[str, dict[str, None]] = {name: {} for name in names}
    for name in names:
        producers = (graph.producers.get(blob) for blob in graph.ops[name].inputs)
        before[name] |= {op.name: None for op in producers if op is not None and op.name in names}
    for earlier, later in sorted(graph.control):
        if earlier in names and later in names:
            before[later][earlier] = None
    return {name: tuple(others) for name, others in before.items()}
