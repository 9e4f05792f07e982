"""Values that hosts of one machine read in place: the board, memory that all hosts share.

A host posts a value once for all others, which read it there. So a parameter is written once in an
iteration instead of once for each host, and is in the caches of the machine once.

The step decides which values are posted: such copies have the attribute `board`. Lowering gives
each value its offset on the board, the same on all hosts. Units of a parameter are adjacent, so
joining them is a view.
"""

from __future__ import annotations

from collections.abc import Mapping

from purine.analysis.infer import size_in_bytes
from purine.graph import Graph, Op
from purine.registry.facts import Facts, Role
from purine.registry.fillers import shard_of
from purine.registry.kind import Attr, Kind, register

__all__ = ["POST", "is_posted", "places_of", "posted"]

POST = "Post"

register(
    Kind(
        POST,
        None,
        ("x",),
        attributes={
            "peers": Attr(tuple[str, ...]),
            "channels": Attr(tuple[int, ...]),
            "deadline": Attr(int, 0),
            "board": Attr(int),
        },
        facts=Facts(role=Role.COPY),
    )
)
"""A put to all `peers` at once, whose channels to them have these numbers. The value is written to
the board from byte `board` on, and the result is that memory."""

_ALIGNMENT = 64


def is_posted(op: Op) -> bool:
    """Whether a copy between hosts goes over the board."""
    return op.kind == "Copy" and bool(op.attributes.get("board"))


def posted(blob: str) -> str:
    """The name of the owner's value of a posted blob."""
    return f"posted/{blob}"


def places_of(step: Graph) -> Mapping[str, int]:
    """The offset on the board of each posted blob, in bytes, the same on all hosts.

    >>> import purine as pu
    >>> step = pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=8)), lr=0.1)
    >>> shared = pu.parallel.replicate(step, "host0-1:cpu:0", shared=True)
    >>> places_of(shared)["fc1/weight/unit1"] - places_of(shared)["fc1/weight/unit0"]
    200704
    """
    sources = {op.inputs[0] for op in step.ops.values() if is_posted(op)}
    states = [name for name in step.states if name in sources]
    places: dict[str, int] = {}
    end, before = 0, ""
    for name in (*states, *sorted(sources.difference(states))):
        shard = shard_of(step.states[name].filler) if name in step.states else None
        whole = name if shard is None else shard.of
        if whole != before:
            end = -(-end // _ALIGNMENT) * _ALIGNMENT
        places[name], before = end, whole
        end += size_in_bytes(step.blobs[name])
    return places
