"""The two states every training graph reads: the run's seed and the iteration number.

Kernels that draw random numbers or read a batch take them as inputs, so they are pure functions.
"""

from __future__ import annotations

from purine.graph import Builder, Filler, Graph

__all__ = ["ITERATION", "SEED", "add_clock", "clockwork"]

SEED = "seed"
ITERATION = "iteration"


def add_clock(builder: Builder) -> None:
    """Add the states `seed` and `iteration`, and the op that counts, where they are missing."""
    if SEED not in builder.blobs:
        builder.blob(SEED, (), "int64")
        builder.state(SEED, filler=Filler("constant", {"value": 0}))
    if ITERATION not in builder.blobs:
        following = f"{ITERATION}/next"
        builder.blob(ITERATION, (), "int64")
        builder.blob(following, (), "int64")
        # On the lane of those who run ahead: behind compute it would hold prefetching up.
        name, add = f"{ITERATION}/add", "aten.add.Scalar"
        builder.op(name, add, [ITERATION], [following], {"other": 1}, lane="io")
        builder.state(ITERATION, following)


def clockwork(step: Graph) -> frozenset[str]:
    """The scalars that depend on the clock alone, such as the learning rate.

    Every host can compute them for itself.
    """
    known = {name for name in (SEED, ITERATION) if name in step.states}
    for op in step.in_order:
        scalar = all(step.blobs[blob].shape == () for blob in op.results)
        if op.inputs and scalar and known.issuperset(op.inputs):
            known.update(op.outputs)
    carried = {state.next for name, state in step.states.items() if name in known}
    return frozenset(known) if carried <= known else frozenset()
