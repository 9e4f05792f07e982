"""Fused ops: the ops of a device between two points of communication, compiled as one.

A fused op starts when all it reads from other lanes has arrived, and its results leave when it
ends. Smaller pieces let gradients leave before the backward ends. On a GPU the ops beside compute
(averages and updates of several devices) are fused too, because a launch costs more than they do.

The graph of pieces has no cycle. The rank of an op is the largest number of crossings between lanes
on a path from it to the end. A piece holds ops of one lane and one rank, in topological order.
Ranks never rise along an edge, and are equal only within a lane.
"""

from __future__ import annotations

from collections.abc import Sequence

from purine.analysis.cost import PROFILE, cost
from purine.analysis.infer import families, size_in_bytes
from purine.arguments import at_least, checked
from purine.graph import COLLECTIVES, Builder, Graph, Location, Op
from purine.graph.nodes import LAST
from purine.kinds.fused import FUSED, fused_op
from purine.registry.lookup import lookup

__all__ = ["boundary", "fuse"]

_APART = ("Copy", LAST, *COLLECTIVES, FUSED)


@checked
def fuse(
    graph: Graph,
    *,
    pieces: int = 1,
    bucket: int | None = None,
    devices: Sequence[str] | None = None,
) -> Graph:
    """The graph with the ops of each compute lane in fused ops.

    Between two points of communication a lane has up to `pieces` fused ops of about equal cost.
    With `bucket` a fused op also ends once it has exchanged that many bytes with other lanes.
    `devices` are those to fuse on, by default all. Apply it last: fused ops cannot be
    differentiated, split or placed apart.

    >>> import purine as pu
    >>> step = pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=4)), lr=0.1)
    >>> [op.kind for op in fuse(step).ops.values()]
    ['aten.add.Scalar', 'Data', 'Fused']
    """
    at_least("pieces", pieces, 1)
    at_least("bucket", 1 if bucket is None else bucket, 1)
    for device in devices or ():
        Location(device=device)  # refuses what is no device
    builder, family = Builder(graph), families(graph)
    owner: dict[str, str] = {}
    for count, members in enumerate(_pieces(graph, pieces, bucket, devices)):
        if len(members) < 2:
            continue
        inputs, outputs, inside = boundary(graph, members)
        name = builder.fresh(f"fused/{count}")
        op = fused_op(name, graph, members, inputs, outputs, family)
        for member in members:
            del builder.ops[member.name]
            owner[member.name] = name
        for blob in inside:
            del builder.blobs[blob]
        builder.add(op)
    edges = ((owner.get(a, a), owner.get(b, b)) for a, b in graph.control)
    builder.control = {(before, after) for before, after in edges if before != after}
    return builder.graph()


def boundary(
    graph: Graph, ops: Sequence[Op]
) -> tuple[tuple[str, ...], tuple[str, ...], frozenset[str]]:
    """What some ops read from others, those of their results that others read, and the rest."""
    names = {op.name for op in ops}
    results = [blob for op in ops for blob in op.results]
    inside = frozenset(results)
    inputs = dict.fromkeys(blob for op in ops for blob in op.inputs if blob not in inside)
    asked = {*graph.outputs, *(state.next for state in graph.states.values())}
    outputs = tuple(
        blob
        for blob in results
        if blob in asked or any(user.name not in names for user in graph.consumers[blob])
    )
    return tuple(inputs), outputs, inside.difference(outputs)


def _pieces(
    graph: Graph, pieces: int, bucket: int | None, devices: Sequence[str] | None
) -> list[list[Op]]:
    """The ops of each lane by rank, those with the most crossings behind them first."""
    groups: dict[tuple[int, Location, str], list[Op]] = {}
    ranks = _ranks(graph, devices)
    for op in graph.in_order:
        if _fits(graph, op, devices):
            groups.setdefault((-ranks[op.name], op.location, op.lane), []).append(op)
    parts = [part for key in sorted(groups) for part in _split(graph, groups[key], pieces)]
    if bucket is not None:
        parts = [piece for part in parts for piece in _by_bytes(graph, part, bucket)]
    return parts


def _ranks(graph: Graph, devices: Sequence[str] | None) -> dict[str, int]:
    ranks: dict[str, int] = {}
    for op in reversed(graph.in_order):
        behind = [0]
        for following in graph.successors[op.name]:
            other = graph.ops[following]
            same_lane = (op.location, op.lane) == (other.location, other.lane)
            together = same_lane and _fits(graph, op, devices) and _fits(graph, other, devices)
            behind.append(ranks[following] + (not together))
        ranks[op.name] = max(behind)
    return ranks


def _fits(graph: Graph, op: Op, devices: Sequence[str] | None) -> bool:
    """Whether an op may be fused: one that computes in every iteration, on states of its own."""
    states = (graph.states.get(name) for name in op.inputs)
    beside = op.lane == "inbound" and op.location.device.startswith("cuda")
    return (
        (beside or op.lane.startswith("compute"))
        and op.kind not in _APART
        and lookup(op).function is not None
        and (devices is None or op.location.device in devices)
        and op.every == 1
        and not any(state is not None and state.versioned for state in states)
    )


def _split(graph: Graph, ops: Sequence[Op], pieces: int) -> list[list[Op]]:
    """Ops in order, cut into parts of about equal cost."""
    if pieces == 1:
        return [list(ops)]
    weights = [PROFILE.fused.seconds(cost(op, graph.blobs)) for op in ops]
    total, before = sum(weights), 0.0
    parts: list[list[Op]] = [[] for _ in range(pieces)]
    for op, weight in zip(ops, weights, strict=True):
        parts[min(pieces - 1, int(before / total * pieces))].append(op)
        before += weight
    return [part for part in parts if part]


def _by_bytes(graph: Graph, ops: Sequence[Op], bucket: int) -> list[list[Op]]:
    """Ops in order, cut where enough has come from others or gone to them."""
    inside = {op.name for op in ops}
    parts: list[list[Op]] = [[]]
    come: set[str] = set()
    crossed = 0
    for op in ops:
        if crossed >= bucket:
            parts.append([])
            come, crossed = set(), 0
        parts[-1].append(op)
        for blob in set(op.inputs) - come:
            maker = graph.producers.get(blob)
            if maker is not None and maker.name not in inside:
                come.add(blob)
                crossed += size_in_bytes(graph.blobs[blob])
        for blob in op.results:
            if any(user.name not in inside for user in graph.consumers[blob]):
                crossed += size_in_bytes(graph.blobs[blob])
    return parts
