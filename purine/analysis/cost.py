"""How long an op takes, estimated from its flops and bytes."""

from __future__ import annotations

from collections.abc import Mapping

from purine.analysis.infer import cost
from purine.graph import Blob, Op
from purine.registry.lookup import lookup

__all__ = ["BYTES_PER_SECOND", "seconds"]

_FLOPS_PER_SECOND = 1e11
BYTES_PER_SECOND = 1e10


def seconds(op: Op, blobs: Mapping[str, Blob]) -> float:
    """About how long an op takes: a share of what a core of today can do."""
    if op.kind == "Data" or lookup(op).view or op.attributes.get("alias"):
        return 0.0
    found = cost(op, blobs)
    return found.flops / _FLOPS_PER_SECOND + found.bytes / BYTES_PER_SECOND
