"""Scalars that every host can compute for itself: those that depend on the clock alone."""

from __future__ import annotations

from purine.graph import Graph
from purine.registry.clock import ITERATION, SEED

__all__ = ["clockwork"]


def clockwork(step: Graph) -> frozenset[str]:
    """The seed, the iteration, and scalars computed from them, such as the learning rate."""
    known = {name for name in (SEED, ITERATION) if name in step.states}
    for op in step.in_order:
        scalar = all(step.blobs[blob].shape == () for blob in op.results)
        if op.inputs and scalar and known.issuperset(op.inputs):
            known.update(op.outputs)
    carried = {state.next for name, state in step.states.items() if name in known}
    return frozenset(known) if carried <= known else frozenset()
