"""The kinds at the edge of a graph: where batches come in and where blobs change location."""

from __future__ import annotations

from torch import Tensor

from purine.ops.registry import Attr, Kind, kind, register

__all__ = ["Copy", "Data", "StopGradient"]

Data = register(
    Kind(
        "Data",
        None,
        ("seed", "iteration"),
        attributes={
            "source": Attr(str, "train"),
            "shuffle": Attr(bool, True),
            "part": Attr(int, 0),
            "parts": Attr(int, 1),
        },
    )
)
"""The next batch of a source. `part` of `parts` lets several ops read one stream side by side."""


@kind
def Copy(x: Tensor) -> Tensor:
    """The same value at another location: the only kind whose two ends differ in location."""
    return x.clone()


@kind(view=True)
def StopGradient(x: Tensor) -> Tensor:
    """The same value; no gradient passes."""
    return x.view_as(x)
