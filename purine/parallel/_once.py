"""Placement of the once-per-step ops: updates, optimizer state, clipping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from purine.graph import NOTHING, Builder, Graph, Location, Op
from purine.parallel.halves import Halves


def follow(
    graph: Graph, halves: Halves, homes: Mapping[str, Location], known: set[str]
) -> dict[str, Location]:
    """`homes` of all blobs, with what belongs to a parameter at the home of the parameter.

    An op of the once half that reads `known` blobs of one home is at that home. So are its outputs
    and the states that only it reads.
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


def partial_norms(builder: Builder, op: Op, homes: Mapping[str, Location]) -> Op:
    """The norm of all gradients as the norm of the norms at each home."""
    groups: dict[Location, list[str]] = {}
    for name in op.inputs:
        groups.setdefault(homes[name], []).append(name)
    if len(groups) == 1:
        return op
    norms = []
    for number, (home, names) in enumerate(groups.items()):
        norm = builder.fresh(f"{op.name}/{number}")
        builder.blob(norm, (), "float64", home)
        builder.op(norm, "GlobalNorm", names, [norm], location=home, lane=op.lane)
        norms.append(norm)
    return replace(op, inputs=tuple(norms))
