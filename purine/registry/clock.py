"""The two states every training graph reads: the run's seed and the iteration number.

Kernels that draw random numbers or read a batch take them as inputs, so they are pure functions.
"""

from __future__ import annotations

from purine.graph import Builder, Filler

__all__ = ["ITERATION", "SEED", "add_clock"]

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
        builder.op(
            f"{ITERATION}/add", "aten.add.Scalar", [ITERATION], [following], {"other": 1}, lane="io"
        )
        builder.state(ITERATION, following)
