"""The deadlines of transfers between hosts, which give the order in which hosts send."""

from __future__ import annotations

from purine.graph import Graph
from purine.graph.names import origin_of

__all__ = ["SPAN", "deadlines", "early"]

SPAN = 1 << 20
"""The length of an iteration in the unit of deadlines."""

_PASSING = frozenset({"copy", "reduce", "update"})
"""Roles of ops that only pass a value on to those who wait for it."""


def early(step: Graph) -> frozenset[str]:
    """The states, and blobs computed only from them."""
    known = set(step.states)
    for op in step.in_order:
        if op.kind != "Data" and known.issuperset(op.inputs):
            known.update(op.outputs)
    return frozenset(known)


def deadlines(step: Graph, *, hop: int) -> dict[str, int]:
    """By blob the position of the first op that waits for it, in the order of the step.

    A value that only leads to an update is needed when the next iteration reads the new value, so
    its position counts from the next iteration. Copies, reductions and updates themselves do not
    count, and neither do values computed only from states, such as a transposed weight: they are as
    urgent as their readers. A transfer between hosts takes the time of `hop` ops.
    """
    turn = {name: index for index, name in enumerate(step.order)}
    count, never, given = len(turn), 2 * len(turn), early(step)
    needed: dict[str, int] = {}
    for _ in range(2):  # the second time with what the next iteration needs of the states
        following = {
            state.next: count + needed[name]
            for name, state in step.states.items()
            if needed.get(name, never) < count and state.next != name
        }
        needed = {}
        for op in reversed(step.in_order):
            results = (min(needed.get(b, never), following.get(b, never)) for b in op.results)
            when = min(results, default=never)
            passing = origin_of(op).role in _PASSING or given.issuperset(op.inputs)
            if not passing and op.kind != "Copy":
                when = turn[op.name]
            elif op.kind == "Copy" and step.blobs[op.inputs[0]].location.host != op.location.host:
                when -= hop
            for blob in op.inputs:
                needed[blob] = min(needed.get(blob, never), when)
    return {blob: when * SPAN // count for blob, when in needed.items()}
